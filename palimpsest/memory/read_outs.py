"""Read-outs: what becomes of the numbers read from the page, before the heads are joined."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..spec import NotNegative, Size, Spec


class ReadOut(Spec):
    """Builds a module from reads `b t h v`, the mixer's input `b t d` and the query's mass `b t h` to `b t h v`."""

    counts_keys: ClassVar[bool] = False  # whether it must be told the query's mass: how much was written under it

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        raise NotImplementedError


class ReadsNorm(nn.RMSNorm):
    """torch's own, with its scale in the type of the reads: for two types torch has no kernel, and says so aloud."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


@dataclass(frozen=True)
class Plain(ReadOut):
    """The reads themselves."""

    scale: float = 1.0

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        return PlainReads(self)


class PlainReads(nn.Module):
    def __init__(self, spec: Plain):
        super().__init__()
        self.spec = spec

    def forward(self, reads: Tensor, x: Tensor, mass: Tensor | None = None) -> Tensor:
        return reads if self.spec.scale == 1 else reads * self.spec.scale


@dataclass(frozen=True)
class Normalised(ReadOut):
    """Reads divided by the query's overlap with the sum of all keys, as attention weights sum to one."""

    scale: float = 1.0
    epsilon: NotNegative = 1e-6
    counts_keys = True

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        return NormalisedReads(self)


class NormalisedReads(nn.Module):
    def __init__(self, spec: Normalised):
        super().__init__()
        self.spec = spec

    def forward(self, reads: Tensor, x: Tensor, mass: Tensor) -> Tensor:
        share = self.spec.scale / (mass + self.spec.epsilon)  # where next to nothing was written, no float16
        return (reads * share[..., None]).to(reads.dtype)


@dataclass(frozen=True)
class UngatedNorm(ReadOut):
    """Reads brought to root mean square one, without a gate, as in the DeltaNet of 2024."""

    scale: float = 1.0
    epsilon: NotNegative = 1e-5

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        return UngatedNormReads(self, head_width)


class UngatedNormReads(nn.Module):
    def __init__(self, spec: UngatedNorm, head_width: int):
        super().__init__()
        self.spec = spec
        self.norm = ReadsNorm(head_width, eps=spec.epsilon)

    def forward(self, reads: Tensor, x: Tensor, mass: Tensor | None = None) -> Tensor:
        return self.norm(reads * self.spec.scale)


@dataclass(frozen=True)
class GatedNorm(ReadOut):
    """Reads brought to root mean square one and gated by silu of the input, as in the Gated DeltaNet."""

    scale: float = 1.0
    epsilon: NotNegative = 1e-5

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        return GatedNormReads(self, width, heads, head_width)


class GatedNormReads(nn.Module):
    def __init__(self, spec: GatedNorm, width: int, heads: int, head_width: int):
        super().__init__()
        self.spec = spec
        self.norm = ReadsNorm(head_width, eps=spec.epsilon)
        self.gate = nn.Linear(width, heads * head_width, bias=False)

    def forward(self, reads: Tensor, x: Tensor, mass: Tensor | None = None) -> Tensor:
        gate = nn.functional.silu(self.gate(x)).view_as(reads)
        return self.norm(reads * self.spec.scale) * gate


@dataclass(frozen=True)
class SigmoidGatedNorm(ReadOut):
    """Reads brought to root mean square one and gated by sigmoid of a narrow projection, as in Kimi Delta Attention."""

    scale: float = 1.0
    epsilon: NotNegative = 1e-5
    rank: Size | None = None  # of the projection; None: as many as a head has numbers

    def build(self, width: int, heads: int, head_width: int) -> nn.Module:
        return SigmoidGatedNormReads(self, width, heads, head_width)


class SigmoidGatedNormReads(nn.Module):
    def __init__(self, spec: SigmoidGatedNorm, width: int, heads: int, head_width: int):
        super().__init__()
        self.spec = spec
        self.norm = ReadsNorm(head_width, eps=spec.epsilon)
        self.narrow = nn.Linear(width, spec.rank or head_width, bias=False)
        self.gate = nn.Linear(self.narrow.out_features, heads * head_width)

    def forward(self, reads: Tensor, x: Tensor, mass: Tensor | None = None) -> Tensor:
        gate = self.gate(self.narrow(x)).sigmoid().view_as(reads)
        return self.norm(reads * self.spec.scale) * gate
