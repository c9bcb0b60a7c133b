"""Relative attention for some queries at a time, with only the keys that these can see.

What depends on the distance is made with the distance as its last axis and then shifted, row by row, to where
the key of that distance stands. Products are made in the type of the inputs, scores and weights in at least float32.
"""

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad

from ..relative import Relative
from .attention_plain import visible

BLOCK = {"cpu": 128}  # queries at a time
USUAL_BLOCK = 512


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
    block: int | None = None,
) -> Tensor:
    block = block or BLOCK.get(queries.device.type, USUAL_BLOCK)
    cached, exact = keys.shape[1] - queries.shape[1], torch.promote_types(queries.dtype, torch.float32)
    queries, keys, values = (z.transpose(1, 2) for z in (queries, keys, values))
    blocks = queries.split(block, dim=2)
    if relative is None:
        place_queries, by_distance = (None,) * len(blocks), None
    else:
        place_queries = blocks if relative.queries is None else relative.queries.transpose(1, 2).split(block, dim=2)
        by_distance = relative.table.flip(0).permute(1, 2, 0)  # h k r, the farthest first
    bias = None if relative is None or relative.bias is None else relative.bias.to(exact).flip(0).T[:, None]
    shares = None if mask is None else mask.to(exact).flip(1)
    empties = (None,) * len(blocks) if empty is None else empty.split(block, dim=1)
    reads, last = [], cached
    for query, place_query, empty in zip(blocks, place_queries, empties, strict=True):
        first, last = max(0, last + 1 - reach), last + query.shape[2]
        key, value = keys[:, :, first:last], values[:, :, first:last]
        scores = (query @ key.transpose(-1, -2)).to(exact)
        count = key.shape[2]
        if place_query is not None and by_distance is not None:
            by_place = (place_query @ nearest(by_distance, count)).to(exact)
            scores = scores + to_keys(by_place if bias is None else by_place + nearest(bias, count), count)
        seen = visible(query.shape[2], count, reach, None if empty is None else (empty - first), key.device)
        share = None
        if shares is not None:
            share = to_keys(nearest(shares, count)[:, None].expand(-1, query.shape[2], -1), count)
        if persistent is not None:
            scores = torch.cat([scores, (query @ persistent[0].transpose(-1, -2)).to(exact)], dim=-1)
            seen = pad(seen, (0, persistent[0].shape[1]), value=True)
            share = None if share is None else pad(share, (0, persistent[0].shape[1]), value=1.0)
        weights = drop(softmax(scores, seen, share), dropout).to(value.dtype)
        read = weights[..., :count] @ value
        if persistent is not None:
            read = read + weights[..., count:] @ persistent[1]
        reads.append(read)
    return torch.cat(reads, dim=2).transpose(1, 2)


def nearest(farthest_first: Tensor, count: int) -> Tensor:
    """The last `count` distances; what a block sees beyond the reach has none, and is put in as zero."""
    known = farthest_first.shape[-1]
    return farthest_first[..., known - count :] if known >= count else pad(farthest_first, (count - known, 0))


def to_keys(by_distance: Tensor, count: int) -> Tensor:
    """`… t r`, the farthest distance first -> `… t s`: the last t of s = r keys are the rows' own; the future is junk.

    Row i has to move left by t − 1 − i: written out end to end and read again in rows one shorter, it does.
    """
    rows = by_distance.shape[-2]
    line = pad(by_distance, (0, rows)).flatten(-2)
    length = count + rows - 1
    return line[..., rows - 1 : rows - 1 + rows * length].unflatten(-1, (rows, length))[..., :count]


def softmax(scores: Tensor, seen: Tensor, share: Tensor | None) -> Tensor:
    if share is None:
        return scores.masked_fill(~seen, -torch.inf).softmax(-1)
    share, bare = share * seen, scores.detach()
    largest = bare.masked_fill(share <= 0, -torch.inf).amax(-1, keepdim=True)
    # what has no share may stand above the largest score of those that have: nothing may overflow there
    weights = share * (scores - torch.maximum(bare, largest)).exp()
    return weights / weights.sum(-1, keepdim=True)
