"""Update rules: how much of the page to keep, erase and write at each token. A rule only chooses gates.

memory ← keep · memory
memory ← memory + key ⊗ (write · value − erase · recall)
"""

from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from ..gates import Gates
from ..spec import Spec


class UpdateRule(Spec):
    """Builds a module from the mixer's input `b t d` (and, where asked for, the key's crowding) to Gates."""

    counts_keys: ClassVar[bool] = False  # whether it must be told how much the page already holds under each key

    def build(self, width: int, heads: int) -> nn.Module:
        raise NotImplementedError


class GateProjection(nn.Linear):
    """One number per head from the input of the mixer, with a bias that starts where the rule wants it."""

    def __init__(self, width: int, heads: int, start: float):
        super().__init__(width, heads)
        self.start = start
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.weight, std=0.02, generator=generator)
        nn.init.constant_(self.bias, self.start)


@dataclass(frozen=True)
class Sum(UpdateRule):
    """Everything is added, nothing is ever taken away: linear attention."""

    def build(self, width: int, heads: int) -> nn.Module:
        return SumGates()


class SumGates(nn.Module):
    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        return Gates()


@dataclass(frozen=True)
class Delta(UpdateRule):
    """The delta rule: what the key recalled is replaced by the value, by the fraction β."""

    beta: float = 0.5  # before training

    def build(self, width: int, heads: int) -> nn.Module:
        return DeltaGates(self, width, heads)


class DeltaGates(nn.Module):
    def __init__(self, spec: Delta, width: int, heads: int):
        super().__init__()
        self.beta = GateProjection(width, heads, logit(spec.beta))

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        beta = self.beta(x).sigmoid()
        return Gates(erase=beta, write=beta)


@dataclass(frozen=True)
class Decay(UpdateRule):
    """Each head forgets at a constant rate of its own, which is learned; retention."""

    shortest: float = 8.0  # tokens after which 1/e is left, in the most forgetful head before training
    longest: float = 512.0  # … and in the least forgetful one

    def build(self, width: int, heads: int) -> nn.Module:
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

    keep: float = 0.9  # α before training

    def build(self, width: int, heads: int) -> nn.Module:
        return GatedSumGates(self, width, heads)


class GatedSumGates(nn.Module):
    def __init__(self, spec: GatedSum, width: int, heads: int):
        super().__init__()
        self.keep = GateProjection(width, heads, logit(spec.keep))

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        logits = self.keep(x)
        return Gates(log_keep=logsigmoid(logits), write=(-logits).sigmoid())


@dataclass(frozen=True)
class GatedDelta(UpdateRule):
    """The delta rule on a page that fades: α = exp(−rate · softplus(x)), as in the Gated DeltaNet."""

    beta: float = 0.5  # before training
    keep: float = 0.98  # α before training

    def build(self, width: int, heads: int) -> nn.Module:
        return GatedDeltaGates(self, width, heads)


class GatedDeltaGates(nn.Module):
    def __init__(self, spec: GatedDelta, width: int, heads: int):
        super().__init__()
        self.beta = GateProjection(width, heads, logit(spec.beta))
        # softplus⁻¹(−log α), as the rate starts at one
        self.forget = GateProjection(width, heads, log(1 / spec.keep - 1))
        self.log_rate = nn.Parameter(torch.zeros(heads))

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.log_rate)

    def forward(self, x: Tensor, crowding: Tensor | None = None) -> Gates:
        beta = self.beta(x).sigmoid()
        log_keep = -self.log_rate.exp() * softplus(self.forget(x))
        return Gates(log_keep, erase=beta, write=beta)


@dataclass(frozen=True)
class NormalisedDelta(UpdateRule):
    """The delta rule on recalls divided by κ, how much was written under the key so far (1 on a fresh page)."""

    beta: float = 0.5  # before training
    epsilon: float = 1e-5
    counts_keys = True

    def build(self, width: int, heads: int) -> nn.Module:
        return NormalisedDeltaGates(self, width, heads)


class NormalisedDeltaGates(nn.Module):
    def __init__(self, spec: NormalisedDelta, width: int, heads: int):
        super().__init__()
        self.spec = spec
        self.beta = GateProjection(width, heads, logit(spec.beta))

    def forward(self, x: Tensor, crowding: Tensor) -> Gates:
        write = self.beta(x).sigmoid() * crowding / (crowding + self.spec.epsilon)
        return Gates(erase=write / (crowding + self.spec.epsilon), write=write)


def logit(probability: float) -> float:
    return log(probability / (1 - probability))
