"""The learning rates of the original toolkits, update for update."""

from dataclasses import dataclass
from math import cos, pi

from ..spec import Count, Share
from ..training.schedules import Plateau, Schedule, Validations


class AfterEachUpdate(Schedule):
    """The rate is set after an update and for the next one: the first of all has the whole rate."""

    def share(self, step: int, steps: int, validations: Validations = ()) -> float:
        if step < self.warmup:
            return self.warming(step)
        return self.after_warmup(step, steps, validations)

    def warming(self, step: int) -> float:
        return step / self.warmup if step else 1.0

    def warmed(self) -> float:
        """What the warm-up ends with, one update too early."""
        return self.warming(max(0, self.warmup - 1))


@dataclass(frozen=True)
class TransformerXLCosine(AfterEachUpdate):
    """Transformer-XL's cosine: counted from the first update, warm-up or not."""

    warmup: Count = 0
    floor: Share = 0.0  # eta_min, as a share of the rate

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * min(1.0, step / steps))) / 2


@dataclass(frozen=True)
class TransformerXLConstant(AfterEachUpdate):
    """Transformer-XL's constant rate: after a warm-up it stays short of the whole."""

    warmup: Count = 0

    def after_warmup(self, step: int, steps: int, validations: Validations) -> float:
        return self.warmed()


@dataclass(frozen=True)
class TransformerXLPlateau(AfterEachUpdate, Plateau):
    """Transformer-XL's dev_perf: as Plateau, with a warm-up that stays short and undoes what is lowered during it."""

    def share(self, step: int, steps: int, validations: Validations = ()) -> float:
        last_set = min(step, max(0, self.warmup - 1))
        share = self.warming(last_set)
        for lowered_at in self.plateaus([found for found in validations if found[0] <= step]):
            if lowered_at >= last_set:
                share = self.lowered(share)
        return share


@dataclass(frozen=True)
class TransformerXLInverseSquareRoot(Schedule):
    """Transformer-XL's inverse square root: nothing at first, at most 1 / √warmup."""

    warmup: Count = 0

    def share(self, step: int, steps: int, validations: Validations = ()) -> float:
        if step > self.warmup:
            return step**-0.5
        return step / self.warmup**1.5 if self.warmup else 1.0


@dataclass(frozen=True)
class AdaptiveSpanWarmup(Schedule):
    """adaptive-span's rate: the warm-up's last update has the whole of it, and so have all that follow."""

    warmup: Count = 0

    def share(self, step: int, steps: int, validations: Validations = ()) -> float:
        return min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
