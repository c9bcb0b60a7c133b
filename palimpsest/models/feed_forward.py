"""Feed-forward parts: each token by itself, through a wider layer."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from ..spec import Fraction, Size, Spec
from .dropout import Dropout


class FeedForward(Spec):
    """Up to `inner` numbers, through the activation, and back down."""

    inner: int
    dropout: float
    branches: ClassVar[int] = 1  # how many projections up the activation takes

    def build(self, width: int) -> nn.Module:
        return FeedForwardNetwork(self, width)

    def activate(self, *branches: Tensor) -> Tensor:
        raise NotImplementedError


class FeedForwardNetwork(nn.Module):
    def __init__(self, spec: FeedForward, width: int):
        super().__init__()
        self.spec = spec
        self.up = nn.Linear(width, spec.branches * spec.inner)
        self.dropout = Dropout(spec.dropout)
        self.down = nn.Linear(spec.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.spec.activate(*self.up(x).chunk(self.spec.branches, dim=-1))))


@dataclass(frozen=True)
class Relu(FeedForward):
    """max(x, 0), as in the first Transformer."""

    inner: Size = 512
    dropout: Fraction = 0.0  # of the inner numbers

    def activate(self, x: Tensor) -> Tensor:
        return x.relu()


@dataclass(frozen=True)
class SquaredRelu(FeedForward):
    """max(x, 0)², found by the Primer."""

    inner: Size = 512
    dropout: Fraction = 0.0  # of the inner numbers

    def activate(self, x: Tensor) -> Tensor:
        return x.relu().square()


@dataclass(frozen=True)
class Gelu(FeedForward):
    """x · Φ(x)."""

    inner: Size = 512
    dropout: Fraction = 0.0  # of the inner numbers

    def activate(self, x: Tensor) -> Tensor:
        return gelu(x)


@dataclass(frozen=True)
class GatedSilu(FeedForward):
    """silu(gate) · x, the gated linear unit also called SwiGLU: three matrices instead of two."""

    inner: Size = 384
    dropout: Fraction = 0.0  # of the inner numbers
    branches = 2

    def activate(self, gate: Tensor, x: Tensor) -> Tensor:
        return silu(gate) * x
