"""How a source is read that is there as a whole: by itself in an encoder, by another text in a decoder.

Built, it offers two things. `write(source, present)` makes of `b s d` what is kept of the source, a page: a state,
whose rows can be cut, joined and repeated. `read(x, page)` lets each token of `b t d` ask it. What fills a row up,
where `present` `b s` is false, is never seen; a source has at least one token.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels.source import read_memory, source_attention, source_memory
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, Unscaled
from ..memory.read_outs import Normalised, ReadOut
from ..spec import Fraction, Size, Spec
from ..state import State
from .fast_weight import by_head, refuse_signed_sums
from .mixer import split_width


class SourceAttention(Spec):
    """Builds a module that writes a page of a source and reads it."""

    heads: int

    def build(self, width: int) -> "SourceAttentionModule":
        raise NotImplementedError


class SourceAttentionModule(nn.Module):
    """Queries come from one text, keys and values from the other; both are normed by whoever calls."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.head_width = heads, split_width(width, heads)
        self.ask = nn.Linear(width, width, bias=False)
        self.project = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """A text that reads itself, from both sides."""
        return self.read(x, self.write(x, present))

    def write(self, source: Tensor, present: Tensor) -> State:
        keys, values = (by_head(z, self.heads, self.head_width) for z in self.project(source).chunk(2, dim=-1))
        return self.keep(keys, values, present)

    def read(self, x: Tensor, page: State) -> Tensor:
        return self.out(self.recall(by_head(self.ask(x), self.heads, self.head_width), page, x).flatten(-2))

    def keep(self, keys: Tensor, values: Tensor, present: Tensor) -> State:
        """keys and values `b s h k`"""
        raise NotImplementedError

    def recall(self, queries: Tensor, page: State, x: Tensor) -> Tensor:
        """queries `b t h k`, made of x `b t d` -> `b t h v`"""
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxSource(SourceAttention):
    """Every token of the source is kept as it was and compared with: the Transformer's attention to it."""

    heads: Size = 4
    dropout: Fraction = 0.0  # of attention weights

    def build(self, width: int) -> "SoftmaxSourceAttention":
        return SoftmaxSourceAttention(self, width)


class KeptSource(NamedTuple):
    keys: Tensor  # b s h k
    values: Tensor  # b s h v
    present: Tensor  # b s


class SoftmaxSourceAttention(SourceAttentionModule):
    def __init__(self, spec: SoftmaxSource, width: int):
        super().__init__(width, spec.heads)
        self.spec = spec

    def keep(self, keys: Tensor, values: Tensor, present: Tensor) -> KeptSource:
        return KeptSource(keys, values, present)

    def recall(self, queries: Tensor, page: KeptSource, x: Tensor) -> Tensor:
        dropout = self.spec.dropout if self.training else 0.0
        return source_attention(queries * self.head_width**-0.5, *page, dropout)


@dataclass(frozen=True)
class MemorySource(SourceAttention):
    """A page per head, written once from the whole source: linear attention, at one cost however long the source."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = Unscaled()
    read_out: ReadOut = Normalised()
    heads: Size = 4

    def __post_init__(self):
        super().__post_init__()
        refuse_signed_sums(self.feature_map, self.key_scale, self.read_out)

    @property
    def weighs_keys(self) -> bool:
        """Whether keys differ by more than the map shows, in ways that are not scaled away."""
        return self.feature_map.relative and self.key_scale.keeps_sizes

    def build(self, width: int) -> "MemorySourceAttention":
        return MemorySourceAttention(self, width)


class WrittenSource(NamedTuple):
    memory: Tensor  # b h k v
    key_sum: Tensor  # b h k 1, a page in which every key wrote a one


class MemorySourceAttention(SourceAttentionModule):
    def __init__(self, spec: MemorySource, width: int):
        super().__init__(width, spec.heads)
        self.spec = spec
        self.feature_map = spec.feature_map.build(self.head_width)
        self.read_out = spec.read_out.build(width, spec.heads, self.head_width)

    def features_of(self, x: Tensor) -> Tensor:
        return self.spec.key_scale(self.feature_map(x))

    def keep(self, keys: Tensor, values: Tensor, present: Tensor) -> WrittenSource:
        heights = torch.zeros_like(keys[..., 0])
        if self.spec.weighs_keys:
            heights = self.feature_map.heights(keys)  # pyright: ignore[reportCallIssue]
        heights = heights.masked_fill(~present[..., None], -torch.inf)
        write = (heights - heights.amax(1, keepdim=True)).exp()  # none is too large for a number, and the absent zero
        keys, ones = self.features_of(keys), torch.ones_like(values[..., :1])
        return WrittenSource(source_memory(keys, values, write), source_memory(keys, ones, write))

    def recall(self, queries: Tensor, page: WrittenSource, x: Tensor) -> Tensor:
        queries = self.features_of(queries)
        mass = read_memory(queries, page.key_sum).squeeze(-1) if self.spec.read_out.counts_keys else None
        return self.read_out(read_memory(queries, page.memory), x, mass)
