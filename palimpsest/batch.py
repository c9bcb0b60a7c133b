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
    def cut(cls, ids: np.ndarray, starts: Sequence[int] | np.ndarray, length: int) -> "Batch":
        """`length` tokens of a text from each of the starts on, and the tokens that follow them."""
        windows = np.asarray(ids)[np.asarray(starts)[:, None] + np.arange(length + 1)]
        tokens = torch.from_numpy(windows.astype(np.int64))
        return cls(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def count(self) -> int:
        """How many targets count."""
        return self.targets.numel() if self.mask is None else int(self.mask.sum())

    def rows(self, rows: slice) -> "Batch":
        return map_state(lambda field: field[rows], self)

    def to(self, device) -> "Batch":
        return map_state(lambda field: field.to(device, non_blocking=True), self)
