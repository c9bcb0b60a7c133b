"""Many retrieval runs: in processes of a CPU, or all at a time on one GPU. What has a result is not run again.

On a GPU a step is captured once and replayed, every run has a queue of its own, and runs that are shown the same chance
share their batches, which other processes draw ahead.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from copy import deepcopy
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from ..data.retrieval import Period, Source
from ..errors import UserError
from ..files import append_line
from ..report.retrieval import RESULTS, read_results
from .retrieval import Outcome, Run, Shelf, load_unfinished, measure, place_of, read_unfinished, save_unfinished

AT_ONCE = 24  # groups of runs on a GPU
SLICE = 2000  # tokens handed to the GPU at a time, by a run that loops over them: more would keep others waiting

Finish = Callable[[Outcome], None]


def sweep(
    outcomes: list[Outcome],
    folder: Path,
    device: torch.device,
    processes: int = 1,
    minutes: float | None = None,
    say: Callable[[str], object] = print,
) -> int:
    """Carries out whatever the folder has no result of yet; returns how many runs are left when the time is up."""
    folder.mkdir(parents=True, exist_ok=True)
    until = float("inf") if minutes is None else time.time() + 60 * minutes
    waiting = without_result(outcomes, folder)
    if len(waiting) < len(outcomes):
        say(f"{len(outcomes) - len(waiting)} of {len(outcomes)} runs are already in {folder / RESULTS}")

    def finish(outcome: Outcome) -> None:
        append_line(folder / RESULTS, json.dumps(outcome.to_json()))
        place_of(folder, outcome).unlink(missing_ok=True)
        say(outcome.line())

    on = sweep_on_gpu if device.type == "cuda" else sweep_on_cpu
    on(waiting, folder, device, processes, until, finish)
    left = len(without_result(outcomes, folder))
    if left:
        say(f"the time is up: {left} of {len(outcomes)} runs are left, and the same command goes on with them")
    return left


def without_result(outcomes: list[Outcome], folder: Path) -> list[Outcome]:
    finished = {result["name"]: result["asked"] for result in read_results(folder)}
    for outcome in outcomes:
        if finished.get(outcome.name, outcome.asked.told()) != outcome.asked.told():
            raise UserError(
                f"{folder / RESULTS} already has another run called {outcome.name!r}: "
                f"choose another --label, or another --folder"
            )
    return [outcome for outcome in outcomes if outcome.name not in finished]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,))


def sweep_on_cpu(
    waiting: list[Outcome], folder: Path, device: torch.device, processes: int, until: float, finish: Finish
) -> None:
    run = partial(measure, folder=folder, until=until)
    if min(processes, len(waiting)) <= 1:
        for outcome in map(run, waiting):
            if outcome.end is not None:
                finish(outcome)
        return
    with workers(processes) as pool:
        for future in as_completed([pool.submit(run, outcome) for outcome in waiting]):
            if future.result().end is not None:
                finish(future.result())


# --------------------------------------------------------------------------------------------- all in one process


def sweep_on_gpu(
    waiting: list[Outcome], folder: Path, device: torch.device, processes: int, until: float, finish: Finish
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.cuda.device(device):
        kind = partial(CapturedRun, evaluations=torch.cuda.Stream())
        sweep_together(waiting, folder, kind, device, processes, until, finish)


def sweep_together(
    waiting: list[Outcome],
    folder: Path,
    kind: "Callable[[Outcome, Shelf, torch.device], SteppedRun]",
    device: torch.device,
    processes: int,
    until: float,
    finish: Finish,
) -> None:
    """Groups of runs take turns: while the device is busy with one, another is given its next steps."""
    queue = sorted(together(waiting, folder), key=cost, reverse=True)
    with workers(processes) as pool:
        active: list[Iterator[None]] = []
        while queue or active:
            if time.time() >= until:
                queue.clear()
            while queue and len(active) < AT_ONCE:
                active.append(Group(queue.pop(0), folder, kind, device, pool).follow(until, finish))
            active = still(active)
            time.sleep(1e-4)  # let what comes from the other processes in


def still(under_way: list[Iterator[None]]) -> list[Iterator[None]]:
    """Each goes on for a moment; those that have more to do are left."""
    return [each for each in under_way if next(each, StopIteration) is not StopIteration]


def together(waiting: list[Outcome], folder: Path) -> list[list[Outcome]]:
    """Runs that read the same batches from the same place on, and take about as long over them."""
    groups: dict[tuple, list[Outcome]] = {}
    for outcome in waiting:
        asked, kept = outcome.asked, read_unfinished(folder, outcome)
        progress = len(kept["scores"]) if kept else 0
        chance = (asked.task, asked.batch, asked.seed, asked.every, asked.sequences, progress, loops(outcome))
        groups.setdefault(chance, []).append(outcome)
    return list(groups.values())


def loops(outcome: Outcome) -> bool:
    """Whether its memory can only be written a token at a time."""
    return getattr(getattr(outcome.asked.model, "memory", None), "token_by_token", False)


def cost(group: list[Outcome]) -> tuple[bool, int]:
    """What takes longest begins first."""
    return loops(group[0]), group[0].asked.task.length


def draw(source: Source, every: int, sequences: int) -> tuple[Source, Period]:
    """A period, and the source after it: all that the other processes do."""
    return source, source.period(every, sequences)


class Group:
    """Runs that read the same batches. `follow` never waits: it goes on when it is asked to."""

    def __init__(self, outcomes: list[Outcome], folder: Path, kind: Callable, device: torch.device, pool: Executor):
        self.outcomes, self.asked = outcomes, outcomes[0].asked
        self.folder, self.kind, self.device, self.pool = folder, kind, device, pool
        self.shelf, self.source = Shelf(device), self.asked.open()
        kept = read_unfinished(folder, outcomes[0])
        if kept is not None:
            self.source.seek(json.loads(kept["position"]))

    def ahead(self) -> Future:
        return self.pool.submit(draw, deepcopy(self.source), self.asked.every, self.asked.sequences)

    def follow(self, until: float, finish: Finish) -> Iterator[None]:
        coming, runs = self.ahead(), []
        while time.time() < until:
            while not coming.done():
                yield
            start = time.monotonic()
            self.source, period = coming.result()
            coming = self.ahead()
            self.shelf.fill(period)
            runs = runs or [self.start(outcome) for outcome in self.outcomes]
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # the shelf is filled, the runs are ready
            under_way = [run.period() for run in runs]
            while under_way:
                yield
                under_way = still(under_way)
            for run in runs:
                run.outcome.seconds += time.monotonic() - start
                if run.outcome.end is not None:
                    finish(run.outcome)
            runs = [run for run in runs if run.outcome.end is None]
            if not runs:
                break
        coming.cancel()
        for run in runs:
            save_unfinished(self.folder, run, self.source)

    def start(self, outcome: Outcome) -> "SteppedRun":
        run = self.kind(outcome, self.shelf, self.device)
        load_unfinished(self.folder, run, self.asked.open())
        return run


class SteppedRun(Run):
    """A run that is carried out a period at a time, beside others."""

    def period(self) -> Iterator[None]:
        self.begin()
        for _ in range(self.asked.every):
            self.step()
            yield
        self.note(self.evaluate())


class CapturedRun(SteppedRun):
    """A run whose step is a CUDA graph. What is not captured goes through one queue for all runs."""

    def __init__(self, outcome: Outcome, shelf: Shelf, device: torch.device, evaluations: torch.cuda.Stream):
        super().__init__(outcome, shelf, device)
        self.queue, self.evaluations, self.graph = torch.cuda.Stream(), evaluations, torch.cuda.CUDAGraph()
        self.at_once = max(1, SLICE // self.asked.task.length) if loops(outcome) else self.asked.every // 4 or 1
        self.found = torch.empty(2, dtype=torch.float64, pin_memory=True)
        self.begin()
        self.capture()
        self.generator.manual_seed(self.asked.seed)  # as if nothing had been drawn to get ready

    def capture(self) -> None:
        first = [tensor.clone() for tensor in self.tensors()]
        self.queue.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.queue):
            for _ in range(2):  # libraries make themselves ready
                self.step()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph, stream=self.queue):
            self.step()
        self.restore(first)

    def period(self) -> Iterator[None]:
        """The steps a few at a time, then the evaluation; yields while the GPU is at it."""
        with torch.cuda.stream(self.evaluations):
            self.begin()
        self.queue.wait_stream(self.evaluations)
        for start in range(0, self.asked.every, self.at_once):
            with torch.cuda.stream(self.queue):
                for _ in range(start, min(start + self.at_once, self.asked.every)):
                    self.graph.replay()
            yield from until_done(self.queue)
        with torch.cuda.stream(self.evaluations):
            self.found.copy_(self.evaluate(), non_blocking=True)
        yield from until_done(self.evaluations)
        self.note(self.found)


def until_done(queue: torch.cuda.Stream) -> Iterator[None]:
    done = torch.cuda.Event()
    done.record(queue)
    while not done.query():
        yield
