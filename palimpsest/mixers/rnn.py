"""A plain recurrent net as a mixer."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..spec import Size
from .mixer import Mixer, MixerModule
from .out_projection import OutProjection, build_out


@dataclass(frozen=True)
class RNN(Mixer):
    """Elman's recurrent net: the tanh of two matrices, of the input and of its own past."""

    inner: Size | None = None  # numbers of its state; None: the model's width
    out: OutProjection | None = OutProjection()

    def build(self, width: int, norm: nn.Module | None = None) -> "RNNMixer":
        return RNNMixer(self, width, norm)


class RNNState(NamedTuple):
    said: Tensor  # b inner


class RNNMixer(MixerModule):
    def __init__(self, spec: RNN, width: int, norm: nn.Module | None):
        super().__init__()
        self.norm = norm
        self.net = RNNLayer(width, spec.inner or width)
        self.out = build_out(spec.out, self.net.hidden_size, width)

    def initial_state(self, batch: int) -> RNNState:
        return RNNState(self.net.weight_hh_l0.new_zeros(batch, self.net.hidden_size))

    def forward(self, x: Tensor, state: RNNState | None = None) -> tuple[Tensor, RNNState]:
        (said,) = self.initial_state(len(x)) if state is None else state
        states, last = self.net(x if self.norm is None else self.norm(x), said[None])
        return self.out(states), RNNState(last[0])


class TorchNet(nn.RNNBase):
    """One layer of torch's, with its usual start, drawn from a generator."""

    weight_hh_l0: Tensor

    def __init__(self, width: int, inner: int):
        super().__init__(width, inner, batch_first=True)  # pyright: ignore[reportCallIssue]

    def flatten_parameters(self) -> None:
        """Not done: on a GPU torch would make them views of one buffer, which cannot be saved one by one."""

    def initialise(self, generator: torch.Generator | None = None) -> None:
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.hidden_size**-0.5), self.hidden_size**-0.5, generator=generator)


class RNNLayer(TorchNet, nn.RNN):
    pass
