"""Several processes side by side, as torchrun would start them."""

import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from hashlib import sha256
from io import StringIO
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toys import quiet, train_until_the_power_goes

from palimpsest.cli import main
from palimpsest.data.codec import ByteCodec
from palimpsest.errors import UserError
from palimpsest.evaluation.decoding import Greedy
from palimpsest.evaluation.perplexity import Protocol, Score, evaluate
from palimpsest.experiment import Recipe, train, translation
from palimpsest.experiment.run import train_or_resume
from palimpsest.shards import is_share, tensors_of
from palimpsest.training import checkpoint
from palimpsest.training.step import Outcome, Step
from palimpsest.training.trainer import Trainer
from palimpsest.world import World

PATIENCE = 120  # seconds
processes = get_context("forkserver")  # which imports torch once, for all of them
processes.set_forkserver_preload(
    ["palimpsest.legacy", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.hf_storage"]
)


def on_ranks(count: int, work: Callable[..., Any], *given: Any) -> list[Any]:
    """What `work(*given)` returns in each of so many processes that share a run; it is found by its name."""
    port, dtype, lines, workers = free_port(), torch.get_default_dtype(), [], []
    for rank in range(count):
        mine, theirs = processes.Pipe()
        worker = processes.Process(target=serve, args=(theirs, rank, count, port, dtype, work, given), daemon=True)
        worker.start()
        theirs.close()
        lines.append(mine)
        workers.append(worker)
    try:
        return [result_of(line) for line in lines]
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def result_of(line: Connection) -> Any:
    assert wait([line], PATIENCE), "nothing is heard of a process"
    succeeded, result = line.recv()
    assert succeeded, result
    return result


def serve(line: Connection, rank: int, count: int, port: int, dtype: torch.dtype, work, given) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    try:
        line.send((True, work(*given)))
    except BaseException:
        line.send((False, traceback.format_exc()))
    line.recv()  # until all are done: who leaves first would cut the lines of the others


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def carried_out(recipe: Recipe, folder: Path) -> str:
    """The recipe's run, begun or gone on with; a digest of all that this process has of the model as trained."""
    trainers, fit = [], Trainer.fit

    def watched(trainer: Trainer) -> bool:
        trainers.append(trainer)
        return fit(trainer)

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(Trainer, "fit", watched)
        train_or_resume(recipe, folder, quiet())
    (trainer,) = trainers
    whole = [tensor for tensor in tensors_of(trainer.model) if not is_share(tensor)]
    windows = [part.windows for part in trainer.model.modules() if hasattr(part, "windows")]
    return sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in whole) + repr(windows).encode()).hexdigest()


def shorten(patch: pytest.MonkeyPatch) -> None:
    """What a run writes at its end is not what takes the time here."""
    patch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)


def carried_out_all(jobs: list[tuple[Recipe, Path]]) -> list[str]:
    return [carried_out(*job) for job in jobs]


def cut_off(recipes: list[tuple[Recipe, Path]], step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        for recipe, folder in recipes:
            train_until_the_power_goes(recipe, folder, step)


def stopped_by_a_signal_to_the_last(recipe: Recipe, folder: Path, step: int) -> int:
    """The step after which this process stopped."""
    advance, steps = Trainer.advance, []

    def interrupted(trainer: Trainer) -> None:
        advance(trainer)
        steps.append(trainer.step)
        if trainer.step == step and trainer.world.rank == trainer.world.size - 1:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # once more, as torchrun passes it on

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(Trainer, "advance", interrupted)
        train_or_resume(recipe, folder, quiet())
    return steps[-1]


def visible_while_the_first_is_written(recipe: Recipe, folder: Path, step: int) -> list[list[Path]]:
    """Which checkpoints there are after each step, while the writer of the first waits for this step."""
    advance, write, made, seen = Trainer.advance, checkpoint.write_shares, Event(), []

    def watched(trainer: Trainer) -> None:
        advance(trainer)
        if not made.is_set():
            seen.append(trainer.checkpoints.all())
        if trainer.step == step:
            made.set()

    def slow(*given: Any) -> None:
        assert made.wait(PATIENCE)
        write(*given)

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(Trainer, "advance", watched)
        patch.setattr(checkpoint, "write_shares", slow)
        train(recipe, folder, quiet())
    return seen


def draws(recipe: Recipe, folder: Path) -> list[float]:
    """What chance gives the forward pass of each step."""
    differentiate, drawn = Step.differentiate, []

    def watched(step: Step, *given: Any) -> Outcome:
        drawn.append(torch.rand(()).item())
        return differentiate(step, *given)

    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr(Step, "differentiate", watched)
        train(recipe, folder, quiet())
    return drawn


def refusal(recipe: Recipe, folder: Path) -> str:
    with pytest.raises(UserError) as refused:
        train(recipe, folder, quiet())
    return str(refused.value)


def refusal_where_the_last_has_no_room(recipe: Recipe, folder: Path, step: int) -> str:
    """From that step on."""
    advance = Trainer.advance

    def limited(trainer: Trainer) -> None:
        advance(trainer)
        if trainer.step == step and trainer.world.rank == trainer.world.size - 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "advance", limited)
        return refusal(recipe, folder)


Text = tuple[np.ndarray, Protocol, np.ndarray | None]


def scores(model: nn.Module, texts: list[Text]) -> list[Score]:
    world = World.join("cpu")
    return [evaluate(model, ids, protocol, None, 1, world, 64, documents) for ids, protocol, documents in texts]


def echoes(lines: list[str]) -> list[list[Any]]:
    """What all processes find together, where the translation of a line is the line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "translate", lambda model, codec, lines, *_: [[line] for line in lines])
        return translation.translate_together(nn.Identity(), ByteCodec(), lines, Greedy(), World.join("cpu"))


def answer(words: list[str]) -> str:
    """Of the command line."""
    with redirect_stdout(StringIO()) as said:
        main(words)
    return said.getvalue()
