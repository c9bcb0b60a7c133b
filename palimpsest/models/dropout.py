"""Dropout: in training some numbers are nought by chance, and the others larger for it."""

import torch
from torch import Tensor, nn

BITS = 24  # of chance that a number is compared by


class Dropout(nn.Dropout):
    """torch's own, but where a compiler looks on: there chance is a hash of where a number stands and of one draw.

    A compiler puts that into the pass that reads the numbers, where a generator for all purposes would take longer
    than memory does.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p and torch.compiler.is_compiling()):
            return super().forward(x)
        drawn = torch.randint(-(2**31), 2**31 - 1, (), dtype=torch.int32, device=x.device)
        places = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
        kept = (scattered(scattered(places) ^ drawn) & (2**BITS - 1)) >= round(self.p * 2**BITS)
        return torch.where(kept, x / (1 - self.p), 0.0)


def scattered(numbers: Tensor) -> Tensor:
    """Whole numbers of 32 bits as others, of which each bit depends evenly on all bits (Wellons's lowbias32)."""
    numbers = (numbers ^ (numbers >> 16 & 0xFFFF)) * 0x7FEB352D
    numbers = (numbers ^ (numbers >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return numbers ^ (numbers >> 16 & 0xFFFF)
