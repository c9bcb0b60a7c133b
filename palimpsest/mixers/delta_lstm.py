"""Delta LSTM: a gated recurrent net whose weights are rewritten at every token."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from ..gates import Gates
from ..kernels import memory_dtype, memory_scan
from ..kernels.activations import Activation, Bare, Sigmoid
from ..kernels.delta_lstm import CANDIDATE, GATES, delta_lstm, gates_as_heads
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..spec import Size, Spec
from .feedback import Feedback, SoftmaxFeedback
from .mixer import Mixer, MixerModule, split_width
from .out_projection import OutProjection, build_out
from .sums import refuse_signed


class Candidate(Spec):
    """What a cell is offered."""

    squash: Activation

    def beside(self, inputs: Tensor) -> Tensor | None:
        """What of the candidate's input `b t h v` is added past the cell."""
        return None


@dataclass(frozen=True)
class BareCandidate(Candidate):
    """The sum of what the two memories read, as it is."""

    squash = Bare()


@dataclass(frozen=True)
class SigmoidCandidate(Candidate):
    """The sigmoid of the sum of what the two memories read."""

    squash = Sigmoid()


@dataclass(frozen=True)
class SkippingCandidate(SigmoidCandidate):
    """As SigmoidCandidate; what was read for it from the input also goes past the cell."""

    def beside(self, inputs: Tensor) -> Tensor:
        return inputs


@dataclass(frozen=True)
class DeltaLSTM(Mixer):
    """A gated recurrent net, of coupled input and forget gates, whose six matrices are delta memories."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    feedback: Feedback = SoftmaxFeedback()
    candidate: Candidate = BareCandidate()
    scale: float = 1.0  # of what is said
    out: OutProjection | None = OutProjection()
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def __post_init__(self):
        super().__post_init__()
        refuse_signed(self.feature_map, self.key_scale)

    def build(self, width: int, norm: nn.Module | None = None) -> "DeltaLSTMMixer":
        return DeltaLSTMMixer(self, width, norm)


class DeltaLSTMState(NamedTuple):
    """Each of the gates, input, candidate and output, has its pages."""

    memory: Tensor  # b h g k v, reads the input
    recurrent: Tensor  # b h g v v, reads the past
    said: Tensor  # b h v
    cell: Tensor  # b h v


class DeltaLSTMMixer(MixerModule):
    """Each head's part of `project` is, for every gate, query, key, value, the recurrent key and value; and last,
    for every gate, β and the recurrent β."""

    def __init__(self, spec: DeltaLSTM, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, spec.heads * len(GATES) * (5 * self.head_width + 2), bias=False)
        self.feature_map = spec.feature_map.build(self.head_width)
        self.out = build_out(spec.out, spec.heads * self.head_width, width)

    def initial_state(self, batch: int) -> DeltaLSTMState:
        weight, width = self.project.weight, self.head_width
        zeros = partial(weight.new_zeros, dtype=memory_dtype(weight.dtype))
        rows, gates = (batch, self.spec.heads), len(GATES)
        memory = zeros(*rows, gates, self.spec.feature_map.features(width), width)
        return DeltaLSTMState(memory, zeros(*rows, gates, width, width), zeros(*rows, width), zeros(*rows, width))

    def forward(self, x: Tensor, state: DeltaLSTMState | None = None) -> tuple[Tensor, DeltaLSTMState]:
        memory, recurrent, said, cell = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        gates, feedback, candidate = len(GATES), self.spec.feedback, self.spec.candidate
        made = self.project(x).unflatten(-1, (self.spec.heads, -1))
        vectors, betas = made.split([gates * 5 * self.head_width, gates * 2], dim=-1)
        parts = vectors.unflatten(-1, (gates, 5, self.head_width)).unbind(-2)
        queries, keys, values, recurrent_keys, recurrent_values = parts  # b t h g v
        queries, keys = (self.spec.key_scale(self.feature_map(z)) for z in (queries, keys))
        beta, recurrent_beta = betas.unflatten(-1, (gates, 2)).sigmoid().unbind(-1)

        as_heads = gates_as_heads(queries, keys, values)
        gate = beta.flatten(2, 3)
        reads, after = memory_scan(*as_heads, Gates(erase=gate, write=gate), memory.flatten(1, 2))
        inputs = reads.unflatten(2, (-1, gates))
        sums, recurrent, cell = delta_lstm(
            inputs,
            recurrent_keys.softmax(-1),
            recurrent_values,
            recurrent_beta,
            recurrent,
            feedback.heard(said),
            cell,
            feedback.activation,
            candidate.squash,
            candidate.beside(inputs[:, :, :, CANDIDATE]),
        )
        states = feedback.state(sums)
        y = self.out((self.spec.scale * states).flatten(-2))
        return y, DeltaLSTMState(after.view_as(memory), recurrent, states[:, -1].to(recurrent.dtype, copy=True), cell)
