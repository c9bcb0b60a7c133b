"""Norms: what is done to a hidden state before, or after, a part reads it."""

from dataclasses import dataclass

from torch import nn

from ..spec import NotNegative, Spec


class Norm(Spec):
    def build(self, width: int) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True)
class LayerNorm(Norm):
    """Mean zero and variance one, then a learned scale and shift."""

    epsilon: NotNegative = 1e-5

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.epsilon)


@dataclass(frozen=True)
class RMSNorm(Norm):
    """Root mean square one, then a learned scale."""

    epsilon: NotNegative = 1e-6

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.epsilon)
