"""What Transformer-XL and lmtool-fwms do in their own way, as parts: their checkpoints and scores depend on it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..attention.positions import (
    AddedPositions,
    NoPositions,
    Positions,
    PositionsModule,
    ProjectedWaves,
    SinusoidalRelative,
    check_even,
    sinusoids,
)
from ..attention.spans import CachedSegments, SegmentCache, Span
from ..mixers.mixer import Mixer
from ..mixers.softmax_attention import HiddenCache, SoftmaxAttention
from ..models.block import Block, BlockModule, PostNorm, PreNorm
from ..models.embeddings import AdaptiveEmbedding, AdaptiveTables, EmbeddingModule
from ..models.heads import AdaptiveSoftmax, AdaptiveSoftmaxLayer, Matrix
from ..spec import Count, Fraction, Positive, Size


@dataclass(frozen=True)
class CountdownSinusoidal(AddedPositions):
    """Sines and cosines of the place counted from the end of the segment: the code of a token depends on its length."""

    clamp: Count | None = None
    base: Positive = 10000.0
    segment_invariant = False

    def clamping(self, clamp: int) -> "CountdownSinusoidal":
        return replace(self, clamp=clamp)

    def build(self, width: int, heads: int, head_width: int) -> "CountdownWaves":
        return CountdownWaves(self, width)


class CountdownWaves(PositionsModule):
    def __init__(self, spec: CountdownSinusoidal, width: int):
        super().__init__()
        check_even(width)
        self.spec, self.width = spec, width

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x + self.codes(x.shape[1] - 1, x.shape[1], x)

    def codes(self, first: int, count: int, like: Tensor) -> Tensor:
        """Of `count` tokens, the first of which stands `first` tokens before the end of the segment."""
        return sinusoids(countdown(first, count, self.spec.clamp, like), self.width, self.spec.base, like.dtype)


def countdown(first: int, count: int, farthest: int | None, like: Tensor) -> Tensor:
    places = torch.arange(first, first - count, -1, device=like.device)
    return places if farthest is None else places.clamp(max=farthest)


@dataclass(frozen=True)
class CountdownLearned(AddedPositions):
    """A learned vector for each place counted from the end of the segment; the farthest one serves all beyond."""

    reach: Size = 512
    segment_invariant = False

    def build(self, width: int, heads: int, head_width: int) -> "CountdownVectors":
        return CountdownVectors(self, width)


class CountdownVectors(PositionsModule):
    def __init__(self, spec: CountdownLearned, width: int):
        super().__init__()
        self.table = nn.Embedding(spec.reach, width)

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x + self.codes(x.shape[1] - 1, x.shape[1], x)

    def codes(self, first: int, count: int, like: Tensor) -> Tensor:
        return self.table(countdown(first, count, self.table.num_embeddings - 1, like))


@dataclass(frozen=True)
class DroppedSinusoidalRelative(SinusoidalRelative):
    """As SinusoidalRelative, with dropout of the sines and cosines themselves: one draw for all layers."""

    dropout: Fraction = 0.0

    def build(self, width: int, heads: int, head_width: int) -> "DroppedWaves":
        return DroppedWaves(self, width, heads, head_width)


class DroppedWaves(ProjectedWaves):
    def __init__(self, spec: DroppedSinusoidalRelative, width: int, heads: int, head_width: int):
        super().__init__(spec, width, heads, head_width)
        self.draw = SharedDraw(spec.dropout)

    def waves(self, distances: Tensor) -> Tensor:
        return self.draw(super().waves(distances))


class SharedDraw(nn.Module):
    """Dropout that falls on the same numbers each time until a new pass through the model begins."""

    shared_by_layers = True

    def __init__(self, probability: float):
        super().__init__()
        self.probability, self.seed = probability, 0

    def begin_pass(self) -> None:
        if self.training and self.probability:
            self.seed = int(torch.randint(2**62, ()))

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.probability):
            return x
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(self.seed)
            return dropout(x, self.probability)


@dataclass(frozen=True)
class SwappedSegmentCache(SegmentCache):
    """SegmentCache with two lengths mixed up: with `extra` tokens, the first segments keep other tokens than meant."""

    def build(self, heads: int) -> "SwappedSegments":
        return SwappedSegments(self)


class SwappedSegments(CachedSegments):
    def kept(self, length: int, seen: Tensor) -> int:
        if not self.spec.extra:
            return length
        filled = min(int(seen.min()), self.spec.memory)  # the rows of the originals keep in step
        return length + max(0, filled - self.spec.extra) - filled


@dataclass(frozen=True)
class AbsoluteAttention(SoftmaxAttention):
    """Attention without relative positions: under pre-norm its queries are made of the bare input.

    `memory_codes` are added to the memory at every segment, on top of those that are in it already.
    """

    positions: Positions = NoPositions()
    span: Span = SwappedSegmentCache(0)
    memory_codes: AddedPositions | None = None

    @property
    def packs(self) -> bool:
        return self.memory_codes is None and super().packs

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> Mixer:
        codes = self.memory_codes if clamp is None or self.memory_codes is None else self.memory_codes.clamping(clamp)
        clamped = replace(self, memory_codes=codes)
        return super(AbsoluteAttention, clamped).remembering(memory, same_length, clamp, extra)

    def build(self, width: int, norm: nn.Module | None = None) -> "AbsoluteAttentionMixer":
        return AbsoluteAttentionMixer(self, width, norm)


class AbsoluteAttentionMixer(HiddenCache):
    def __init__(self, spec: AbsoluteAttention, width: int, norm: nn.Module | None):
        super().__init__(spec, width, norm)
        codes = spec.memory_codes
        self.codes = None if codes is None else codes.build(width, spec.heads, self.head_width)

    def ask(self, x: Tensor, heard: Tensor) -> Tensor:
        return x

    def recall(self, hidden: Tensor, length: int) -> Tensor:
        if self.codes is None:
            return hidden
        slots = hidden.shape[1]
        return hidden + self.codes.codes(length - 1 + slots, slots, hidden)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True)
class PreNormUnclosed(PreNorm):
    """PreNorm without the norm after the last block."""

    def closing_norm(self, width: int) -> nn.Module:
        return nn.Identity()


class CodedBlocks(Block):
    """Blocks whose codes depend on where a segment ends."""

    block: Block
    segment_invariant = False
    packs = False

    @property
    def remembers(self) -> bool:
        return self.block.remembers

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> Block:
        block = self.block.remembering(memory, same_length, clamp, extra)
        return replace(self, block=block)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class FirstLayerCodes(CodedBlocks):
    """Blocks of which only the first adds codes to its memory: the positions of the embedding, once more."""

    block: Block = PostNorm(mixer=AbsoluteAttention(memory_codes=CountdownSinusoidal()))

    def at(self, layer: int) -> Block:
        if layer == 0:
            return self.block
        return replace(self.block, mixer=replace(self.block.mixer, memory_codes=None))  # pyright: ignore


@dataclass(frozen=True)
class CodesAtEveryLayer(CodedBlocks):
    """Each block adds its mixer's codes to all that enters it, also to what skips the mixer."""

    block: Block = PostNorm(mixer=AbsoluteAttention(memory_codes=CountdownLearned()))

    def build(self, width: int) -> "CodedBlock":
        return CodedBlock(self.block.build(width))

    def closing_norm(self, width: int) -> nn.Module:
        return self.block.closing_norm(width)


class CodedBlock(nn.Module):
    def __init__(self, block: BlockModule):
        super().__init__()
        self.block = block

    @property
    def mixer(self) -> nn.Module:
        return self.block.mixer

    def forward(self, x: Tensor, state=None, starts: Tensor | None = None):
        return self.block(self.mixer.codes.add(x, None), state, starts)  # pyright: ignore


@dataclass(frozen=True)
class SparingAdaptiveEmbedding(AdaptiveEmbedding):
    """AdaptiveEmbedding whose clusters have no gradient, not zeros, while no token is in them: momentum rests too."""

    def build(self, tokens: int, width: int) -> "SparingTables":
        return SparingTables(self, tokens, width)


class SparingTables(AdaptiveTables):
    narrowest = 0  # the rarest tokens may have no numbers at all, and only a bias

    def looked_into(self, cluster: Tensor) -> Iterable[int]:
        return cluster.unique().tolist()


@dataclass(frozen=True)
class SparingAdaptiveSoftmax(AdaptiveSoftmax):
    """AdaptiveSoftmax whose clusters have no gradient, not zeros, while no target is in them: momentum rests too."""

    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "SparingSoftmaxLayer":
        return SparingSoftmaxLayer(self, tokens, width, embedding)


class SparingSoftmaxLayer(AdaptiveSoftmaxLayer):
    narrowest = 0

    def nats(
        self, cluster: int, matrix: Matrix, hidden: Tensor, targets: Tensor, counted: Tensor | None = None
    ) -> Tensor:
        if counted is not None and not counted.any():
            return torch.zeros((), device=hidden.device)
        return super().nats(cluster, matrix, hidden, targets, counted)
