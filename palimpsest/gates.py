"""How much of the page is kept, erased and written at each token."""

from typing import NamedTuple

from torch import Tensor


class Gates(NamedTuple):
    """A gate that is None is not there: nothing is forgotten, nothing is erased, everything is written.

    `keep` comes as its logarithm, because a product of many of them underflows; it must be finite.
    """

    log_keep: Tensor | None = None  # b t h, or b t h k for one number per key feature
    erase: Tensor | None = None  # b t h
    write: Tensor | None = None  # b t h

    def to(self, dtype) -> "Gates":
        return Gates(*(None if gate is None else gate.to(dtype) for gate in self))
