"""What a model reads: tokens, and the tokens that follow them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .state import map_state


class Batch(NamedTuple):
    inputs: Tensor  # b t
    targets: Tensor  # b t
    mask: Tensor | None = None  # b t, true where the target counts

    @classmethod
    def cut(cls, ids: np.ndarray, starts: Sequence[int] | np.ndarray, length: int, extra: int = 0) -> "Batch":
        """`length` tokens of a text from each of the starts on, and the tokens that follow them.

        The `extra` tokens before are inputs too, whose targets do not count.
        """
        return cls.at(ids, np.asarray(starts)[:, None] + np.arange(-extra, length), extra)

    @classmethod
    def at(cls, ids: np.ndarray, places: np.ndarray, extra: int = 0) -> "Batch":
        """The tokens at the given places, `b t`; the first `extra` of each row do not count, and no target is told."""
        ids = np.asarray(ids)
        inputs, targets = (torch.from_numpy(ids[where].astype(np.int64)) for where in (places, places + 1))
        targets[:, :extra] = 0
        return cls(inputs, targets, (torch.arange(inputs.shape[1]) >= extra).expand_as(inputs) if extra else None)

    def count(self) -> int:
        """How many targets count."""
        return self.targets.numel() if self.mask is None else int(self.mask.sum())

    def rows(self, rows: slice) -> "Batch":
        return map_state(lambda field: field[rows], self)

    def to(self, device) -> "Batch":
        return map_state(lambda field: field.to(device, non_blocking=True), self)
