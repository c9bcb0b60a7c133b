"""Attention as adaptive-span computes it: its checkpoints and scores depend on how.

A query sees the tokens before it and not its own. Slots of the cache that hold nothing are seen as zeros. The mask
comes after the softmax, over a window as wide as the widest head of the layer needs, and the weights are divided by
their sum and a little more.
"""

from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from ..attention.persistent import PersistentVectors
from ..attention.positions import SharedTable
from ..bounds import bounded
from ..mixers.mixer import Mixer, MixerModule, split_width
from ..spec import Fraction, Share, Size

STEP = 64  # windows shrink, and caches exceed them, by so many tokens
LITTLE = 1e-8


@dataclass(frozen=True)
class PastAttention(Mixer):
    """adaptive-span's attention to the `limit` tokens before each token, all heads alike."""

    limit: Size = 1024
    persistent: PersistentVectors | None = None
    heads: Size = 4
    dropout: Fraction = 0.0  # of attention weights

    def build(self, width: int, norm: nn.Module | None = None) -> "PastAttentionMixer":
        return PastAttentionMixer(self, width, norm)


@dataclass(frozen=True)
class AdaptivePastAttention(PastAttention):
    """adaptive-span's attention whose heads learn how far to look back."""

    ramp: Size = 32
    initial: Share = 0.0
    penalty: float = 2e-6
    shrink_cache: bool = True  # keep no more than the widest head sees

    def build(self, width: int, norm: nn.Module | None = None) -> "AdaptivePastAttentionMixer":
        return AdaptivePastAttentionMixer(self, width, norm)


class PastState(NamedTuple):
    hidden: Tensor  # b s d


class PastAttentionMixer(MixerModule):
    def __init__(self, spec: PastAttention, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = split_width(width, spec.heads)
        self.norm = norm
        # three matrices, because its optimiser clips each by itself
        self.queries, self.keys, self.values = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.vectors = SharedTable(spec.limit, self.head_width)  # row x − 1 is for the token x before
        self.persistent = None if spec.persistent is None else spec.persistent.build(spec.heads, self.head_width)
        self.out = nn.Linear(width, width, bias=False)

    def window(self) -> int:
        """How many tokens before its own a query compares itself with."""
        return self.spec.limit

    def slots(self) -> int:
        return self.spec.limit

    def masked(self, weights: Tensor, window: int) -> Tensor:
        """Weights `b h t s`, first those of the window, the farthest token first, then those of persistent vectors."""
        return weights

    def initial_state(self, batch: int) -> PastState:
        return PastState(self.out.weight.new_zeros(batch, self.slots(), self.out.out_features))

    def forward(self, x: Tensor, state: PastState | None = None) -> tuple[Tensor, PastState]:
        cache = (self.initial_state(len(x)) if state is None else state).hidden
        x = x if self.norm is None else self.norm(x)  # an empty slot stays zero: what is kept has been normed
        length, window = x.shape[1], self.window()
        hidden = torch.cat([cache, x], dim=1)
        hidden = pad(hidden, (0, 0, window + length - hidden.shape[1], 0))  # zeros where the cache is too short
        queries = self.by_head(self.queries(hidden[:, window:]))
        keys, values = self.by_head(self.keys(hidden)), self.by_head(self.values(hidden))
        scores = rows_to_windows(queries @ keys.transpose(-1, -2), window)
        scores = scores + queries @ self.vectors.table[:window].flip(0).T
        if self.persistent is not None:
            persistent_keys, persistent_values = self.persistent(slice(None))
            scores = torch.cat([scores, queries @ persistent_keys.transpose(-1, -2)], dim=-1)
        shares = self.masked((scores * self.head_width**-0.5).softmax(-1), window)
        shares = dropout(shares, self.spec.dropout, self.training)
        reads = windows_to_rows(shares[..., :window]) @ values
        if self.persistent is not None:
            reads = reads + shares[..., window:] @ persistent_values
        return self.out(reads.transpose(1, 2).flatten(-2)), PastState(self.keep(cache, x))

    def by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.spec.heads, self.head_width)).transpose(1, 2)

    def keep(self, cache: Tensor, x: Tensor) -> Tensor:
        slots, length = self.slots(), x.shape[1]
        if slots <= length:
            return x[:, length - slots :]
        return torch.cat([cache[:, max(0, cache.shape[1] - (slots - length)) :], x], dim=1)


class AdaptivePastAttentionMixer(PastAttentionMixer):
    spec: AdaptivePastAttention

    def __init__(self, spec: AdaptivePastAttention, width: int, norm: nn.Module | None):
        super().__init__(spec, width, norm)
        self.ratio = nn.Parameter(torch.full((spec.heads,), spec.initial))

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.constant_(self.ratio, self.spec.initial)

    def spans(self) -> list[int]:
        ratios = [self.spec.initial] * self.spec.heads if self.ratio.is_meta else self.ratio.tolist()
        return [min(self.spec.limit, max(0, ceil(ratio * self.spec.limit) + self.spec.ramp)) for ratio in ratios]

    def window(self) -> int:
        limit = self.spec.limit
        return limit - floor(min(limit - 1, limit - max(self.spans())) / STEP) * STEP

    def slots(self) -> int:
        return min(self.spec.limit, self.window() + STEP) if self.spec.shrink_cache else self.spec.limit

    def masked(self, weights: Tensor, window: int) -> Tensor:
        before = torch.arange(window, 0, -1, device=weights.device)
        span = self.ratio[:, None, None] * self.spec.limit
        mask = bounded((span + 1 - before) / self.spec.ramp + 1, least=0.0, most=1.0)
        weights = torch.cat([weights[..., :window] * mask, weights[..., window:]], dim=-1)
        return weights / (weights.sum(-1, keepdim=True) + LITTLE)

    def penalty(self) -> Tensor:
        return self.spec.penalty * self.spec.limit * self.ratio.mean()

    def after_step(self) -> None:
        with torch.no_grad():
            self.ratio.clamp_(0, 1)

    def gauges(self) -> dict[str, list[float]]:
        return {"span": [float(span) for span in self.spans()]}


def rows_to_windows(scores: Tensor, window: int) -> Tensor:
    """`… t (window + t)` -> `… t window`: row i begins at column i."""
    length = scores.shape[-2]
    line = pad(scores.flatten(-2), (0, length))
    return line.unflatten(-1, (length, window + length + 1))[..., :window]


def windows_to_rows(weights: Tensor) -> Tensor:
    """`… t window` -> `… t (window + t)`: row i is put at column i, zeros elsewhere."""
    length, window = weights.shape[-2:]
    line = pad(weights, (0, length + 1)).flatten(-2)
    return line[..., : length * (window + length)].unflatten(-1, (length, window + length))
