"""Softmax attention as a mixer: positions × span."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..attention.positions import Positions, Rotary
from ..attention.spans import Span, Unlimited
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class SoftmaxAttention(Mixer):
    """Every earlier token is kept as it was and compared with: the Transformer's attention."""

    positions: Positions = Rotary()
    span: Span = Unlimited()
    heads: int = 4
    dropout: float = 0.0  # of attention weights

    def build(self, width: int, norm: nn.Module | None = None) -> "SoftmaxAttentionMixer":
        return SoftmaxAttentionMixer(self, width, norm)


class AttentionState(NamedTuple):
    """The cache ends at the present; its first slots are empty while fewer tokens than slots were seen."""

    keys: Tensor  # b s h k
    values: Tensor  # b s h v
    seen: Tensor  # b, tokens read so far


class SoftmaxAttentionMixer(MixerModule):
    def __init__(self, spec: SoftmaxAttention, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = split_width(width, spec.heads)
        spec.positions.check(width, self.head_width)
        self.norm = norm
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> AttentionState:
        cache = self.out.weight.new_zeros(batch, self.spec.span.slots(), self.spec.heads, self.head_width)
        return AttentionState(cache, cache.clone(), torch.zeros(batch, dtype=torch.long, device=cache.device))

    def forward(self, x: Tensor, state: AttentionState | None = None) -> tuple[Tensor, AttentionState]:
        old = self.initial_state(len(x)) if state is None else state
        places = old.seen[:, None] + torch.arange(x.shape[1], device=x.device)
        x = x if self.norm is None else self.norm(x)
        x = self.spec.positions.add(x, places)
        queries, keys, values = self.project(x).unflatten(-1, (3, self.spec.heads, self.head_width)).unbind(-3)
        queries, keys = (self.spec.positions.turn(z, places) for z in (queries, keys))

        all_keys, all_values = torch.cat([old.keys, keys], dim=1), torch.cat([old.values, values], dim=1)
        if state is None and self.spec.span.covers(x.shape[1]):
            reads = self.attend(queries, keys, values, None)
        else:
            reads = self.attend(queries, all_keys, all_values, self.visible(places, all_keys.shape[1]))
        trim = self.spec.span.trim
        return self.out(reads.flatten(-2)), AttentionState(trim(all_keys), trim(all_values), old.seen + x.shape[1])

    def visible(self, places: Tensor, slots: int) -> Tensor:
        """Which of the slots, the last of which holds the last token, each query may see: `b t s`."""
        key_places = places[:, -1:] + 1 - slots + torch.arange(slots, device=places.device)
        filled = key_places >= 0
        return self.spec.span.allows(places[:, :, None] - key_places[:, None]) & filled[:, None]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
        reads = scaled_dot_product_attention(
            *(z.transpose(1, 2) for z in (queries, keys, values)),
            attn_mask=None if visible is None else visible[:, None],
            is_causal=visible is None,
            dropout_p=self.spec.dropout if self.training else 0.0,
        )
        return reads.transpose(1, 2)
