"""Feedback: what a recurrent head hears of its own past.

Each token makes a sum. The head's state, which is also what it says, is made of it; what the next token hears is made
of the state.
"""

from dataclasses import dataclass

from torch import Tensor

from ..kernels.activations import Softmax
from ..spec import NotNegative, Spec


class Feedback(Spec):
    """Either way, the softmax of a sum is what is heard."""

    epsilon: float

    @property
    def activation(self) -> Softmax:
        return Softmax(self.epsilon)

    def state(self, sums: Tensor) -> Tensor:
        raise NotImplementedError

    def heard(self, state: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxFeedback(Feedback):
    """The state is the sum itself, and its softmax is heard."""

    epsilon: NotNegative = 0.0  # added to the sum that the softmax divides by

    def state(self, sums: Tensor) -> Tensor:
        return sums

    def heard(self, state: Tensor) -> Tensor:
        return self.activation.of(state)


@dataclass(frozen=True)
class SoftmaxState(Feedback):
    """The state is the softmax of the sum, and is heard as it is; before the first token nothing is."""

    epsilon: NotNegative = 0.0  # added to the sum that the softmax divides by

    def state(self, sums: Tensor) -> Tensor:
        return self.activation.of(sums)

    def heard(self, state: Tensor) -> Tensor:
        return state
