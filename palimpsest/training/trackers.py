"""Trackers: other places that may be told the numbers of metrics.jsonl."""

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeGuard
from uuid import uuid4

from ..errors import UserError
from ..files import read_json, write_atomically
from ..serialise import PART, from_json, to_json
from ..spec import Spec

LONGEST = 128  # characters of a job's name
MODES = ("online", "offline", "disabled")
# of a run: nothing is learnt by them
BESIDE = ("device", "threads", "spread", "tracking", "log_every", "save_every", "keep")


class Tracker(Protocol):
    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Tracking(Spec):
    def require(self) -> Any:
        """The package that it takes, or a refusal where there is none."""

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        raise NotImplementedError


@dataclass(frozen=True)
class TensorBoard(Tracking):
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def require(self) -> ModuleType:
        return require("tensorboard")

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        self.require()
        return TensorBoardTracker(import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard")))


class TensorBoardTracker:
    def __init__(self, writer: Any):
        self.writer = writer

    def log(self, step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)
        self.writer.flush()  # a run that is killed takes nothing along

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True)
class WandB(Tracking):
    """Weights & Biases, online or off."""

    project: str = "palimpsest"
    job: str | None = None  # what the run is called there; None makes it of what differs from the default recipe
    mode: str | None = None  # online, offline or disabled; None leaves it to WANDB_MODE

    def __post_init__(self):
        if self.mode not in (None, *MODES):
            raise UserError(f"the mode of WandB is one of {', '.join(MODES)}; found {self.mode!r}")

    def require(self) -> ModuleType:
        return require("wandb")

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        run = self.require().init(
            project=self.project, name=self.job or job_name(recipe), id=identity(folder), dir=folder, config=recipe,
            mode=self.mode, resume="allow",
        )  # fmt: skip
        return WandBTracker(run)


class WandBTracker:
    def __init__(self, run: Any):
        self.run = run

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


@dataclass(frozen=True)
class Trackio(Tracking):
    """trackio: tables on this machine, for `trackio show`."""

    project: str = "palimpsest"
    job: str | None = None  # what the run is called there; None makes it of what differs from the default recipe

    def require(self) -> ModuleType:
        return require("trackio")

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        trackio = self.require()
        name = f"{self.job or job_name(recipe)} {identity(folder)}"  # it knows a run again by its name alone
        with redirect_stdout(sys.stderr):  # ours is for answers
            trackio.init(project=self.project, name=name, config=recipe, resume="allow")
        return TrackioTracker(trackio)


class TrackioTracker:
    def __init__(self, trackio: Any):
        self.trackio = trackio

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.trackio.log(numbers, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self.trackio.finish()


def job_name(recipe: dict[str, Any]) -> str:
    """`tiny-shakespeare width=96 DPFP nu=2`: the recipe's name, and in what it is not the default one."""
    learnt = {name: recipe[name] for name in ("run", "schedule", "optimiser", "model", "data")}  # oftenest tried first
    learnt["run"] = {name: value for name, value in recipe["run"].items() if name not in BESIDE}
    words = [recipe["name"], *changes(learnt, defaults(recipe))]
    kept = [word for i, word in enumerate(words) if len(" ".join(words[: i + 1])) <= LONGEST]
    return " ".join(kept)


def changes(part: dict[str, Any], default: dict[str, Any]) -> Iterator[str]:
    """A part that was exchanged is named, and what in it differs from its own defaults follows."""
    for name, value in part.items():
        usual = default.get(name)
        if name == PART or value == usual:
            continue
        if not is_part(value):
            yield f"{name}={spelled(value)}"
            continue
        if not is_part(usual) or value[PART] != usual[PART]:
            yield value[PART].split(":")[-1]
            usual = defaults(value)
        yield from changes(value, usual)


def defaults(part: dict[str, Any]) -> dict[str, Any]:
    return to_json(type(from_json(part, Spec))())


def is_part(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and PART in value


def spelled(value: Any) -> str:
    """Short and in one word."""
    return json.dumps(value, separators=(",", ":")).replace('"', "").replace(" ", "_")


def identity(folder: Path) -> str:
    """One for each run, kept with it: names of folders repeat from machine to machine."""
    path = folder / "tracking.json"
    if not path.exists():
        write_atomically(path, json.dumps({"id": uuid4().hex[:12]}) + "\n")
    return read_json(path)["id"]


def require(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is not installed: pip install 'palimpsest[{package}]'") from error
