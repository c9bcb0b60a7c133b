"""In which numbers a model computes while it is trained.

Weights, their gradients, what optimisers remember and the pages of memories are float32 in all of them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..spec import Positive, Size, Spec

SMALLEST = 2.0**-14  # a loss that needs to be scaled down farther than this is lost


class Precision(Spec):
    def at_work(self, device: torch.device) -> AbstractContextManager[Any]:
        """A pass through the model, and back, is made within this."""
        return nullcontext()

    def scaling(self) -> "Scaling | None":
        """By what losses are multiplied, where gradients would be too small for the numbers they are made in."""
        return None


@dataclass(frozen=True)
class Single(Precision):
    """float32 throughout."""


@dataclass(frozen=True)
class TensorFloat32(Precision):
    """float32, of which products on a GPU see 10 bits behind the point."""

    @contextmanager
    def at_work(self, device: torch.device) -> Iterator[None]:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class BFloat16(Precision):
    """Products in bfloat16: the choice for GPUs that have it."""

    def at_work(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.bfloat16)


@dataclass(frozen=True)
class Float16(Precision):
    """Products in float16, for older GPUs; the loss is scaled, and a step whose gradient overflows is left out."""

    scale: Positive = 2.0**16  # to begin with
    double_after: Size | None = 2000  # steps without overflow; None: the scale stays, and an overflow ends the run

    def at_work(self, device: torch.device) -> AbstractContextManager[Any]:
        return torch.autocast(device.type, torch.float16)

    def scaling(self) -> "Scaling":
        return Scaling(self)


class Scaling:
    """The scale of a loss: half as large after an overflow, twice as large after many steps without one."""

    def __init__(self, spec: Float16):
        self.spec, self.scale, self.streak = spec, spec.scale, 0

    def judge(self, finite: bool) -> bool:
        """Whether to take the step whose gradient is finite or not."""
        if self.spec.double_after is None:
            return True
        if finite:
            self.streak += 1
            if self.streak == self.spec.double_after:
                self.scale, self.streak = 2 * self.scale, 0
            return True
        self.scale, self.streak = self.scale / 2, 0
        return self.scale < SMALLEST  # then it is not the scale: the step is taken, and found to be the end

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.streak = state["scale"], state["streak"]
