"""Feature maps: how a key or a query looks to the memory. Each token by itself, each head by itself."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..spec import Spec


class FeatureMap(Spec):
    """Turns `… head_width` into `… features(head_width)`."""

    non_negative: ClassVar[
        bool
    ]  # whether no feature is ever below zero, so that features can be summed up and divided by

    def features(self, head_width: int) -> int:
        return head_width

    def build(self, head_width: int) -> nn.Module:
        return Pointwise(self)

    def map(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Pointwise(nn.Module):
    """A feature map that has nothing to learn and nothing to store."""

    def __init__(self, spec: FeatureMap):
        super().__init__()
        self.spec = spec

    def forward(self, x: Tensor) -> Tensor:
        return self.spec.map(x)

    def extra_repr(self) -> str:
        return repr(self.spec)


@dataclass(frozen=True)
class EluPlusOne(FeatureMap):
    """elu(x) + 1, the map of the Linear Transformer."""

    non_negative = True

    def map(self, x: Tensor) -> Tensor:
        # rather than elu + 1: adding one to a number near minus one loses it in half precision
        return x.clamp(max=0).exp() + x.relu()


@dataclass(frozen=True)
class DPFP(FeatureMap):
    """Deterministic, parameter-free products of neighbouring halves: 2 · nu features for each number."""

    nu: int = 1
    non_negative = True

    def features(self, head_width: int) -> int:
        return 2 * self.nu * head_width

    def map(self, x: Tensor) -> Tensor:
        halves = torch.cat([x.relu(), (-x).relu()], dim=-1)
        return torch.cat([halves * halves.roll(shift, dims=-1) for shift in range(1, self.nu + 1)], dim=-1)


@dataclass(frozen=True)
class Favor(FeatureMap):
    """FAVOR+, the Performer's random features of the softmax kernel exp(q·k); twice `directions` features."""

    directions: int = 64
    scale: float = 1.0  # of the input; head width ** -0.25 gives the kernel exp(q·k / √head width) of the paper
    epsilon: float = 1e-4  # added to every feature, so that their sum never vanishes
    non_negative = True

    def features(self, head_width: int) -> int:
        return 2 * self.directions

    def build(self, head_width: int) -> nn.Module:
        return FavorFeatures(self, head_width)


class FavorFeatures(nn.Module):
    """The random directions are drawn once, by their own generator, and saved with the model."""

    matrix: Tensor

    def __init__(self, spec: Favor, head_width: int):
        super().__init__()
        self.spec = spec
        self.register_buffer("matrix", torch.empty(head_width, spec.directions))
        self.initialise(torch.Generator().manual_seed(0))

    def initialise(self, generator: torch.Generator) -> None:
        """Orthogonal blocks of directions, as long as Gaussian vectors are."""
        width, directions = self.matrix.shape
        blocks = []
        for _ in range(0, directions, width):
            square, other = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
            blocks.append(torch.linalg.qr(square).Q * other.norm(dim=0))
        with torch.no_grad():
            self.matrix.copy_(torch.cat(blocks, dim=1)[:, :directions])

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.spec.scale
        projected = x @ self.matrix
        logs = torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2
        return (logs.exp() + self.spec.epsilon) * (2 * self.spec.directions) ** -0.5


@dataclass(frozen=True)
class Softmax(FeatureMap):
    """The softmax over a head's own numbers: features that sum to one."""

    non_negative = True

    def map(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


@dataclass(frozen=True)
class Silu(FeatureMap):
    """x · sigmoid(x), the map of the parallel and the gated DeltaNet."""

    non_negative = False

    def map(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x)


@dataclass(frozen=True)
class Identity(FeatureMap):
    """The numbers as they are."""

    non_negative = False

    def map(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Tanh(FeatureMap):
    """tanh(x), the map of the fast weight memory of 2021."""

    non_negative = False

    def map(self, x: Tensor) -> Tensor:
        return x.tanh()
