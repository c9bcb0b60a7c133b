"""Update rules: how much of the page to keep, erase and write at each token. A rule only chooses gates.

memory ← keep · memory
memory ← memory + key ⊗ (write · value − erase · recall)
"""

from dataclasses import dataclass
from math import log
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from ..errors import UserError
from ..gates import Gates
from ..spec import Between, Bound, NotNegative, Positive, Size, Spec

OFTEN_TRIED = "above 0 and below 1, as 0.999, with which next to nothing is forgotten at first"
Kept = Annotated[float, Bound(OFTEN_TRIED, lambda share: 0 < share < 1)]  # before training; it is learned as a logit


class UpdateRule(Spec):
    """Builds a module from the mixer's input `b t d` (and, where asked for, the key's crowding) to Gates.

    A rule by which each token writes w times, every time under a key of its own, makes gates `b (t w) h`.
    """

    counts_keys: ClassVar[bool] = False  # whether it must be told how much the page already holds under each key
    erases: ClassVar[bool] = False  # whether what a key recalled is taken away
    writes: int = 1  # times a token writes

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        raise NotImplementedError


class GateProjection(nn.Linear):
    """One number per head from the input of the mixer, with a bias that starts where the rule wants it, or none."""

    def __init__(self, width: int, heads: int, start: float | None):
        super().__init__(width, heads, bias=start is not None)
        self.start = start
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=0.02, generator=generator)
        if self.start is not None:
            nn.init.constant_(self.bias, self.start)


@dataclass(frozen=True)
class Sum(UpdateRule):
    """Everything is added, nothing is ever taken away: linear attention."""

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return SumGates()


class SumGates(nn.Module):
    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        return Gates()


class DeltaRule(UpdateRule):
    """What the key recalled is replaced by the value, by the fraction β."""

    erases = True
    beta: float  # before training
    limit: float  # of β
    writes: int  # times a token does this, each time with a key, a value and a β of its own

    def __post_init__(self):
        super().__post_init__()
        if self.beta is not None and not 0 < self.beta < self.limit:
            raise UserError(f"β starts between 0 and its limit of {self.limit}; found {self.beta}")
        if self.writes < 1:
            raise UserError(f"a token writes at least once; found {self.writes}")


@dataclass(frozen=True)
class Delta(DeltaRule):
    """The delta rule: what the key recalled is replaced by the value, by the fraction β."""

    beta: float | None = 0.5  # before training; None: there is no bias, and it is half the limit on average
    limit: Positive = 1.0  # of β; beyond one, a key of length one turns over what it recalled
    writes: int = 1  # times a token does this, each time with a key, a value and a β of its own

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return DeltaGates(self, width, heads)


class DeltaGates(nn.Module):
    def __init__(self, spec: DeltaRule, width: int, heads: int):
        super().__init__()
        self.spec = spec
        start = None if spec.beta is None else logit(spec.beta / spec.limit)
        self.beta = GateProjection(width, spec.writes * heads, start)

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        writes, heads = self.spec.writes, self.beta.out_features // self.spec.writes
        logits = self.beta(x).reshape(len(x), writes * x.shape[1], heads)
        return Gates(erase=logits, write=logits, limit=self.spec.limit)


@dataclass(frozen=True)
class DeltaProduct(Delta):
    """The delta rule several times a token, β up to 2: the page is turned by a product of Householder matrices."""

    beta: float | None = 1.0  # before training
    limit: Positive = 2.0
    writes: int = 2


@dataclass(frozen=True)
class Decay(UpdateRule):
    """Each head forgets at a constant rate of its own, which is learned; retention."""

    shortest: Positive = 8.0  # tokens after which 1/e is left, in the most forgetful head before training
    longest: Positive = 512.0  # … and in the least forgetful one

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return DecayGates(self, heads)


class DecayGates(nn.Module):
    def __init__(self, spec: Decay, heads: int):
        super().__init__()
        self.spec = spec
        self.keep = nn.Parameter(torch.empty(heads))
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        lifetimes = torch.logspace(log(self.spec.shortest), log(self.spec.longest), len(self.keep), base=torch.e)
        with torch.no_grad():
            self.keep.copy_((-1 / lifetimes).exp().logit())

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        return Gates(log_keep=logsigmoid(self.keep).expand(*x.shape[:-1], -1))


@dataclass(frozen=True)
class GatedSum(UpdateRule):
    """What is kept, α, and what is written, 1 − α, share one gate."""

    keep: Kept = 0.9  # α before training

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return GatedSumGates(self, width, heads)


class GatedSumGates(nn.Module):
    def __init__(self, spec: GatedSum, width: int, heads: int):
        super().__init__()
        self.keep = GateProjection(width, heads, logit(spec.keep))

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        logits = self.keep(x)
        return Gates(log_keep=logsigmoid(logits), write=(-logits).sigmoid())


@dataclass(frozen=True)
class GatedDelta(DeltaRule):
    """The delta rule on a page that fades: α = exp(−rate · softplus(x)), as in the Gated DeltaNet."""

    beta: float = 0.5  # before training
    keep: Kept = 0.98  # α before training; the page fades once a token, before its first write
    limit: Positive = 1.0  # of β
    writes: int = 1

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return GatedDeltaGates(self, width, heads)


class GatedDeltaGates(DeltaGates):
    def __init__(self, spec: GatedDelta, width: int, heads: int):
        super().__init__(spec, width, heads)
        self.forget = GateProjection(width, heads, start_of_fading(spec.keep))
        self.log_rate = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.log_rate)

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        log_keep = -self.log_rate.exp() * softplus(self.forget(x))
        return super().forward(x)._replace(log_keep=before_the_first(log_keep, self.spec.writes))


@dataclass(frozen=True)
class FeatureGatedDelta(GatedDelta):
    """As GatedDelta, but each feature of the key fades at its own pace, as in Kimi Delta Attention."""

    rank: Size | None = None  # of the projection that says how fast; None: as many as a key has features

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return FeatureGatedDeltaGates(self, width, heads, features)


class FeatureGatedDeltaGates(DeltaGates):
    def __init__(self, spec: FeatureGatedDelta, width: int, heads: int, features: int):
        super().__init__(spec, width, heads)
        self.narrow = nn.Linear(width, spec.rank or features, bias=False)
        self.forget = GateProjection(self.narrow.out_features, heads * features, start_of_fading(spec.keep))
        self.log_rate = nn.Parameter(torch.zeros(heads, 1))

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.log_rate)

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        fading = softplus(self.forget(self.narrow(x))).unflatten(-1, (len(self.log_rate), -1))
        log_keep = -self.log_rate.exp() * fading
        return super().forward(x)._replace(log_keep=before_the_first(log_keep, self.spec.writes))


def start_of_fading(keep: float) -> float:
    """softplus⁻¹(−log α), for a rate that starts at one."""
    return log(1 / keep - 1)


def before_the_first(log_keep: Tensor, writes: int) -> Tensor:
    """`b t …` -> `b (t w) …`: the page fades once a token, however often the token writes."""
    if writes == 1:
        return log_keep
    later = [torch.zeros_like(log_keep)] * (writes - 1)
    return torch.stack([log_keep, *later], dim=2).flatten(1, 2)


@dataclass(frozen=True)
class NormalisedDelta(UpdateRule):
    """The delta rule on recalls divided by κ, how much was written under the key so far (1 on a fresh page)."""

    beta: Between | None = 0.5  # before training; None: there is no bias, and it is a half on average
    epsilon: NotNegative = 1e-5
    counts_keys = True
    erases = True

    def build(self, width: int, heads: int, features: int) -> nn.Module:
        return NormalisedDeltaGates(self, width, heads)


class NormalisedDeltaGates(nn.Module):
    def __init__(self, spec: NormalisedDelta, width: int, heads: int):
        super().__init__()
        self.spec = spec
        self.beta = GateProjection(width, heads, None if spec.beta is None else logit(spec.beta))

    def forward(self, x: Tensor, crowding: Tensor) -> Gates:
        write = self.beta(x).sigmoid() * crowding / (crowding + self.spec.epsilon)
        return Gates(erase=write / (crowding + self.spec.epsilon), write=write)


def logit(probability: float) -> float:
    return log(probability / (1 - probability))
