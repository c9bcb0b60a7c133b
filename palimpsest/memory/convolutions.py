"""Convolutions: queries, keys and values that have looked at a few tokens before they meet the memory."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import places_of
from ..kernels.convolution import joined, short_convolution, weighted, windows
from ..spec import Size, Spec


class Convolution(Spec):
    def build(self, channels: int) -> "ConvolutionModule":
        raise NotImplementedError


class ConvolutionModule(nn.Module):
    """Its state is what it must remember of the last tokens, `b s channels`."""

    def initial_state(self, batch: int) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, recent: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`starts` `b t` is true where a new text begins, which hears nothing of the one before."""
        raise NotImplementedError


@dataclass(frozen=True)
class ShortConvolution(Convolution):
    """Each number becomes a learned mean of its own last `size` values; before training it is left as it is."""

    size: Size = 4

    def build(self, channels: int) -> "ShortConvolutionLayer":
        return ShortConvolutionLayer(self, channels)


class ShortConvolutionLayer(ConvolutionModule):
    def __init__(self, spec: ShortConvolution, channels: int):
        super().__init__()
        self.taps = nn.Parameter(torch.empty(channels, spec.size))  # the last one is for the present token
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.taps)
        nn.init.ones_(self.taps[:, -1])

    def initial_state(self, batch: int) -> Tensor:
        channels, size = self.taps.shape
        return self.taps.new_zeros(batch, size - 1, channels)

    def forward(self, x: Tensor, recent: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x `b t channels` -> the same, and the last tokens of it."""
        size, length, recent = self.taps.shape[1], x.shape[1], recent.to(x.dtype)
        last = joined(recent, x[:, max(0, length - (size - 1)) :])
        last = last[:, last.shape[1] - (size - 1) :]
        if starts is None:
            return short_convolution(x, recent, self.taps), last
        before = places_of(torch.full_like(starts[:, 0], size, dtype=torch.long), length, starts)[..., None]
        heard = [z.where(before >= size - 1 - first, 0.0) for first, z in enumerate(windows(joined(recent, x), size))]
        backs = torch.arange(size - 2, -1, -1, device=x.device)[:, None]
        return weighted(heard, self.taps), last.where(before[:, -1:] >= backs, 0.0)
