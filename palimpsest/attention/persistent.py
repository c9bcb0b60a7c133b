"""Persistent vectors: keys and values that belong to no token, learned, and seen by every query."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..spec import Size, Spec


@dataclass(frozen=True)
class PersistentVectors(Spec):
    """Learned keys and values beside those of the tokens; with many of them no feed-forward part is needed."""

    count: Size = 64

    def build(self, heads: int, head_width: int) -> "Persistent":
        return Persistent(self.count, heads, head_width)


class Persistent(nn.Module):
    """Kept small, so that they learn at the pace of projections; used at the size of projected tokens."""

    def __init__(self, count: int, heads: int, head_width: int):
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(heads, count, head_width))
        self.values = nn.Parameter(torch.zeros(heads, count, head_width))
        self.key_scale, self.value_scale = head_width**0.5, count**0.5

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.keys, std=1 / self.key_scale, generator=generator)
        nn.init.normal_(self.values, std=1 / self.value_scale, generator=generator)

    def forward(self, heads: slice | list[int]) -> tuple[Tensor, Tensor]:
        return self.keys[heads] * self.key_scale, self.values[heads] * self.value_scale
