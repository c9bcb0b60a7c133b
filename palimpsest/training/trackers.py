"""Trackers: other places that may be told the numbers of metrics.jsonl."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from ..errors import UserError
from ..spec import Spec


class Tracker(Protocol):
    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Tracking(Spec):
    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        raise NotImplementedError


@dataclass(frozen=True)
class TensorBoard(Tracking):
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        require("tensorboard")
        return TensorBoardTracker(import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard")))


class TensorBoardTracker:
    def __init__(self, writer: Any):
        self.writer = writer

    def log(self, step: int, numbers: dict[str, float]) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True)
class WandB(Tracking):
    """Weights & Biases; offline when WANDB_MODE says so."""

    project: str = "palimpsest"

    def open(self, folder: Path, recipe: dict[str, Any]) -> Tracker:
        wandb = require("wandb")
        run = wandb.init(
            project=self.project, name=folder.name, id=folder.name, dir=folder, config=recipe, resume="allow"
        )
        return WandBTracker(run)


class WandBTracker:
    def __init__(self, run: Any):
        self.run = run

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


def require(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is not installed: pip install 'palimpsest[{package}]'") from error
