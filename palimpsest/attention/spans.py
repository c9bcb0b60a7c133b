"""Spans: how far back attention looks. The cached and the adaptive ones have their place here too."""

from dataclasses import dataclass

from torch import Tensor

from ..errors import UserError
from ..spec import Spec


class Span(Spec):
    def slots(self) -> int:
        """How many earlier tokens a fresh cache has room for."""
        raise NotImplementedError

    def allows(self, distances: Tensor) -> Tensor:
        """Which distances, query place minus key place, may be seen; the future lies at negative ones."""
        return distances >= 0

    def covers(self, length: int) -> bool:
        """Whether every earlier token of a fresh segment of this length may be seen."""
        return True

    def trim(self, cache: Tensor) -> Tensor:
        """What has to be kept of a cache `b s …` for the next segment."""
        return cache


@dataclass(frozen=True)
class Unlimited(Span):
    """All that came before; the cache grows with the text."""

    def slots(self) -> int:
        return 0


@dataclass(frozen=True)
class Fixed(Span):
    """The last `length` tokens, the present one included; the cache has that size and no more."""

    length: int = 256

    def __post_init__(self):
        if self.length < 1:
            raise UserError(f"a span covers at least the present token; found a length of {self.length}")

    def slots(self) -> int:
        return self.length - 1

    def covers(self, length: int) -> bool:
        return length <= self.length

    def allows(self, distances: Tensor) -> Tensor:
        return (distances >= 0) & (distances < self.length)

    def trim(self, cache: Tensor) -> Tensor:
        return cache[:, cache.shape[1] - self.slots() :]
