"""Convolutions: queries, keys and values that have looked at a few tokens before they meet the memory."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from ..batch import places_of
from ..errors import UserError
from ..spec import Spec


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

    size: int = 4

    def __post_init__(self):
        if self.size < 1:
            raise UserError(f"a convolution covers at least the present token; found a size of {self.size}")

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
        size = self.taps.shape[1]
        seen = torch.cat([recent.to(x.dtype), x], dim=1)
        last = seen[:, seen.shape[1] - (size - 1) :]
        if starts is None:  # a compiler makes one pass of a sum, not of a convolution
            pass_over = SumOfTaps.apply if torch.compiler.is_compiling() else depthwise
            return pass_over(seen, self.taps), last  # pyright: ignore[reportReturnType]
        before = places_of(torch.full_like(starts[:, 0], size, dtype=torch.long), x.shape[1], starts)[..., None]
        heard = [z.where(before >= size - 1 - first, 0.0) for first, z in enumerate(windows(seen, size))]
        backs = torch.arange(size - 2, -1, -1, device=x.device)[:, None]
        return weighted(heard, self.taps), last.where(before[:, -1:] >= backs, 0.0)


def depthwise(seen: Tensor, taps: Tensor) -> Tensor:
    return conv1d(seen.mT, taps[:, None], groups=len(taps)).mT


class SumOfTaps(torch.autograd.Function):
    """The same. Its gradient is such a sum again, where torch would add up a padded copy for each tap."""

    @staticmethod
    def forward(ctx, seen: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(seen, taps)
        return weighted(windows(seen, taps.shape[1]), taps)

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        seen, taps = ctx.saved_tensors
        size, exact = taps.shape[1], torch.promote_types(seen.dtype, torch.float32)
        around = pad(slope, (0, 0, size - 1, size - 1))
        of_taps = [(slope.to(exact) * z.to(exact)).sum((0, 1)) for z in windows(seen, size)]
        return weighted(windows(around, size), taps.flip(1)), torch.stack(of_taps, dim=1).to(taps.dtype)


def windows(seen: Tensor, size: int) -> list[Tensor]:
    """`b (t + size − 1) c` -> `b t c` for each tap, what it reads for each token"""
    length = seen.shape[1] - (size - 1)
    return [seen[:, first : first + length] for first in range(size)]


def weighted(heard: list[Tensor], taps: Tensor) -> Tensor:
    weights = taps.to(heard[0].dtype).unbind(1)
    return sum((tap * z for tap, z in zip(weights, heard, strict=True)), torch.zeros_like(heard[0]))
