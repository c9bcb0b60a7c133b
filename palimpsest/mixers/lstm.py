"""A plain LSTM as a mixer."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..spec import Size
from .mixer import Mixer, MixerModule
from .out_projection import OutProjection, build_out
from .rnn import TorchNet


@dataclass(frozen=True)
class LSTM(Mixer):
    """The recurrent net with cells and gates."""

    inner: Size | None = None  # cells; None: the model's width
    out: OutProjection | None = OutProjection()

    def build(self, width: int, norm: nn.Module | None = None) -> "LSTMMixer":
        return LSTMMixer(self, width, norm)


class LSTMState(NamedTuple):
    said: Tensor  # b inner
    cell: Tensor  # b inner


class LSTMMixer(MixerModule):
    def __init__(self, spec: LSTM, width: int, norm: nn.Module | None):
        super().__init__()
        self.norm = norm
        self.net = LSTMLayer(width, spec.inner or width)
        self.out = build_out(spec.out, self.net.hidden_size, width)

    def initial_state(self, batch: int) -> LSTMState:
        return self.net.initial_state(batch)

    def forward(self, x: Tensor, state: LSTMState | None = None) -> tuple[Tensor, LSTMState]:
        before = self.initial_state(len(x)) if state is None else state
        states, after = self.net(x if self.norm is None else self.norm(x), before)
        return self.out(states), after


class LSTMLayer(TorchNet, nn.LSTM):
    """torch's, with a state whose rows come first."""

    def initial_state(self, batch: int) -> LSTMState:
        zeros = self.weight_hh_l0.new_zeros(batch, self.hidden_size)
        return LSTMState(zeros, zeros.clone())

    def forward(self, x: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:  # pyright: ignore
        states, (said, cell) = super().forward(x, (state.said[None], state.cell[None]))
        return states, LSTMState(said[0], cell[0])
