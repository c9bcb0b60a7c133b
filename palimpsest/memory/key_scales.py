"""Key scales: how large the features of a key, and of a query, may be."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..bounds import bounded
from ..spec import NotNegative, Spec


class KeyScale(Spec):
    needs_non_negative: ClassVar[bool] = False
    keeps_sizes: ClassVar[bool] = False  # whether a key that was larger than another still is

    def __call__(self, features: Tensor) -> Tensor:
        raise NotImplementedError

    def numbers(self) -> dict[str, float]:
        """What a kernel that knows this scale by its name must still be told."""
        return {}


@dataclass(frozen=True)
class Unscaled(KeyScale):
    """Features as they are."""

    keeps_sizes = True

    def __call__(self, features: Tensor) -> Tensor:
        return features


@dataclass(frozen=True)
class SumToOne(KeyScale):
    """Features divided by their sum: a key that is a distribution, erased exactly when β is one and it is one-hot."""

    floor: NotNegative = 1e-6  # a smaller sum counts as this much: features that are all zero stay zero
    needs_non_negative = True

    def __call__(self, features: Tensor) -> Tensor:
        return features / bounded(features.sum(-1, keepdim=True), least=self.floor)

    def numbers(self) -> dict[str, float]:
        return {"floor": self.floor}


@dataclass(frozen=True)
class UnitNorm(KeyScale):
    """Features of length one: what a key stored is erased exactly when β is one."""

    epsilon: NotNegative = 1e-6

    def __call__(self, features: Tensor) -> Tensor:
        return features * (features.square().sum(-1, keepdim=True) + self.epsilon).rsqrt()

    def numbers(self) -> dict[str, float]:
        return {"floor": self.epsilon}
