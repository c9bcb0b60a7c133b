"""A fast weight memory as a mixer: feature map × key scale × update rule × read-out."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..gates import Gates
from ..kernels import memory_dtype, memory_scan
from ..memory.convolutions import Convolution
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..memory.read_outs import Plain, ReadOut
from ..memory.update_rules import Delta, UpdateRule
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class FastWeight(Mixer):
    """A page per head that is kept, erased and written again: linear attention, the delta rule and their kin."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    update_rule: UpdateRule = Delta()
    read_out: ReadOut = Plain()
    heads: int = 4
    convolution: Convolution | None = None  # of queries, keys and values, before anything else

    def __post_init__(self):
        if self.feature_map.non_negative:
            return
        sums = [self.key_scale] if self.key_scale.needs_non_negative else []
        sums += [part for part in (self.update_rule, self.read_out) if part.counts_keys]
        if sums:
            one, other = type(sums[0]).__name__, type(self.feature_map).__name__
            raise UserError(f"{one} divides by a sum of features, and {other} has negative ones: the sum may be zero")

    def build(self, width: int, norm: nn.Module | None = None) -> "FastWeightMixer":
        return FastWeightMixer(self, width, norm)


class KeySum(NamedTuple):
    """The sum of all keys written so far: a page of one column, in which every key wrote a one."""

    column: Tensor  # b h k 1
    fresh: Tensor  # b, whether nothing was written yet: a sum may be zero for other reasons


class FastWeightState(NamedTuple):
    memory: Tensor  # b h k v
    key_sum: KeySum | None
    recent: Tensor | None  # what the convolution remembers


class FastWeightMixer(MixerModule):
    def __init__(self, spec: FastWeight, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.convolution = None if spec.convolution is None else spec.convolution.build(3 * width)
        self.feature_map = spec.feature_map.build(self.head_width)
        self.update_rule = spec.update_rule.build(width, spec.heads)
        self.read_out = spec.read_out.build(width, spec.heads, self.head_width)
        self.out = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> FastWeightState:
        weight = self.out.weight
        features = self.spec.feature_map.features(self.head_width)
        page = weight.new_zeros(batch, self.spec.heads, features, self.head_width, dtype=memory_dtype(weight.dtype))
        recent = None if self.convolution is None else self.convolution.initial_state(batch)
        if not (self.spec.update_rule.counts_keys or self.spec.read_out.counts_keys):
            return FastWeightState(page, None, recent)
        fresh = torch.ones_like(page[:, 0, 0, 0], dtype=torch.bool)
        return FastWeightState(page, KeySum(page[..., :1].clone(), fresh), recent)

    def forward(self, x: Tensor, state: FastWeightState | None = None) -> tuple[Tensor, FastWeightState]:
        memory, key_sum, recent = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        projected = self.project(x)
        if self.convolution is not None:
            projected, recent = self.convolution(projected, recent)
        queries, keys, values = projected.unflatten(-1, (3, self.spec.heads, self.head_width)).unbind(-3)
        queries, keys = (self.spec.key_scale(self.feature_map(z)) for z in (queries, keys))

        crowding = crowding_of(keys, key_sum) if key_sum is not None and self.spec.update_rule.counts_keys else None
        gates = self.update_rule(x, crowding)
        reads, memory = memory_scan(queries, keys, values, gates, memory)
        mass = None
        if key_sum is not None:
            mass, key_sum = count_keys(queries, keys, gates, key_sum)
        return self.out(self.read_out(reads, x, mass).flatten(-2)), FastWeightState(memory, key_sum, recent)


def count_keys(queries: Tensor, keys: Tensor, gates: Gates, key_sum: KeySum) -> tuple[Tensor, KeySum]:
    """Each query's overlap with the sum of the keys up to it, `b t h`.

    The sum fades as the page fades, and a key counts for as much as was written under it. Where keys are also
    erased, they count in full: how much stays under a key then depends on what was there before.
    """
    ones = keys.new_ones(*keys.shape[:-1], 1)
    counting = Gates(gates.log_keep, write=gates.write if gates.erase is None else None)
    mass, column = memory_scan(queries, keys, ones, counting, key_sum.column)
    return mass.squeeze(-1), KeySum(column, torch.zeros_like(key_sum.fresh))


def crowding_of(keys: Tensor, key_sum: KeySum) -> Tensor:
    """Each key's overlap with the sum of the keys before it, `b t h`; one for the first key of a fresh page."""
    # one token late, rather than taken away afterwards: where nothing was written, that would leave rounding errors
    earlier = torch.cat([torch.zeros_like(keys[:, :1]), keys[:, :-1]], dim=1)
    before, _ = count_keys(keys, earlier, Gates(), key_sum)
    first = torch.zeros_like(before, dtype=torch.bool)
    first[:, 0] = key_sum.fresh[:, None]
    return torch.where(first, 1.0, before)
