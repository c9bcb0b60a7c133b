"""Softmax attention as a mixer: positions × span × persistent vectors."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ..attention.persistent import PersistentVectors
from ..attention.positions import Positions, Rotary
from ..attention.spans import Adaptive, HeadGroup, SegmentCache, Span, Unlimited
from ..batch import places_of
from ..errors import UserError
from ..kernels import Relative, relative_attention
from ..kernels.attention import skips_by_head
from ..memory.key_scales import KeyScale, Unscaled
from ..spec import Fraction, Size
from ..state import State
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class SoftmaxAttention(Mixer):
    """Every earlier token is kept as it was and compared with: the Transformer's attention."""

    positions: Positions = Rotary()
    span: Span = Unlimited()
    persistent: PersistentVectors | None = None
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width
    dropout: Fraction = 0.0  # of attention weights
    key_scale: KeyScale = Unscaled()  # of queries and keys alike; UnitNorm is what others call QK-norm
    score_scale: float | None = None  # None: head width ** -0.5

    def __post_init__(self):
        super().__post_init__()
        if self.key_scale.needs_non_negative:
            scale = type(self.key_scale).__name__
            raise UserError(
                f"{scale} divides by a sum, and queries and keys of attention have either sign: use UnitNorm"
            )

    @property
    def segment_invariant(self) -> bool:
        return self.span.segment_invariant and self.positions.segment_invariant

    @property
    def remembers(self) -> bool:
        return self.span.remembers

    @property
    def packs(self) -> bool:
        return self.positions.segment_invariant

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> Mixer:
        if isinstance(self.span, Adaptive):
            return self  # it has learned how much to remember
        cache = self.span if isinstance(self.span, SegmentCache) else SegmentCache()
        positions = self.positions if clamp is None else self.positions.clamping(clamp)
        span = replace(cache, memory=memory, same_length=same_length, extra=extra)
        return replace(self, positions=positions, span=span)

    def build(self, width: int, norm: nn.Module | None = None) -> "SoftmaxAttentionMixer":
        return (HiddenCache if self.span.keeps_hidden else KeyCache)(self, width, norm)


class Asked(NamedTuple):
    """The queries of all heads: of contents, and of distances where there are relative positions."""

    content: Tensor  # b t h k
    relative: Relative | None


class SoftmaxAttentionMixer(MixerModule):
    def __init__(self, spec: SoftmaxAttention, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, 3 * spec.heads * self.head_width, bias=False)
        self.positions = spec.positions.build(width, spec.heads, self.head_width)
        self.span = spec.span.build(spec.heads)
        self.persistent = None if spec.persistent is None else spec.persistent.build(spec.heads, self.head_width)
        self.out = nn.Linear(spec.heads * self.head_width, width, bias=False)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        return self.packed(x, None, state)

    def hear(self, x: Tensor, places: Tensor) -> Tensor:
        """What the projections read of the hidden states at these places."""
        return self.positions.add(x if self.norm is None else self.norm(x), places)

    def fresh_places(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.long, device=self.out.weight.device)

    def ask_for(self, queries: Tensor, keys: int) -> Asked:
        """What all heads ask for, of as many keys as there are or as the farthest-looking of them sees."""
        reaches = [keys if group.reach is None else min(group.reach, keys) for group in self.span.groups()]
        content, relative = self.positions.relate(queries, max(reaches))
        scale = self.head_width**-0.5 if self.spec.score_scale is None else self.spec.score_scale
        return Asked(content * scale, relative and relative.times(scale))

    def attend(self, group: HeadGroup, asked: Asked, keys: Tensor, values: Tensor, empty: Tensor | None) -> Tensor:
        """The reads of a group of heads; keys and values are those of these heads alone."""
        heads, length = group.heads, keys.shape[1]
        return relative_attention(
            asked.content[:, :, heads],
            keys,
            values,
            relative=asked.relative and asked.relative.of_heads(heads),
            reach=group.reach,
            mask=self.span.mask(heads, length if group.reach is None else min(group.reach, length)),
            persistent=None if self.persistent is None else self.persistent(heads),
            empty=empty,
            dropout=self.spec.dropout if self.training else 0.0,
        )


class KeyState(NamedTuple):
    """The cache ends at the present; its first slots are empty while fewer tokens than slots were seen."""

    keys: Tensor  # b s h k
    values: Tensor  # b s h v
    seen: Tensor  # b, tokens of the present document read so far


class KeyCache(SoftmaxAttentionMixer):
    """Keeps keys and values."""

    def initial_state(self, batch: int) -> KeyState:
        cache = self.out.weight.new_zeros(batch, self.span.slots or 0, self.spec.heads, self.head_width)
        return KeyState(cache, cache.clone(), self.fresh_places(batch))

    def packed(self, x: Tensor, starts: Tensor | None, state: KeyState | None = None) -> tuple[Tensor, KeyState]:
        old = self.initial_state(len(x)) if state is None else state
        places = places_of(old.seen, x.shape[1], starts)
        projected = self.project(self.hear(x, places))
        queries, keys, values = projected.unflatten(-1, (3, self.spec.heads, self.head_width)).unbind(-3)
        queries, keys = (self.positions.turn(self.spec.key_scale(z), places) for z in (queries, keys))
        all_keys, all_values = keys, values
        if old.keys.shape[1]:
            all_keys, all_values = torch.cat([old.keys, keys], dim=1), torch.cat([old.values, values], dim=1)
        if state is not None:  # a fresh cache holds nothing to look at
            keys, values = all_keys, all_values
        empty = empty_before(places, keys.shape[1] - x.shape[1], starts)
        reads = self.attend(self.span.together(), self.ask_for(queries, keys.shape[1]), keys, values, empty)
        kept = slice(None if self.span.slots is None else all_keys.shape[1] - self.span.slots, None)
        return self.out(reads.flatten(-2)), KeyState(all_keys[:, kept], all_values[:, kept], places[:, -1] + 1)


class HiddenState(NamedTuple):
    """The memory ends at the present; its first slots are empty while fewer tokens than slots were kept."""

    hidden: Tensor  # b s d, as they were before the norm
    seen: Tensor  # b, tokens of the present document read so far, but for those that are to be read again


class HiddenCache(SoftmaxAttentionMixer):
    """Keeps hidden states, and projects for each group of heads no more of them than it sees.

    There is one group where attention itself skips, head by head, what a head does not see.
    """

    def initial_state(self, batch: int) -> HiddenState:
        hidden = self.out.weight.new_zeros(batch, self.span.slots or 0, self.project.in_features)
        return HiddenState(hidden, self.fresh_places(batch))

    def recall(self, hidden: Tensor, length: int) -> Tensor:
        """The memory as it is read, and kept, when a segment of this length comes."""
        return hidden

    def ask(self, x: Tensor, heard: Tensor) -> Tensor:
        """What queries are made of: the tokens of the segment, bare or as they are heard."""
        return heard

    def packed(self, x: Tensor, starts: Tensor | None, state: HiddenState | None = None) -> tuple[Tensor, HiddenState]:
        slots, length = self.span.slots or 0, x.shape[1]
        seen = self.fresh_places(len(x)) if state is None else state.seen
        hidden = x if state is None else torch.cat([self.recall(state.hidden, length), x], dim=1)
        cached = hidden.shape[1] - length
        places = torch.cat([places_of(seen - cached, cached), places_of(seen, length, starts)], dim=1)
        heard = self.hear(hidden, places)
        weights = self.project.weight.unflatten(0, (3, self.spec.heads, self.head_width))
        queries = linear(self.ask(x, heard[:, cached:]), weights[0].flatten(0, 1)).unflatten(-1, weights.shape[1:3])
        queries = self.positions.turn(self.spec.key_scale(queries), places[:, cached:])
        asked = self.ask_for(queries, cached + length)
        groups, reads = [self.span.together()] if skips_by_head(queries) else self.span.groups(), []
        for group in groups:
            beyond = 0 if group.reach is None else max(0, cached + 1 - group.reach)  # slots that no query sees
            keys, values = (
                linear(heard[:, beyond:], weights[1:, group.heads].flatten(0, 2))
                .unflatten(-1, (2, -1, self.head_width))
                .unbind(2)
            )
            keys = self.positions.turn(self.spec.key_scale(keys), places[:, beyond:])
            empty = empty_before(places[:, cached:], cached - beyond, starts)
            reads.append(self.attend(group, asked, keys, values, empty))
        together = in_order(reads, groups)
        kept = self.span.kept(length, seen)
        memory = hidden[:, : cached + kept]
        spare = slots - memory.shape[1]
        if state is None or spare < 0:  # slots that are added later would not be known as empty: so much was seen
            memory = pad(memory, (0, 0, spare, 0))  # cuts where there is too much
        seen = places[:, cached + kept - 1] + 1 if kept else seen
        return self.out(together.flatten(-2)), HiddenState(memory, seen)


def empty_before(places: Tensor, cached: int, starts: Tensor | None) -> Tensor | None:
    """How many of the keys, `cached` ones first, are none of the document of the query at each of the places `b t`."""
    if starts is None:  # what is empty is empty for all queries of a row
        return (cached - places[:, 0]).clamp(min=0) if cached else None
    return (torch.arange(cached, cached + places.shape[1], device=places.device) - places).clamp(min=0)


def in_order(reads: list[Tensor], groups: list[HeadGroup]) -> Tensor:
    """The heads of all groups where they belong."""
    if len(groups) == 1:
        return reads[0]
    order = [head for group in groups for head in group.heads]  # pyright: ignore[reportGeneralTypeIssues]
    return torch.cat(reads, dim=2)[:, :, sorted(range(len(order)), key=order.__getitem__)]
