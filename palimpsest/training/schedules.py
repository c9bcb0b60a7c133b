"""Schedules: the share of the learning rate used at each step, between zero and one."""

from dataclasses import dataclass
from math import cos, pi

from ..spec import Spec


class Schedule(Spec):
    warmup: int

    def share(self, step: int, steps: int) -> float:
        """For the update after `step` earlier ones; the first one of a warm-up is already above zero."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.after_warmup((step - self.warmup) / max(1, steps - self.warmup))

    def after_warmup(self, progress: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """The whole rate, after the warm-up."""

    warmup: int = 0

    def after_warmup(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the whole rate down to `floor`."""

    warmup: int = 0
    floor: float = 0.0

    def after_warmup(self, progress: float) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * min(progress, 1.0))) / 2


@dataclass(frozen=True)
class LinearCooldown(Schedule):
    """The whole rate, then a straight line down to `floor` over the last `cooldown` of the run."""

    warmup: int = 0
    cooldown: float = 0.6
    floor: float = 0.0

    def after_warmup(self, progress: float) -> float:
        left = 1 - min(progress, 1.0)
        return self.floor + (1 - self.floor) * min(1.0, left / self.cooldown) if self.cooldown else 1.0
