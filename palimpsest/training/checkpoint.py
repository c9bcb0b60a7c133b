"""Checkpoints: complete or absent, the newest few and the best kept.

checkpoints/step-00000500/model.safetensors   the weights, readable by anyone
                          training.pt         all else that is needed to go on as if nothing had happened
                          manifest.json       checksums of all, written last
            best.json                         which of them scored best in validation

Where the weights are shared out, what goes with them is too: the tensors of training.pt are then in

                          shards/             one file for each process, readable by any number of them

`step-….partial` is one being written or removed, `step-….damaged` one that could not be read: neither counts.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from ..errors import UserError
from ..files import flush, write_atomically
from ..shards import (
    as_shares,
    blank,
    fill,
    is_share,
    kept_aside,
    lines_of_their_own,
    local,
    read_shares,
    whole,
    write_shares,
)
from ..world import ALONE, World

MANIFEST = "manifest.json"
SHARDS = "shards"
FAILURES = (OSError, SafetensorError, RuntimeError)  # a full disk is any of these, by who writes


class Checkpoints:
    """The first process writes, for all."""

    def __init__(self, folder: Path, keep: int = 2, world: World = ALONE):
        self.folder, self.keep, self.world = folder, keep, world

    def all(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(path for path in self.folder.glob("step-*") if not path.suffix)

    def save(self, step: int, model: nn.Module, training: dict[str, Any]) -> Path:
        return self.world.first(lambda: self.write(step, model, training))

    def write(self, step: int, model: nn.Module, training: dict[str, Any]) -> Path:
        final = self.folder / f"step-{step:08d}"
        if is_whole(final):  # the same step, reached again after a resume: the same numbers
            return final
        partial = self.make_room(final)
        try:
            partial.mkdir(parents=True)
            write_files(partial, model, training)
            self.put_in_place(partial, final)
        except FAILURES as error:
            raise self.given_up(partial, error) from error
        return final

    def finish(self) -> None:
        """Until all that was to be saved is."""

    def look_after(self) -> None:
        """Called after each step: put in place what has been written meanwhile."""

    def rows_of_all(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Of carried state, to be saved: the rows of all processes."""
        return [self.world.join_rows(leaf) for leaf in leaves]

    def own_rows(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Of what was saved, the rows of this process."""
        return [local(leaf) if is_share(leaf) else leaf[self.world.rows(len(leaf))] for leaf in leaves]

    def make_room(self, final: Path) -> Path:
        """Where it can be written; a run that was killed while it saved may have left something."""
        self.remove("partial")
        return final.with_suffix(".partial")

    def put_in_place(self, partial: Path, final: Path) -> None:
        seal(partial)
        self.set_aside(final)
        os.replace(partial, final)
        flush(self.folder)

    def given_up(self, partial: Path, error: BaseException) -> UserError:
        refusal = UserError(self.refuse(partial.stem, error))
        shutil.rmtree(partial, ignore_errors=True)
        return refusal

    def refuse(self, name: str, error: BaseException) -> str:
        run, before = self.folder.parent, [path.name for path in self.all()]
        kept = f"{before[-1]} is whole" if before else "there is none before it"
        free = f"{shutil.disk_usage(run).free / 2**30:.2f} GiB free"
        return (
            f"{self.folder / name} could not be written ({first_line(error)}; {free}), but {kept}: "
            f"make room on that disk, then go on with `palimpsest resume {shlex.quote(str(run))}`"
        )

    def set_aside(self, checkpoint: Path) -> None:
        """One that cannot be read no longer counts; it goes when a new one has been written."""
        if checkpoint.exists():
            aside = checkpoint.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(checkpoint, aside)

    def mark_best(self, step: int, nats: float) -> None:
        self.world.first(lambda: self.write_mark(step, nats))

    def write_mark(self, step: int, nats: float) -> None:
        write_atomically(self.folder / "best.json", json.dumps({"step": step, "nats": nats}) + "\n")

    def prune(self) -> None:
        self.world.first(self.remove_old)

    def remove_old(self) -> None:
        keep = {*self.all()[-self.keep :], self.best()}
        for path in self.all():
            if path not in keep:
                # under a name that does not count first: one half removed would look damaged
                os.replace(path, path.with_suffix(".partial"))
        self.remove("partial")
        self.remove("damaged")

    def remove(self, suffix: str) -> None:
        for path in self.folder.glob(f"step-*.{suffix}"):
            shutil.rmtree(path)

    def best(self) -> Path | None:
        try:
            return self.folder / f"step-{json.loads((self.folder / 'best.json').read_text())['step']:08d}"
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a file that cannot be read names none
            return None

    def find(self, name: str) -> Path:
        """`best`, `latest` or the name of one."""
        found = self.all()
        if not found:
            raise UserError(f"there is no checkpoint in {self.folder} yet")
        if name == "latest" or (name == "best" and self.best() not in found):
            return found[-1]
        path = self.best() if name == "best" else self.folder / name
        if path is None or path not in found:
            raise UserError(f"no checkpoint {name!r} in {self.folder}; there are {', '.join(p.name for p in found)}")
        return path

    def find_all(self, name: str) -> list[Path]:
        """`last-5` is the newest five; any other name is that of one."""
        newest = re.fullmatch(r"last-([1-9]\d*)", name)
        if newest is None:
            return [self.find(name)]
        found, wanted = self.all(), int(newest[1])
        if len(found) < wanted:
            raise UserError(
                f"{self.folder} has {len(found)} checkpoints, not {wanted}: train with --run.keep {wanted} for so many"
            )
        return found[-wanted:]


def load_mean(model: nn.Module, checkpoints: Sequence[Path]) -> None:
    """The mean of their parameters; buffers are those of the newest."""
    means = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.parameters()]
    for checkpoint in checkpoints:
        load_weights(model, checkpoint)
        for mean, parameter in zip(means, model.parameters(), strict=True):
            mean += parameter.detach() / len(checkpoints)
    with torch.no_grad():
        for mean, parameter in zip(means, model.parameters(), strict=True):
            parameter.copy_(mean)


class Pending(NamedTuple):
    """A checkpoint that is being written."""

    partial: Path
    final: Path
    writing: Future[None]


class SharedCheckpoints(Checkpoints):
    """Every process writes its shares, from a copy, while the training goes on; the first one puts them in place."""

    def __init__(self, folder: Path, keep: int = 2, world: World = ALONE):
        super().__init__(folder, keep, world)
        self.writer, self.lines = ThreadPoolExecutor(1), lines_of_their_own()
        self.pending: Pending | None = None
        self.afterwards: list[Callable[[], None]] = []  # what waits until it is in place

    def save(self, step: int, model: nn.Module, training: dict[str, Any]) -> Path:
        self.finish()
        final = self.folder / f"step-{step:08d}"
        if self.world.first(lambda: is_whole(final)):
            return final
        partial = self.world.first(lambda: self.make_room(final))
        copies: list[Tensor] = []

        def taken_out(tensor: Tensor) -> Tensor:
            copies.append(kept_aside(tensor, self.world))
            return torch.empty(0, device="meta")

        rest = map_tensors(taken_out, training)
        model = whole(model, torch.device("cpu"))
        self.pending = Pending(partial, final, self.writer.submit(self.write_all, partial, model, rest, copies))
        return final

    def write_all(self, partial: Path, model: nn.Module, rest: dict[str, Any], tensors: list[Tensor]) -> None:
        named = {str(number): tensor for number, tensor in enumerate(tensors)}
        write_shares(partial / SHARDS, named, self.lines)
        if self.world.is_first:
            write_files(partial, model, rest | {SHARDS: [name for name in named if is_share(named[name])]})

    def look_after(self) -> None:
        if self.pending is not None and not self.world.any(not self.pending.writing.done()):
            self.finish()

    def finish(self) -> None:
        if self.pending is None:
            return
        partial, final, writing = self.pending
        self.pending = None
        failure = writing.exception()
        if self.world.any(failure is not None):
            self.world.together(lambda: self.say_why(partial, failure))
        self.world.first(lambda: self.conclude(partial, final))
        actions, self.afterwards = self.afterwards, []
        for action in actions:
            action()

    def conclude(self, partial: Path, final: Path) -> None:
        try:
            self.put_in_place(partial, final)
        except FAILURES as error:
            raise self.given_up(partial, error) from error

    def say_why(self, partial: Path, failure: BaseException | None) -> None:
        if failure is not None:
            raise self.given_up(partial, failure)

    def mark_best(self, step: int, nats: float) -> None:
        self.later(lambda: Checkpoints.mark_best(self, step, nats))

    def prune(self) -> None:
        self.later(lambda: Checkpoints.prune(self))

    def later(self, action: Callable[[], None]) -> None:
        """Best and newest are only what is in place."""
        if self.pending is None:
            action()
        else:
            self.afterwards.append(action)

    def rows_of_all(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        return [as_shares(leaf, self.world) for leaf in leaves]


def write_files(folder: Path, model: nn.Module, training: Any) -> None:
    save_model(model, str(folder / "model.safetensors"))
    torch.save(training, folder / "training.pt")


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply it to the tensors among dictionaries, lists and tuples."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: map_tensors(function, branch) for name, branch in tree.items()}
    return type(tree)(map_tensors(function, branch) for branch in tree) if isinstance(tree, list | tuple) else tree


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    check(checkpoint, "model.safetensors")
    into = blank(model)
    try:
        load_model(into, str(checkpoint / "model.safetensors"))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(
            f"the weights in {checkpoint} do not fit the recipe or are damaged: {first_line(error)}"
        ) from error
    fill(model, into)


def load_training(checkpoint: Path, world: World = ALONE) -> dict[str, Any]:
    """All but the weights; what was shared out among some processes is shared out among those that there are."""
    check(checkpoint, "training.pt")
    for name in shards_of(checkpoint)[world.rank :: world.size]:  # who is refused is so for all
        check(checkpoint, name)
    try:
        saved = torch.load(checkpoint / "training.pt", map_location="cpu", weights_only=True)
        if SHARDS in saved:
            tensors = read_shares(checkpoint / SHARDS, saved.pop(SHARDS), world)
            supply = (tensors[str(number)] for number in range(len(tensors)))
            saved = map_tensors(lambda _: next(supply), saved)
        return saved
    except Exception as error:  # bytes that are no pickle can raise nearly anything
        raise UserError(f"the training state in {checkpoint} is damaged: {first_line(error)}") from error


def seal(folder: Path) -> None:
    """Onto the disk, every file before the manifest that vouches for it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for file in (*files, *(path for path in folder.iterdir() if path.is_dir())):
        flush(file)
    sums = {file.relative_to(folder).as_posix(): checksum(file) for file in files}
    write_atomically(folder / MANIFEST, json.dumps(sums, indent=2) + "\n")


def check(checkpoint: Path, name: str) -> None:
    """Refuse a file that is not what was written; one from before there were manifests is taken as it is."""
    manifest = read_manifest(checkpoint)
    try:
        found = checksum(checkpoint / name)
    except OSError as error:
        raise UserError(f"{checkpoint} is damaged: {name} cannot be read ({first_line(error)})") from error
    if manifest is not None and (not isinstance(manifest, dict) or manifest.get(name) != found):
        raise UserError(f"{checkpoint} is damaged: {name} is not what was written there")


def read_manifest(checkpoint: Path) -> Any:
    try:
        return json.loads((checkpoint / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint} is damaged: {MANIFEST} cannot be read ({first_line(error)})") from error


def shards_of(checkpoint: Path) -> list[str]:
    """The files of the shares, as its manifest names them."""
    manifest = read_manifest(checkpoint)
    return sorted(name for name in manifest if "/" in name) if isinstance(manifest, dict) else []


def is_whole(checkpoint: Path) -> bool:
    try:
        for name in ("model.safetensors", "training.pt", *shards_of(checkpoint)):
            check(checkpoint, name)
    except UserError:
        return False
    return True


def checksum(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
