"""A fast weight memory as a mixer: feature map × key scale × update rule × read-out."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..errors import UserError
from ..gates import Gates
from ..kernels import counted_scan, memory_dtype, memory_scan
from ..look import Look
from ..memory.convolutions import Convolution
from ..memory.feature_maps import EluPlusOne, FeatureMap, Identity
from ..memory.key_scales import KeyScale, SumToOne
from ..memory.read_outs import Plain, ReadOut
from ..memory.update_rules import Delta, UpdateRule
from ..spec import Size
from .heights import weighed
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class FastWeight(Mixer):
    """A page per head that is kept, erased and written again: linear attention, the delta rule and their kin."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    update_rule: UpdateRule = Delta()
    read_out: ReadOut = Plain()
    heads: Size = 4
    convolution: Convolution | None = None  # of queries, keys and values, before anything else
    value_map: FeatureMap = Identity()  # of values
    key_heads: int | None = None  # of queries and keys, each for as many heads of values; None: one for each
    head_width: Size | None = None  # of queries and keys; None: an equal share of the model's width
    value_width: Size | None = None  # of values; None: as wide as keys

    def __post_init__(self):
        super().__post_init__()
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise UserError(
                f"{self.heads} heads cannot share the keys of {self.key_heads}: choose key heads that divide the heads"
            )
        refuse_signed_sums(self.feature_map, self.key_scale, self.update_rule, self.read_out)

    @property
    def weighs_keys(self) -> bool:
        """Whether keys differ by more than the map shows, in ways that are neither scaled away nor erased by."""
        return self.feature_map.relative and self.key_scale.keeps_sizes and not self.update_rule.erases

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
    peak: Tensor | None  # b h, height of the highest key so far, where keys are weighed


class Address(NamedTuple):
    """What a segment asks of the page and what it writes on it.

    A token that writes w times asks after the last of them: at the others its query is zero.
    """

    heard: Tensor  # b t d, the input as the norm leaves it
    queries: Tensor  # b (t w) h k
    keys: Tensor  # b (t w) h k
    values: Tensor  # b (t w) h v
    gates: Gates
    recent: Tensor | None  # what the convolution remembers
    peak: Tensor | None  # b h, height of the highest key so far, where keys are weighed


class FastWeightMixer(MixerModule):
    def __init__(self, spec: FastWeight, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.value_width = spec.value_width or self.head_width
        self.key_heads = spec.key_heads or spec.heads
        self.writes = spec.update_rule.writes
        keys, values = self.key_heads * self.head_width, spec.heads * self.value_width
        self.widths = [keys, self.writes * keys, self.writes * values]
        self.norm = norm
        self.project = nn.Linear(width, sum(self.widths), bias=False)
        self.convolution = None if spec.convolution is None else spec.convolution.build(sum(self.widths))
        self.feature_map = spec.feature_map.build(self.head_width)
        self.value_map = spec.value_map.build(self.value_width)
        self.features = spec.feature_map.features(self.head_width), spec.value_map.features(self.value_width)
        self.update_rule = spec.update_rule.build(width, spec.heads, self.features[0])
        self.read_out = spec.read_out.build(width, spec.heads, self.features[1])
        self.out = nn.Linear(spec.heads * self.features[1], width, bias=False)

    def initial_state(self, batch: int) -> FastWeightState:
        weight = self.out.weight
        page = weight.new_zeros(batch, self.spec.heads, *self.features, dtype=memory_dtype(weight.dtype))
        recent = None if self.convolution is None else self.convolution.initial_state(batch)
        peak = torch.full_like(page[..., 0, 0], -torch.inf) if self.spec.weighs_keys else None
        if not (self.spec.update_rule.counts_keys or self.spec.read_out.counts_keys):
            return FastWeightState(page, None, recent, peak)
        fresh = torch.ones_like(page[:, 0, 0, 0], dtype=torch.bool)
        return FastWeightState(page, KeySum(page[..., :1].clone(), fresh), recent, peak)

    def forward(self, x: Tensor, state: FastWeightState | None = None) -> tuple[Tensor, FastWeightState]:
        return self.packed(x, None, state)

    def packed(
        self, x: Tensor, starts: Tensor | None, state: FastWeightState | None = None
    ) -> tuple[Tensor, FastWeightState]:
        state = self.initial_state(len(x)) if state is None else state
        # a rule that counts keys must see their features; the scan can make them by itself
        look = None if self.spec.update_rule.counts_keys else self.look()
        heard, queries, keys, values, gates, recent, peak = self.address(x, state, starts, look)
        scan = (queries, keys, values, gates, state.memory, state.key_sum, look)
        reads, memory, mass, key_sum = scan_and_count(*scan)
        last = slice(self.writes - 1, None, self.writes)
        reads = self.read_out(reads[:, last], heard, None if mass is None else mass[:, last])
        return self.out(reads.flatten(-2)), FastWeightState(memory, key_sum, recent, peak)

    def address(
        self, x: Tensor, state: FastWeightState, starts: Tensor | None = None, look: Look | None = None
    ) -> Address:
        """All that is done before the scan, for those who only want to see; with a look, queries and keys are raw."""
        x = x if self.norm is None else self.norm(x)
        projected, recent = self.project(x), state.recent
        if self.convolution is not None:
            projected, recent = self.convolution(projected, recent, starts)
        asked, written, values = projected.split(self.widths, dim=-1)
        queries, keys = (self.features_of(z, look) for z in (asked, written))
        if self.writes > 1:
            queries = pad(queries[:, :, None], (0, 0, 0, 0, self.writes - 1, 0)).flatten(1, 2)
            starts = None if starts is None else pad(starts[..., None], (0, self.writes - 1)).flatten(1)
        values = self.value_map(by_head(values, self.spec.heads, self.value_width))
        crowding = None
        if state.key_sum is not None and self.spec.update_rule.counts_keys:
            crowding = crowding_of(keys, state.key_sum, starts)
        gates, peak = self.update_rule(x, crowding), state.peak
        if peak is not None:
            gates, peak = weighed(gates, self.heights_of(written), peak, starts)
        return Address(x, queries, keys, values, gates.wiping(starts, keys), recent, peak)

    def look(self) -> Look:
        of, numbers = self.look_of, {**self.spec.feature_map.numbers(), **self.spec.key_scale.numbers()}
        map, scale = (type(part).__name__ for part in (self.spec.feature_map, self.spec.key_scale))
        return Look(of, getattr(self.feature_map, "matrix", None), map, scale, **numbers)

    def look_of(self, x: Tensor) -> Tensor:
        return self.spec.key_scale(self.feature_map(x))

    def features_of(self, x: Tensor, look: Look | None = None) -> Tensor:
        """Queries or keys as the page sees them, those of a key head once for each head that shares them."""
        raw = by_head(x, self.key_heads, self.head_width)
        return self.shared(self.look_of(raw) if look is None else raw)

    def heights_of(self, x: Tensor) -> Tensor:
        """What a relative map leaves out of keys, as logarithms."""
        return self.shared(self.feature_map.heights(by_head(x, self.key_heads, self.head_width)))  # pyright: ignore[reportCallIssue]

    def shared(self, x: Tensor) -> Tensor:
        """What is of a key head `b t h …`, once for each head that shares it."""
        sharing = self.spec.heads // self.key_heads
        return x if sharing == 1 else x.repeat_interleave(sharing, dim=2)


def refuse_signed_sums(feature_map: FeatureMap, key_scale: KeyScale, *parts: UpdateRule | ReadOut) -> None:
    if feature_map.non_negative:
        return
    sums = [key_scale] if key_scale.needs_non_negative else []
    sums += [part for part in parts if part.counts_keys]
    if sums:
        one, other = type(sums[0]).__name__, type(feature_map).__name__
        raise UserError(f"{one} divides by a sum of features, and {other} has negative ones: the sum may be zero")


def by_head(x: Tensor, heads: int, width: int) -> Tensor:
    """`b t (w h x)` -> `b (t w) h x`"""
    writes = x.shape[2] // (heads * width)
    return x.reshape(len(x), writes * x.shape[1], heads, width)


def scan_and_count(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor,
    key_sum: KeySum | None,
    look: Look | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, KeySum | None]:
    """Reads and the page after the last token; where keys are counted, also each query's mass and their sum."""
    if key_sum is None:
        return *memory_scan(queries, keys, values, gates, memory, look=look), None, None
    counted = counted_scan(queries, keys, values, gates, memory, key_sum.column, look=look)
    return *counted[:3], KeySum(counted[3], torch.zeros_like(key_sum.fresh))


def count_keys(queries: Tensor, keys: Tensor, gates: Gates, key_sum: KeySum) -> tuple[Tensor, KeySum]:
    """Each query's overlap with the sum of the keys up to it, `b t h`, where nothing is read beside it."""
    ones = keys.new_ones(*keys.shape[:-1], 1)
    mass, column = memory_scan(queries, keys, ones, gates, key_sum.column)
    return mass.squeeze(-1), KeySum(column, torch.zeros_like(key_sum.fresh))


def crowding_of(keys: Tensor, key_sum: KeySum, starts: Tensor | None = None) -> Tensor:
    """Each key's overlap with the sum of the keys before it, `b t h`; one for the first key of a fresh page."""
    # one token late, rather than taken away afterwards: where nothing was written, that would leave rounding errors
    earlier = torch.cat([torch.zeros_like(keys[:, :1]), keys[:, :-1]], dim=1)
    first = torch.zeros_like(keys[:, :, 0, 0], dtype=torch.bool) if starts is None else starts.clone()
    first[:, 0] |= key_sum.fresh
    earlier = earlier if starts is None else earlier.masked_fill(starts[..., None, None], 0.0)
    before, _ = count_keys(keys, earlier, Gates().wiping(starts, keys), key_sum)
    return torch.where(first[..., None], 1.0, before)
