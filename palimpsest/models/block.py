"""A block: a mixer, then a feed-forward part, each beside the path that skips it. The mixer owns its norm."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ..errors import UserError
from ..mixers.fast_weight import FastWeight
from ..mixers.mixer import Mixer
from ..mixers.softmax_attention import SoftmaxAttention
from ..spec import Fraction, Size, Spec
from ..state import State
from .dropout import Dropout
from .feed_forward import FeedForward, Relu
from .norms import LayerNorm, Norm, RMSNorm


class Block(Spec):
    """Builds a module `forward(x, state, starts) -> (x, state)`; the state is its mixer's."""

    segment_invariant: bool  # whether it does not matter how a text is cut into segments
    packs: bool  # whether a segment may hold several documents
    remembers: bool  # whether anything of a segment is left for the next

    def at(self, layer: int) -> "Block":
        """The block that stands at this layer, counted from zero."""
        return self

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> "Block":
        """The same block, its mixers to be used with so long a memory of hidden states."""
        raise NotImplementedError

    def build(self, width: int) -> "BlockModule":
        raise NotImplementedError

    def closing_norm(self, width: int) -> nn.Module:
        """What the last block of a stack still needs."""
        return nn.Identity()

    def skip(self, width: int) -> "Skip":
        """The path that skips one more part, with norm and dropout where this block has them."""
        raise UserError(f"nothing can be put between the parts of {type(self).__name__}: use PreNorm or PostNorm")


class MixerBlock(Block):
    """One mixer and at most one feed-forward part."""

    mixer: Mixer
    feed_forward: FeedForward | None
    norm: Norm
    dropout: float

    @property
    def segment_invariant(self) -> bool:
        return self.mixer.segment_invariant

    @property
    def packs(self) -> bool:
        return self.mixer.packs

    @property
    def remembers(self) -> bool:
        return self.mixer.remembers

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> Block:
        return replace(self, mixer=self.mixer.remembering(memory, same_length, clamp, extra))  # pyright: ignore[reportArgumentType]


class BlockModule(nn.Module):
    def __init__(self, spec: MixerBlock, width: int, mixer_norm: nn.Module | None):
        super().__init__()
        self.mixer = spec.mixer.build(width, mixer_norm)
        self.feed_forward = None if spec.feed_forward is None else spec.feed_forward.build(width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, state: State | None = None, starts: Tensor | None = None) -> tuple[Tensor, State]:
        x, state = self.mixed(x, state, starts)
        return self.fed(x), state

    def mixed(self, x: Tensor, state: State | None = None, starts: Tensor | None = None) -> tuple[Tensor, State]:
        """As far as the mixer."""
        raise NotImplementedError

    def fed(self, x: Tensor) -> Tensor:
        """The rest: the feed-forward part, if there is one."""
        raise NotImplementedError

    def mix(self, x: Tensor, state: State | None, starts: Tensor | None) -> tuple[Tensor, State]:
        return self.mixer(x, state) if starts is None else self.mixer.packed(x, starts, state)


@dataclass(frozen=True)
class PreNorm(MixerBlock):
    """Each part reads a normed copy; what skips it is never normed."""

    mixer: Mixer = FastWeight()
    feed_forward: FeedForward | None = Relu()
    norm: Norm = RMSNorm()
    dropout: Fraction = 0.0  # of what each part adds

    def build(self, width: int) -> "PreNormBlock":
        return PreNormBlock(self, width)

    def closing_norm(self, width: int) -> nn.Module:
        return self.norm.build(width)

    def skip(self, width: int) -> "Skip":
        return NormedFirst(self.norm.build(width), self.dropout)


class PreNormBlock(BlockModule):
    def __init__(self, spec: PreNorm, width: int):
        super().__init__(spec, width, mixer_norm=spec.norm.build(width))
        self.norm = None if spec.feed_forward is None else spec.norm.build(width)

    def mixed(self, x: Tensor, state: State | None = None, starts: Tensor | None = None) -> tuple[Tensor, State]:
        mixed, state = self.mix(x, state, starts)
        return x + self.dropout(mixed), state

    def fed(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.norm is None:
            return x
        return x + self.dropout(self.feed_forward(self.norm(x)))


@dataclass(frozen=True)
class PostNorm(MixerBlock):
    """Each part reads the raw input; the sum with what skips it is normed, as in the first Transformer."""

    mixer: Mixer = FastWeight()
    feed_forward: FeedForward | None = Relu()
    norm: Norm = LayerNorm()
    dropout: Fraction = 0.0  # of what each part adds

    def build(self, width: int) -> "PostNormBlock":
        return PostNormBlock(self, width)

    def skip(self, width: int) -> "Skip":
        return NormedAfter(self.norm.build(width), self.dropout)


class PostNormBlock(BlockModule):
    def __init__(self, spec: PostNorm, width: int):
        super().__init__(spec, width, mixer_norm=None)
        self.mixer_norm = spec.norm.build(width)
        self.norm = None if spec.feed_forward is None else spec.norm.build(width)

    def mixed(self, x: Tensor, state: State | None = None, starts: Tensor | None = None) -> tuple[Tensor, State]:
        mixed, state = self.mix(x, state, starts)
        return self.mixer_norm(x + self.dropout(mixed)), state

    def fed(self, x: Tensor) -> Tensor:
        if self.feed_forward is None or self.norm is None:
            return x
        return self.norm(x + self.dropout(self.feed_forward(x)))


class Skip(nn.Module):
    """A part, whichever it is, beside the path that skips it."""

    def __init__(self, norm: nn.Module, dropout: float):
        super().__init__()
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class NormedFirst(Skip):
    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(part(self.norm(x)))


class NormedAfter(Skip):
    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(part(x)))


@dataclass(frozen=True)
class Hybrid(Block):
    """A stack of two kinds: every so many layers another block, such as one softmax attention after three memories."""

    usual: Block = PreNorm()
    other: Block = PreNorm(mixer=SoftmaxAttention())
    every: Size = 4  # layers

    def at(self, layer: int) -> Block:
        return (self.usual if (layer + 1) % self.every else self.other).at(layer)

    @property
    def segment_invariant(self) -> bool:
        return self.usual.segment_invariant and self.other.segment_invariant

    @property
    def packs(self) -> bool:
        return self.usual.packs and self.other.packs

    @property
    def remembers(self) -> bool:
        return self.usual.remembers and self.other.remembers

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> Block:
        usual, other = (block.remembering(memory, same_length, clamp, extra) for block in (self.usual, self.other))
        return replace(self, usual=usual, other=other)
