"""Schedules: the share of the learning rate used at each step, between zero and one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi

from ..spec import Between, Count, Share, Spec

Validations = Sequence[tuple[int, float]]  # how many updates had been made, and the nats that were found


class Schedule(Spec):
    warmup: int

    def share(self, step: int, steps: int, validations: Validations = ()) -> float:
        """For the update after `step` earlier ones; the first one of a warm-up is already above zero."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.after_warmup(step, steps, validations)

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        raise NotImplementedError

    def progress(self, step: int, steps: int) -> float:
        """From the end of the warm-up to that of the run: zero to one."""
        return min(1.0, (step - self.warmup) / max(1, steps - self.warmup))


@dataclass(frozen=True)
class Constant(Schedule):
    """The whole rate, after the warm-up."""

    warmup: Count = 0

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the whole rate down to `floor`."""

    warmup: Count = 0
    floor: Share = 0.0

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * self.progress(step, steps))) / 2


@dataclass(frozen=True)
class LinearCooldown(Schedule):
    """Warm-up, stable, decay: the whole rate, then a straight line down to `floor` over the last `cooldown` of the run.

    The cooldown is a share of the steps after the warm-up.
    """

    warmup: Count = 0
    cooldown: Share = 0.6
    floor: Share = 0.0

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        left = 1 - self.progress(step, steps)
        return self.floor + (1 - self.floor) * min(1.0, left / self.cooldown) if self.cooldown else 1.0


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """The whole rate, then less: half of it after four times the steps of the warm-up."""

    warmup: Count = 0

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        return ((self.warmup + 1) / (step + 1)) ** 0.5


@dataclass(frozen=True)
class Plateau(Schedule):
    """The whole rate, times `factor` whenever more than `patience` validations in a row have brought nothing."""

    warmup: Count = 0
    factor: Between = 0.5
    patience: Count = 0
    floor: Share = 0.0
    threshold: float = 1e-4  # what has become better by a smaller share has not become better

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        share = 1.0
        for _ in self.plateaus([found for found in validations if found[0] > self.warmup]):
            share = self.lowered(share)
        return share

    def lowered(self, share: float) -> float:
        return min(share, max(share * self.factor, self.floor))

    def plateaus(self, validations: Validations) -> Iterator[int]:
        """How many updates had been made each time that patience ran out."""
        best, waited = float("inf"), 0
        for step, nats in validations:
            if nats < best * (1 - self.threshold):
                best, waited = nats, 0
            else:
                waited += 1
            if waited > self.patience:
                waited = 0
                yield step
