"""Attention by products of queries and keys alone: torch's own."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    reach: int,
    relative: None,
    mask: None,
    persistent: None,
    empty: Tensor | None,
    dropout: float,
) -> Tensor:
    whole = queries.shape[1] == keys.shape[1] <= reach and empty is None
    reads = scaled_dot_product_attention(
        *(z.transpose(1, 2) for z in (queries, keys, values)),
        attn_mask=None if whole else visible(queries.shape[1], keys.shape[1], reach, empty, keys.device),
        is_causal=whole,
        dropout_p=dropout,
        scale=1.0,
    )
    return reads.transpose(1, 2)


def visible(queries: int, keys: int, reach: int, empty: Tensor | None, device: torch.device) -> Tensor:
    """Which keys each query sees: `t s`, or `b 1 t s` where rows differ."""
    places = torch.arange(keys, device=device)
    distances = places[keys - queries :, None] - places
    seen = (distances >= 0) & (distances < reach)
    return seen if empty is None else seen & (places >= empty[:, None, :, None])
