"""Dropout: in training some numbers are nought by chance, and the others larger for it."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """torch's own, but where a compiler looks on: there chance is a hash of where a number stands and of two draws.

    A compiler puts that into the pass that reads the numbers, where a generator for all purposes would take longer
    than memory does.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and 0 < self.p < 1 and torch.compiler.is_compiling()):
            return super().forward(x)
        drawn = torch.randint(-(2**31), 2**31 - 1, (2,), dtype=torch.int32, device=x.device)
        places = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        kept = stirred(places, drawn[0], drawn[1]) >= round(self.p * 2**32) - 2**31
        return torch.where(kept, x * (1 / (1 - self.p)), 0.0)


def stirred(places: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Whole numbers of 32 bits, of which the first 16 depend evenly on all bits of a place and of what was drawn.

    These are the rounds of Wellons's lowbias32, with a draw before each. Places are spread out first: those that differ
    in one bit would otherwise meet again in the second round. Its last step would change the other bits only.
    """
    numbers = places * (0x9E3779B1 - 2**32) + first
    numbers = (numbers ^ (numbers >> 16 & 0xFFFF)) * 0x7FEB352D ^ second
    return (numbers ^ (numbers >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
