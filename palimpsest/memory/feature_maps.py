"""Feature maps: how a key or a query looks to the memory. Each token by itself, each head by itself."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..spec import NotNegative, Size, Spec


class FeatureMap(Spec):
    """Turns `… head_width` into `… features(head_width)`."""

    non_negative: ClassVar[
        bool
    ]  # whether no feature is ever below zero, so that features can be summed up and divided by
    relative: ClassVar[bool] = False  # whether it leaves a factor out of each token's features: exp(module.heights(x))
    redraw: int | None = None  # steps of training after which its chance is drawn again; None: never

    def features(self, head_width: int) -> int:
        return head_width

    def numbers(self) -> dict[str, Any]:
        """What a kernel that knows this map by its name must still be told."""
        return {}

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
        # rather than elu + 1: adding one to a number near minus one loses it in half precision. The bound is just above
        # zero, with the same exp, so that zero has a gradient, whatever torch gives to what stands at a bound
        return x.clamp(max=torch.finfo(x.dtype).tiny).exp() + x.relu()


@dataclass(frozen=True)
class DPFP(FeatureMap):
    """Deterministic, parameter-free products of neighbouring halves: 2 · nu features for each number."""

    nu: Size = 1
    non_negative = True

    def features(self, head_width: int) -> int:
        return 2 * self.nu * head_width

    def numbers(self) -> dict[str, Any]:
        return {"nu": self.nu}

    def map(self, x: Tensor) -> Tensor:
        halves = torch.cat([x.relu(), (-x).relu()], dim=-1)
        return torch.cat([halves * halves.roll(shift, dims=-1) for shift in range(1, self.nu + 1)], dim=-1)


@dataclass(frozen=True)
class Favor(FeatureMap):
    """FAVOR+, the Performer's random features of the softmax kernel exp(q·k); twice `directions` features."""

    directions: Size = 64
    scale: float = 1.0  # of the input; head width ** -0.25 gives the kernel exp(q·k / √head width) of the paper
    epsilon: NotNegative = 1e-4  # added to every feature, so that their sum never vanishes
    redraw: int | None = None  # steps of training after which other directions are drawn; None: they stay
    non_negative = True

    def __post_init__(self):
        super().__post_init__()
        if self.redraw is not None and self.redraw < 1:
            raise UserError(f"directions are redrawn every 1, 2, 3 … steps, or never with None; found {self.redraw}")

    def features(self, head_width: int) -> int:
        return 2 * self.directions

    def numbers(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "factor": self.scale}

    def build(self, head_width: int) -> nn.Module:
        return FavorFeatures(self, head_width)


class FavorFeatures(nn.Module):
    """The random directions are drawn by their own generator and saved with the model, as is their age if they age."""

    matrix: Tensor
    age: Tensor

    def __init__(self, spec: Favor, head_width: int):
        super().__init__()
        self.spec = spec
        self.register_buffer("matrix", torch.empty(head_width, spec.directions))
        if spec.redraw is not None:
            self.register_buffer("age", torch.tensor(0))  # in steps
        self.register_load_state_dict_pre_hook(mind_the_age)
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

    def after_step(self) -> None:
        """Not before a pass: the pieces of a batch are all read under one matrix, and none in evaluation is new."""
        if self.spec.redraw is None:
            return
        self.age += 1
        if self.age >= self.spec.redraw:
            self.age.zero_()
            self.initialise(torch.default_generator)  # which the trainer seeds by run and step

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.spec.scale
        projected = x @ self.matrix
        logs = torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2
        return (logs.exp() + self.spec.epsilon) * (2 * self.spec.directions) ** -0.5


def mind_the_age(features: FavorFeatures, weights: dict[str, Any], prefix: str, *_) -> None:
    """Directions that stay may be taken from a model that redrew them, and the other way round."""
    if features.spec.redraw is None:
        weights.pop(f"{prefix}age", None)
    else:
        weights.setdefault(f"{prefix}age", torch.zeros_like(features.age))


@dataclass(frozen=True)
class StabilisedFavor(Favor):
    """FAVOR+ in units of each token's largest feature, so that none overflows and not all of them vanish."""

    epsilon: NotNegative = 1e-6  # added to every feature, of which the largest is one
    relative = True

    def build(self, head_width: int) -> nn.Module:
        return StabilisedFavorFeatures(self, head_width)


class StabilisedFavorFeatures(FavorFeatures):
    """−|x|²/2 is common to all features of a token, and drops out of their ratios."""

    def forward(self, x: Tensor) -> Tensor:
        _, projected = self.project(x)
        logs = torch.cat([projected, -projected], dim=-1) - projected.abs().amax(-1, keepdim=True)
        return (logs.exp() + self.spec.epsilon).to(x.dtype)

    def heights(self, x: Tensor) -> Tensor:
        """The logarithm of what was left out, a number for each token and head."""
        x, projected = self.project(x)
        return projected.abs().amax(-1) - x.square().sum(-1) / 2

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """At least in float32: an exponent that is rounded to half precision is off by whole factors."""
        exact = torch.promote_types(x.dtype, torch.float32)
        x = x.to(exact) * self.spec.scale
        return x, x @ self.matrix.to(exact)


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
