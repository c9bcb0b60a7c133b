"""A delta memory whose programmer is an LSTM."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..gates import Gates
from ..kernels import memory_dtype
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..memory.read_outs import Plain, ReadOut
from ..spec import Size
from .fast_weight import KeySum, scan_and_count
from .lstm import LSTMLayer, LSTMState
from .mixer import Mixer, MixerModule, split_width
from .sums import fresh_sum, refuse_signed


@dataclass(frozen=True)
class SlowLSTM(Mixer):
    """A delta memory whose queries, keys, values and β are what an LSTM says."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    read_out: ReadOut = Plain()
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def __post_init__(self):
        super().__post_init__()
        refuse_signed(self.feature_map, self.key_scale, self.read_out)

    def build(self, width: int, norm: nn.Module | None = None) -> "SlowLSTMMixer":
        return SlowLSTMMixer(self, width, norm)


class SlowLSTMState(NamedTuple):
    memory: Tensor  # b h k v
    key_sum: KeySum | None
    programmer: LSTMState


class SlowLSTMMixer(MixerModule):
    """Each head's part of what the LSTM says is query, key, value and the logit of β."""

    def __init__(self, spec: SlowLSTM, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.programmer = LSTMLayer(width, spec.heads * (3 * self.head_width + 1))
        self.feature_map = spec.feature_map.build(self.head_width)
        self.read_out = spec.read_out.build(width, spec.heads, self.head_width)
        self.out = nn.Linear(spec.heads * self.head_width, width, bias=False)

    def initial_state(self, batch: int) -> SlowLSTMState:
        weight, features = self.out.weight, self.spec.feature_map.features(self.head_width)
        page = weight.new_zeros(batch, self.spec.heads, features, self.head_width, dtype=memory_dtype(weight.dtype))
        key_sum = fresh_sum(page) if self.spec.read_out.counts_keys else None
        return SlowLSTMState(page, key_sum, self.programmer.initial_state(batch))

    def forward(self, x: Tensor, state: SlowLSTMState | None = None) -> tuple[Tensor, SlowLSTMState]:
        memory, key_sum, programmer = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        made, programmer = self.programmer(x, programmer)
        sizes = [self.head_width] * 3 + [1]
        queries, keys, values, logits = made.unflatten(-1, (self.spec.heads, -1)).split(sizes, dim=-1)
        queries, keys = (self.spec.key_scale(self.feature_map(z)) for z in (queries, keys))
        beta = logits.squeeze(-1).sigmoid()
        gates = Gates(erase=beta, write=beta)
        reads, memory, mass, key_sum = scan_and_count(queries, keys, values, gates, memory, key_sum)
        return self.out(self.read_out(reads, x, mass).flatten(-2)), SlowLSTMState(memory, key_sum, programmer)
