"""The definition of relative attention, one query at a time, as the equations read. Slow and obviously right."""

import torch
from einops import einsum
from torch import Tensor
from torch.nn.functional import dropout as drop

from ..bounds import bounded
from ..relative import Relative


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    reach: int,
    relative: Relative | None,
    mask: Tensor | None,
    persistent: tuple[Tensor, Tensor] | None,
    empty: Tensor | None,
    dropout: float,
) -> Tensor:
    reads, cached = [], keys.shape[1] - queries.shape[1]
    for i, query in enumerate(queries.unbind(1)):
        place = cached + i
        seen = torch.arange(max(0, place + 1 - reach), place + 1, device=keys.device)  # the places of the keys
        distances = place - seen
        scores = einsum(query, keys[:, seen], "b h k, b s h k -> b h s")
        if relative is not None:
            asking = query if relative.queries is None else relative.queries[:, i]
            scores = scores + einsum(asking, relative.table[distances], "b h k, s h k -> b h s")
            if relative.bias is not None:
                scores = scores + relative.bias[distances].T
        shares = torch.ones_like(scores) if mask is None else mask[:, distances].expand_as(scores)
        if empty is not None:
            shares = shares * (seen >= empty[:, i, None])[:, None]
        found = values[:, seen].transpose(1, 2)
        if persistent is not None:
            scores = torch.cat([scores, einsum(query, persistent[0], "b h k, h p k -> b h p")], dim=-1)
            shares = torch.cat([shares, torch.ones_like(scores[..., shares.shape[-1] :])], dim=-1)
            found = torch.cat([found, persistent[1].expand(len(query), -1, -1, -1)], dim=2)
        # with the largest score taken from all, nothing overflows; what has no share may stand above that largest
        largest = torch.where(shares > 0, scores, -torch.inf).amax(-1, keepdim=True).detach()
        weights = shares * bounded(scores - largest, most=0.0).exp()
        weights = drop(weights / weights.sum(-1, keepdim=True), dropout)
        reads.append(einsum(weights, found, "b h s, b h s v -> b h v"))
    return torch.stack(reads, dim=1)
