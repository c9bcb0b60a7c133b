"""One retrieval run: a memory is shown pairs and asked for values until it is right, or no longer gets better.

A run goes by periods: so many steps, then an evaluation, after which it is over or not.
"""

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.retrieval import Capacity, Period, Questions, RetrievalTask, Source
from ..errors import UserError
from ..evaluation.retrieval import Score, score, squared_errors, verdict
from ..files import write_atomically
from ..models.retrieval_model import ProjectedPairs, RetrievalModel
from ..serialise import to_json
from ..spec import Size, Spec, parts_of
from ..world import in_this_thread

UNFINISHED = "unfinished"  # the folder of runs that were stopped
SAVE_EVERY = 60  # seconds


@dataclass(frozen=True)
class Retrieval(Spec):
    """A memory, what is asked of it, and how it is trained."""

    task: RetrievalTask = Capacity()
    model: RetrievalModel = ProjectedPairs()
    rate: float = 1e-3  # of Adam
    batch: Size = 32
    seed: int = 1
    steps: int = 100_000  # at most
    every: Size = 100  # steps between evaluations
    sequences: Size = 20  # shown at an evaluation
    criterion: float = 0.001  # the loss at which it is solved
    patience: Size = 10  # evaluations without a better one

    def __post_init__(self):
        super().__post_init__()
        if self.steps < self.every:
            raise UserError(f"{self.steps} steps are over before the first evaluation, which comes after {self.every}")
        if any(getattr(part, "redraw", None) for part in parts_of(self.model)):
            raise UserError("directions are not redrawn in a retrieval run, except by --legacy: leave redraw at None")

    def told(self) -> dict[str, Any]:
        """As it is found again in a file."""
        return json.loads(json.dumps(to_json(self)))

    def open(self) -> Source:
        return self.task.open(self.batch, self.seed)

    def over(self, scores: list[tuple[int, Score]]) -> str | None:
        """Why a run that was scored so is over, if it is."""
        end = verdict([found.loss for _, found in scores], self.criterion, self.patience)
        return end or ("steps" if scores and scores[-1][0] + self.every > self.steps else None)


@dataclass
class Outcome:
    """What became of a run, or what has so far."""

    asked: Retrieval
    label: str = "memory"  # what it is called in tables and figures
    scores: list[tuple[int, Score]] = field(default_factory=list)  # by step
    end: str | None = None
    seconds: float = 0.0  # by the clock, whoever else was busy

    @property
    def name(self) -> str:
        """Different for runs that are different in what figures show."""
        task = self.asked.task
        return f"{self.label} {type(task).__name__} {task.keys} seed {self.asked.seed}"

    def to_json(self) -> dict[str, Any]:
        task, (steps, last) = self.asked.task, self.scores[-1]
        return {
            "name": self.name,
            "label": self.label,
            "keys": task.keys,
            "length": task.length,
            "replace": int(task.replaces),
            "seed": self.asked.seed,
            "steps": steps,
            "loss": last.loss,
            "accuracy": last.accuracy,
            "end": self.end,
            "seconds": round(self.seconds, 2),
            "scores": [(step, *found) for step, found in self.scores],
            "asked": self.asked.told(),
        }

    def line(self) -> str:
        found = self.to_json()
        return (
            f"{self.label:<14} {found['keys']:>4} keys, {found['length']:>4} pairs, seed {found['seed']}: "
            f"{found['steps']:>6} steps, loss {found['loss']:<9.4g} accuracy {found['accuracy']:.3f}, "
            f"{self.end}, {self.seconds:.1f} s"
        )


class Shelf:
    """Where the batches of a period lie: always in the same place, since captured steps look nowhere else."""

    def __init__(self, device: torch.device):
        self.device = device
        self.batches: list[Tensor] = []
        self.evaluation: list[Tensor] = []

    def fill(self, period: Period) -> None:
        drawn = [torch.from_numpy(np.ascontiguousarray(each)) for each in period.batches]
        if not self.batches:
            self.batches = [each.to(self.device) for each in drawn]
        for mine, fresh in zip(self.batches, drawn, strict=True):
            mine.copy_(fresh)
        evaluation = [torch.from_numpy(np.ascontiguousarray(each)).to(self.device) for each in period.evaluation]
        self.evaluation = [each if each.is_floating_point() else each.long() for each in evaluation]

    def batch(self, cursor: Tensor) -> Questions:
        """The batch that the cursor points at."""
        fields = [each.index_select(0, cursor)[0] for each in self.batches]
        return Questions(*(each if each.is_floating_point() else each.long() for each in fields))


class Run:
    """A model in training. `step` reads the batch that its cursor points at, and can be captured."""

    def __init__(self, outcome: Outcome, shelf: Shelf, device: torch.device):
        asked = outcome.asked
        self.outcome, self.asked, self.shelf = outcome, asked, shelf
        self.network = asked.model.build(asked.task.keys, asked.task.keys, asked.seed).to(device)
        self.parameters = list(self.network.parameters())
        on_gpu = device.type == "cuda"
        self.optimiser = torch.optim.Adam(self.parameters, asked.rate, fused=True, capturable=on_gpu)
        self.generator = torch.Generator(device).manual_seed(asked.seed)
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.zeros(asked.every, dtype=self.parameters[0].dtype, device=device)  # of this period's steps
        self.chance: Tensor | None = None
        self.open_optimiser()

    def open_optimiser(self) -> None:
        """A step without gradients makes its averages, and moves nothing."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser.step()
        for state in self.optimiser.state.values():
            state["step"].zero_()

    def tensors(self) -> list[Tensor]:
        """All that training changes."""
        states, names = self.optimiser.state.values(), ("step", "exp_avg", "exp_avg_sq")
        return [
            *(parameter.detach() for parameter in self.parameters),
            *(one[name] for one in states for name in names),
        ]

    def restore(self, tensors: Iterable[Tensor]) -> None:
        for mine, kept in zip(self.tensors(), tensors, strict=True):
            mine.copy_(kept)

    def begin(self) -> None:
        """A new period lies on the shelf."""
        self.cursor.zero_()
        drawn = self.network.chance(self.asked.every, self.generator)
        if self.chance is None:
            self.chance = drawn
        elif drawn is not None:
            self.chance.copy_(drawn)

    def step(self) -> None:
        keys, values, queries, targets, _ = self.shelf.batch(self.cursor)
        chance = None if self.chance is None else self.chance.index_select(0, self.cursor)[0]
        self.optimiser.zero_grad(set_to_none=True)
        loss = squared_errors(self.network(keys, values, queries, chance), targets).mean()
        with in_this_thread():
            loss.backward()
        self.optimiser.step()
        self.losses.index_copy_(0, self.cursor, loss.detach()[None])
        self.cursor.add_(1)

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Loss and accuracy."""
        keys, values, queries, targets, weights = self.shelf.evaluation
        chance = self.network.chance(len(keys), self.generator)
        return score(self.network(keys, values, queries, chance), targets, weights)

    def note(self, found: Tensor) -> None:
        """A period is over; so is the run, perhaps."""
        scores = self.outcome.scores
        scores.append((self.asked.every * (len(scores) + 1), Score(*found.tolist())))
        self.outcome.end = self.asked.over(scores)


def measure(outcome: Outcome, folder: Path | None = None, until: float = float("inf")) -> Outcome:
    """One run on this CPU, to its end or until the time is up. With a folder, it goes on where it was stopped."""
    device = torch.device("cpu")
    shelf, source = Shelf(device), outcome.asked.open()
    run = Run(outcome, shelf, device)
    if folder is not None:
        load_unfinished(folder, run, source)
    saved = time.monotonic()
    while outcome.end is None and time.time() < until:
        start = time.monotonic()
        shelf.fill(source.period(run.asked.every, run.asked.sequences))
        run.begin()
        for _ in range(run.asked.every):
            run.step()
        run.note(run.evaluate())
        outcome.seconds += time.monotonic() - start
        if folder is not None and time.monotonic() > saved + SAVE_EVERY:
            save_unfinished(folder, run, source)
            saved = time.monotonic()
    if folder is not None and outcome.end is None:
        save_unfinished(folder, run, source)
    return outcome


def place_of(folder: Path, outcome: Outcome) -> Path:
    return folder / UNFINISHED / (re.sub(r"[^\w.+]+", "-", outcome.name) + ".pt")


def save_unfinished(folder: Path, run: Run, source: Source) -> None:
    outcome, buffer = run.outcome, BytesIO()
    kept = {
        "asked": json.dumps(outcome.asked.told()),
        "scores": [(step, *found) for step, found in outcome.scores],
        "seconds": outcome.seconds,
        "position": json.dumps(source.position()),
        "chance": run.generator.get_state(),
        "tensors": [tensor.cpu() for tensor in run.tensors()],
    }
    torch.save(kept, buffer)
    place = place_of(folder, outcome)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, buffer.getvalue())


def read_unfinished(folder: Path, outcome: Outcome) -> dict[str, Any] | None:
    """None where there is nothing, or where something else was asked for under this name."""
    place = place_of(folder, outcome)
    if not place.exists():
        return None
    kept = torch.load(place, weights_only=True)
    return kept if json.loads(kept["asked"]) == outcome.asked.told() else None


def load_unfinished(folder: Path, run: Run, source: Source) -> None:
    kept = read_unfinished(folder, run.outcome)
    if kept is None:
        return
    run.outcome.scores = [(step, Score(*found)) for step, *found in kept["scores"]]
    run.outcome.seconds = kept["seconds"]
    run.restore(kept["tensors"])
    run.generator.set_state(kept["chance"])
    source.seek(json.loads(kept["position"]))
