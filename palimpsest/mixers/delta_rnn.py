"""Delta RNN: a recurrent net whose weights are rewritten at every token."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from ..gates import Gates
from ..kernels import memory_dtype
from ..kernels.delta_rnn import delta_rnn
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..memory.read_outs import Plain, ReadOut
from ..spec import Size
from .fast_weight import KeySum, scan_and_count
from .feedback import Feedback, SoftmaxFeedback
from .mixer import Mixer, MixerModule, split_width
from .out_projection import OutProjection, build_out
from .sums import fresh_sum, refuse_signed


@dataclass(frozen=True)
class DeltaRNN(Mixer):
    """A recurrent net whose matrices, one for its input and one for its own past, are delta memories."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    feedback: Feedback = SoftmaxFeedback()
    read_out: ReadOut = Plain()
    out: OutProjection | None = OutProjection()
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def __post_init__(self):
        super().__post_init__()
        refuse_signed(self.feature_map, self.key_scale, self.read_out)

    def build(self, width: int, norm: nn.Module | None = None) -> "DeltaRNNMixer":
        return DeltaRNNMixer(self, width, norm)


class DeltaRNNState(NamedTuple):
    memory: Tensor  # b h k v, reads the input
    recurrent: Tensor  # b h v v, reads the past
    said: Tensor  # b h v
    key_sum: KeySum | None


class DeltaRNNMixer(MixerModule):
    """Each head's part of `project` is query, key, value, the recurrent key and value, β and the recurrent β."""

    def __init__(self, spec: DeltaRNN, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, spec.heads * (5 * self.head_width + 2), bias=False)
        self.feature_map = spec.feature_map.build(self.head_width)
        self.read_out = spec.read_out.build(width, spec.heads, self.head_width)
        self.out = build_out(spec.out, spec.heads * self.head_width, width)

    def initial_state(self, batch: int) -> DeltaRNNState:
        weight, width = self.project.weight, self.head_width
        zeros = partial(weight.new_zeros, dtype=memory_dtype(weight.dtype))
        rows = (batch, self.spec.heads)
        memory = zeros(*rows, self.spec.feature_map.features(width), width)
        key_sum = fresh_sum(memory) if self.spec.read_out.counts_keys else None
        return DeltaRNNState(memory, zeros(*rows, width, width), zeros(*rows, width), key_sum)

    def forward(self, x: Tensor, state: DeltaRNNState | None = None) -> tuple[Tensor, DeltaRNNState]:
        memory, recurrent, said, key_sum = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        width, feedback = self.head_width, self.spec.feedback
        parts = self.project(x).unflatten(-1, (self.spec.heads, -1)).split([width] * 5 + [2], dim=-1)
        queries, keys, values, recurrent_keys, recurrent_values, betas = parts
        queries, keys = (self.spec.key_scale(self.feature_map(z)) for z in (queries, keys))
        beta, recurrent_beta = betas.sigmoid().unbind(-1)
        gates = Gates(erase=beta, write=beta)

        inputs, memory, mass, key_sum = scan_and_count(queries, keys, values, gates, memory, key_sum)
        recurrence = (recurrent_keys.softmax(-1), recurrent_values, recurrent_beta, recurrent)
        sums, recurrent = delta_rnn(inputs, *recurrence, feedback.heard(said), feedback.activation)
        states = feedback.state(sums)
        y = self.out(self.read_out(states, x, mass).flatten(-2))
        return y, DeltaRNNState(memory, recurrent, states[:, -1].to(recurrent.dtype, copy=True), key_sum)
