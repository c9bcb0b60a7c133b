"""Spans: how far back attention looks, and what it keeps for the next segment.

Some keep keys and values, and look back on them as they were. The others keep hidden states, which are projected
again whenever they are read: the projections learn from them too.
"""

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..bounds import bounded
from ..direct import direct, transformed
from ..errors import UserError
from ..spec import Count, Share, Size, Spec

BUCKET = 64  # windows of adaptive spans are multiples of it


class Span(Spec):
    keeps_hidden: ClassVar[bool] = False  # hidden states, instead of keys and values
    segment_invariant: bool  # whether it does not matter how a text is cut into segments
    remembers: bool = True  # whether anything of a segment is left for the next

    def build(self, heads: int) -> "SpanModule":
        raise NotImplementedError


class HeadGroup(NamedTuple):
    """Heads that look equally far back."""

    heads: slice | list[int]
    reach: int | None  # tokens seen, the present one included; None: all


class SpanModule(nn.Module):
    slots: int | None  # tokens kept for the next segment; None: all

    def groups(self) -> list[HeadGroup]:
        return [HeadGroup(slice(None), None)]

    def together(self) -> HeadGroup:
        """All heads as one group, which looks as far as the farthest-looking of them."""
        (group,) = self.groups()
        return group

    def mask(self, heads: slice | list[int], distances: int) -> Tensor | None:
        """The share `h r` of each distance 0 … `distances` − 1; None: the whole."""
        return None

    def kept(self, length: int, seen: Tensor) -> int:
        """How many tokens of a segment of this length are kept, when `seen` `b` were read before it."""
        return length


@dataclass(frozen=True)
class Unlimited(Span):
    """All that came before; the cache grows with the text."""

    segment_invariant = True

    def build(self, heads: int) -> "Window":
        return Window(None)


@dataclass(frozen=True)
class Fixed(Span):
    """The last `length` tokens, the present one included; the cache has that size and no more."""

    length: Size = 256
    segment_invariant = True

    def build(self, heads: int) -> "Window":
        return Window(self.length)


class Window(SpanModule):
    def __init__(self, reach: int | None):
        super().__init__()
        self.reach = reach
        self.slots = None if reach is None else reach - 1

    def groups(self) -> list[HeadGroup]:
        return [HeadGroup(slice(None), self.reach)]


@dataclass(frozen=True)
class SegmentCache(Span):
    """Transformer-XL's: the segment so far and the last `memory` hidden states before it.

    That window grows along the segment; with `same_length` it is the last `memory` tokens, the present one included,
    at every place.
    """

    memory: Count = 256
    same_length: bool = False
    extra: Count = 0  # tokens at the end of a segment that the next one reads again, so that they are not kept
    keeps_hidden = True

    def __post_init__(self):
        super().__post_init__()
        if self.same_length and not self.memory:
            raise UserError("same_length with a memory of 0 would see nothing at all: give a memory, or let it grow")

    @property
    def segment_invariant(self) -> bool:
        return self.same_length

    @property
    def remembers(self) -> bool:
        return self.memory > 0

    def build(self, heads: int) -> "CachedSegments":
        return CachedSegments(self)


class CachedSegments(SpanModule):
    def __init__(self, spec: SegmentCache):
        super().__init__()
        self.spec, self.slots = spec, spec.memory

    def groups(self) -> list[HeadGroup]:
        return [HeadGroup(slice(None), self.spec.memory if self.spec.same_length else None)]

    def kept(self, length: int, seen: Tensor) -> int:
        return max(0, length - self.spec.extra)


@dataclass(frozen=True)
class Adaptive(Span):
    """Every head learns how far it looks back: at most `limit` tokens, fading out over the last `ramp` of them."""

    limit: Size = 1024
    ramp: Size = 32
    initial: Share = 0.0  # span at the start, as a share of the limit
    penalty: float = 2e-6  # added to the loss for each token of the mean span
    keeps_hidden = True
    segment_invariant = True

    def build(self, heads: int) -> "AdaptiveSpans":
        return AdaptiveSpans(self, heads)


class Version(NamedTuple):
    """By which a parameter is known to have the same numbers as before."""

    storage: int
    changes: int

    @classmethod
    def of(cls, parameter: Tensor) -> "Version | None":
        """None where its numbers are at hand, or where torch does not count what is done to them."""
        counted = not (parameter.is_cpu or parameter.is_inference())
        return cls(parameter.data_ptr(), parameter._version) if counted else None


class Reading:
    """Numbers on their way from a GPU, on which the host waits only when it wants them."""

    def __init__(self, parameter: nn.Parameter):
        self.version = Version.of(parameter)
        self.numbers = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=True)
        self.numbers.copy_(parameter.detach(), non_blocking=True)
        self.arrived = torch.cuda.Event()
        self.arrived.record()

    def tolist(self) -> list[float]:
        self.arrived.synchronize()
        return self.numbers.tolist()


def shares(ratios: Tensor, limit: int, ramp: int, distances: int) -> Tensor:
    """The share `h r` that heads with spans of these parts of the limit have of each distance."""
    if torch.compiler.is_compiling() or transformed() or not ratios.requires_grad:
        held = bounded(ratios, least=0.0, most=1.0)
        return bounded(faded(held, limit, ramp, distances), least=0.0, most=1.0)
    return learned_shares(ratios, limit, ramp, distances)


def faded(ratios: Tensor, limit: int, ramp: int, distances: int) -> Tensor:
    """Before it is held between nothing and the whole, as ratios have to be."""
    spans = (ratios * limit).unsqueeze(1)
    return (spans - torch.arange(distances, device=ratios.device)) / ramp + 1


class Shares(torch.autograd.Function):
    """With a gradient of few operations: they are so small that the host takes longer for each than a device."""

    @staticmethod
    def forward(ctx, ratios, limit, ramp, distances):
        raw = faded(ratios.clamp(0, 1), limit, ramp, distances)
        ctx.save_for_backward(ratios, raw)
        ctx.slope = limit, ramp
        return raw.clamp(0, 1)

    @staticmethod
    def backward(ctx, *grads):
        (ratios, raw), (limit, ramp) = ctx.saved_tensors, ctx.slope
        of_spans = (of_held(grads[0], raw) / ramp).sum(1)
        return of_held(of_spans * limit, ratios), None, None, None


learned_shares = direct(Shares)


def of_held(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of what is held between 0 and 1, which are among the numbers that have one, but not for hardtanh."""
    kind = torch.finfo(x.dtype)
    return torch.ops.aten.hardtanh_backward(grad, x, -kind.tiny, 1 + kind.eps)


class AdaptiveSpans(SpanModule):
    """Windows are whole numbers, read off the device after a step and not within one."""

    def __init__(self, spec: Adaptive, heads: int):
        super().__init__()
        self.spec = spec
        self.ratio = nn.Parameter(torch.full((heads,), spec.initial))
        self.windows: list[int] = []
        self.made_of: Version | None = None  # of `ratio`: what the windows fit
        self.reading: Reading | None = None

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.constant_(self.ratio, self.spec.initial)

    def mask(self, heads: slice | list[int], distances: int) -> Tensor:
        ratios = self.ratio if heads == slice(None) else self.ratio[heads]
        return shares(ratios, self.spec.limit, self.spec.ramp, distances)

    def groups(self) -> list[HeadGroup]:
        self.refresh()
        heads = {window: [h for h, w in enumerate(self.windows) if w == window] for window in sorted(set(self.windows))}
        if len(heads) == 1:
            return [HeadGroup(slice(None), self.windows[0])]
        return [HeadGroup(members, window) for window, members in heads.items()]

    def together(self) -> HeadGroup:
        self.refresh()
        return HeadGroup(slice(None), max(self.windows))

    @property
    def slots(self) -> int:
        """What the widest head sees before the present, and a bucket more, for it may grow."""
        self.refresh()
        return min(self.spec.limit, max(self.windows) + BUCKET) - 1

    def refresh(self) -> None:
        if torch.compiler.is_compiling():  # then `shape` was asked for just before
            return
        now = Version.of(self.ratio)
        if now is None or self.made_of != now:
            self.windows = [min(self.spec.limit, BUCKET * ceil(span / BUCKET)) for span in self.spans()]
            self.made_of = now

    def spans(self) -> list[int]:
        """How many tokens each head sees, with the ramp."""
        if self.ratio.is_meta:  # a model that is only measured has no numbers yet
            ratios = [self.spec.initial] * len(self.ratio)
        elif self.reading is not None and self.reading.version == Version.of(self.ratio):
            ratios = self.reading.tolist()
        else:
            ratios = self.ratio.detach().clamp(0, 1).tolist()
        return [min(self.spec.limit, ceil(ratio * self.spec.limit) + self.spec.ramp) for ratio in ratios]

    def penalty(self) -> Tensor:
        return self.spec.penalty * self.spec.limit * self.ratio.mean()

    def after_step(self) -> None:
        with torch.no_grad():
            self.ratio.clamp_(0, 1)
        if self.ratio.is_cuda:
            self.reading = Reading(self.ratio)

    def shape(self) -> tuple[int, ...]:
        self.refresh()
        return tuple(self.windows)

    def gauges(self) -> dict[str, list[float]]:
        return {"span": [float(span) for span in self.spans()]}
