"""Delta MLP: the fast net is not one matrix but a feed-forward net, each layer of it a delta memory."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from ..gates import Gates
from ..kernels import memory_dtype, memory_scan
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..spec import Size
from .mixer import Mixer, MixerModule, split_width
from .sums import refuse_signed


@dataclass(frozen=True)
class DeltaMLP(Mixer):
    """Queries go through feed-forward blocks, up and down, whose matrices are delta memories."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    depth: Size = 1  # blocks
    inner: Size | None = None  # numbers of a head between up and down; None: four times as many as outside
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def __post_init__(self):
        super().__post_init__()
        refuse_signed(self.feature_map, self.key_scale)

    def build(self, width: int, norm: nn.Module | None = None) -> "DeltaMLPMixer":
        return DeltaMLPMixer(self, width, norm)


class DeltaMLPBlockState(NamedTuple):
    up: Tensor  # b h k v
    down: Tensor  # b h k v


class DeltaMLPState(NamedTuple):
    blocks: tuple[DeltaMLPBlockState, ...]


class DeltaMLPMixer(MixerModule):
    """Each head's part of `project` is the query; for every block the keys up and down and the values up and down;
    and last, for every block, β up and down."""

    def __init__(self, spec: DeltaMLP, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.inner = spec.inner or 4 * self.head_width
        self.norm = norm
        numbers = self.head_width + spec.depth * (2 * (self.head_width + self.inner) + 2)
        self.project = nn.Linear(width, spec.heads * numbers, bias=False)
        self.block_norms = nn.ModuleList(nn.LayerNorm(self.head_width) for _ in range(spec.depth))
        self.outer_map = spec.feature_map.build(self.head_width)
        self.inner_map = spec.feature_map.build(self.inner)
        self.out = nn.Linear(spec.heads * self.head_width, width, bias=False)

    def initial_state(self, batch: int) -> DeltaMLPState:
        weight, outer, inner = self.project.weight, self.head_width, self.inner

        def page(inputs: int, outputs: int) -> Tensor:
            features = self.spec.feature_map.features(inputs)
            return weight.new_zeros(batch, self.spec.heads, features, outputs, dtype=memory_dtype(weight.dtype))

        blocks = (DeltaMLPBlockState(page(outer, inner), page(inner, outer)) for _ in range(self.spec.depth))
        return DeltaMLPState(tuple(blocks))

    def forward(self, x: Tensor, state: DeltaMLPState | None = None) -> tuple[Tensor, DeltaMLPState]:
        before = (self.initial_state(len(x)) if state is None else state).blocks
        x = x if self.norm is None else self.norm(x)
        depth, outer, inner = self.spec.depth, self.head_width, self.inner
        sizes = [outer, *[outer, inner, inner, outer] * depth, 2 * depth]
        y, *vectors, betas = self.project(x).unflatten(-1, (self.spec.heads, -1)).split(sizes, dim=-1)
        betas = betas.sigmoid().unbind(-1)
        after = []
        for block, norm in enumerate(self.block_norms):
            up_keys, down_keys, up_values, down_values = vectors[4 * block : 4 * block + 4]
            up_beta, down_beta = betas[2 * block : 2 * block + 2]
            raised, up = self.layer(self.outer_map, norm(y), up_keys, up_values, up_beta, before[block].up)
            lowered, down = self.layer(self.inner_map, raised, down_keys, down_values, down_beta, before[block].down)
            y = y + lowered
            after.append(DeltaMLPBlockState(up, down))
        return self.out(y.flatten(-2)), DeltaMLPState(tuple(after))

    def layer(
        self, feature_map: nn.Module, queries: Tensor, keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        queries, keys = (self.spec.key_scale(feature_map(z)) for z in (queries, keys))
        return memory_scan(queries, keys, values, Gates(erase=beta, write=beta), memory)
