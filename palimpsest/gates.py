"""How much of the page is kept, erased and written at each token."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Gates(NamedTuple):
    """A gate that is None is not there: nothing is forgotten, nothing is erased, everything is written.

    `keep` comes as its logarithm, because a product of many of them underflows; −∞ wipes the page.
    """

    log_keep: Tensor | None = None  # b t h, or b t h k for one number per key feature
    erase: Tensor | None = None  # b t h
    write: Tensor | None = None  # b t h
    limit: float | None = None  # where there is one, erase and write come as logits: each is limit · σ(logit)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Gates":
        """The same with every gate that is there changed."""
        log_keep, erase, write = (None if gate is None else change(gate) for gate in self[:3])
        return Gates(log_keep, erase, write, self.limit)

    def to(self, dtype) -> "Gates":
        return self.each(lambda gate: gate.to(dtype))

    def opened(self) -> "Gates":
        """The same without logits."""
        if self.limit is None:
            return self
        erase = None if self.erase is None else self.limit * self.erase.sigmoid()
        same = self.write is self.erase
        write = erase if same else None if self.write is None else self.limit * self.write.sigmoid()
        return Gates(self.log_keep, erase, write)

    def wiping(self, starts: Tensor | None, like: Tensor) -> "Gates":
        """The same, on a page that is fresh again where `starts` `b t` is true; `like` is `b t h …`."""
        if starts is None:
            return self
        log_keep = like.new_zeros(like.shape[:3]) if self.log_keep is None else self.log_keep
        where = starts.view(*starts.shape, *[1] * (log_keep.ndim - 2))
        return self._replace(log_keep=log_keep.masked_fill(where, -torch.inf))
