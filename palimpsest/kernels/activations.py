"""Activations inside a recurrence: what becomes of a number, and of the gradient on its way back."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Activation(Protocol):
    def of(self, x: Tensor) -> Tensor: ...

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        """The gradient of x, from that of y = of(x)."""
        ...


class Bare(NamedTuple):
    """The numbers as they are."""

    def of(self, x: Tensor) -> Tensor:
        return x

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        return gradient


class Sigmoid(NamedTuple):
    def of(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten.sigmoid_backward(gradient, y)


class Tanh(NamedTuple):
    def of(self, x: Tensor) -> Tensor:
        return x.tanh()

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(gradient, y)


class Softmax(NamedTuple):
    """exp(x − max) / (Σ exp(x − max) + epsilon), over the last axis; to its gradient the maximum is a constant."""

    epsilon: float = 0.0

    def of(self, x: Tensor) -> Tensor:
        if not self.epsilon:
            return x.softmax(-1)
        weights = (x - x.detach().amax(-1, keepdim=True)).exp()
        return weights / (weights.sum(-1, keepdim=True) + self.epsilon)

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten._softmax_backward_data(gradient, y, -1, y.dtype)


ON_CHIP = (Bare, Sigmoid, Tanh, Softmax)  # those that the fused forms know


def named(activation: Activation) -> tuple[str, float]:
    """What the fused forms are told of it: its name, and what is added to a sum that it divides by."""
    return type(activation).__name__, activation.epsilon if isinstance(activation, Softmax) else 0.0
