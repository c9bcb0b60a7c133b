"""What a model reads: tokens, and the tokens that follow them."""

from typing import NamedTuple

from torch import Tensor

from .state import map_state


class Batch(NamedTuple):
    inputs: Tensor  # b t
    targets: Tensor  # b t
    mask: Tensor | None = None  # b t, true where the target counts

    def count(self) -> int:
        """How many targets count."""
        return self.targets.numel() if self.mask is None else int(self.mask.sum())

    def rows(self, rows: slice) -> "Batch":
        return map_state(lambda field: field[rows], self)

    def to(self, device) -> "Batch":
        return map_state(lambda field: field.to(device, non_blocking=True), self)
