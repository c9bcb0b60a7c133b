"""Relative attention, forward and backward, for CUDA; nothing of the size queries × keys is ever in memory.

Queries and keys are cut into tiles of one size, laid so that a query tile and a key tile lie a whole number of tiles
`apart`. Query m of the one and key n of the other are then δ = apart · tile + m − n tokens apart. The word on that
distance stands in row m of place queries · tableᵀ: in column (m − n) mod tile of the distance tile `apart` where n ≤ m,
and of the distance tile before that elsewhere. A query tile that walks towards its own tokens so needs one new product
with the table for each key tile; it keeps the last one, picks from the two, and moves what it has picked along each
row (`moved`). Moving is its own inverse: the same brings the gradients of scores back to their distances.

`queries_kernel` owns query tiles. It also leaves what they add to the gradients of table, bias and mask, and
`distances_kernel` adds that up, always in the same order. `keys_kernel` owns key tiles, `vectors_kernel` persistent
vectors. A head goes no farther than its share does: tiles beyond that are neither read nor multiplied.
"""

import triton
import triton.language as tl

from .attention_back_kernels import distances_kernel, keys_kernel, queries_kernel, vectors_kernel
from .attention_tiles import (
    far_and_whole,
    farthest_tile,
    is_whole,
    kept,
    load_distances,
    load_tile,
    lowest_seen,
    moved,
    shares,
    store_tile,
    words,
)
from .elementary import LOG2E

__all__ = [
    "distances_kernel",
    "forward_kernel",
    "keys_kernel",
    "looks_kernel",
    "queries_kernel",
    "vectors_kernel",
]


@triton.jit
def looks_kernel(mask, looks, reach, TILE: tl.constexpr):
    """How far a head looks, and how far it sees all there is.

    It looks at all distances with a share, and at one that a span may just have reached; up to the first with less than
    a whole share it sees all.
    """
    head = tl.program_id(0)
    last = tl.zeros((TILE,), tl.int32)
    less = tl.zeros((TILE,), tl.int32) + reach
    for first in range(0, reach, TILE):
        distances = first + tl.arange(0, TILE)
        share = load_distances(mask, head, distances, reach)
        last = tl.where(share > 0, distances + 1, last)
        less = tl.where(share != 1, tl.minimum(distances, less), less)
    tl.store(looks + 2 * head, tl.minimum(tl.max(last) + 1, reach))
    tl.store(looks + 2 * head + 1, tl.min(less))


@triton.jit
def absorb(scores, share, keep, value, read, total, most, PRECISION: tl.constexpr):
    """A tile of keys taken into the running softmax; what is not seen has a score of minus infinity."""
    now = tl.maximum(most, tl.max(scores, 1))
    level = tl.where(now == -float("inf"), 0.0, now)
    weights = tl.exp2(scores * LOG2E - (level * LOG2E)[:, None])
    if share is not None:
        weights *= share
    shrink = tl.exp2((most - level) * LOG2E)
    total = total * shrink + tl.sum(weights, 1)
    if keep is not None:
        weights = tl.where(keep, weights, 0.0)
    read = tl.dot(weights.to(value.dtype), value, read * shrink[:, None], input_precision=PRECISION)
    return read, total, now


@triton.jit
def forward_kernel(
    queries,
    keys,
    values,
    places,
    table,
    bias,
    mask,
    looks,
    vector_keys,
    vector_values,
    empty,
    seed,
    reads,
    lse,
    largest,
    heads,
    length,
    slots,
    reach,
    vectors,
    dropout,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    together, number = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)  # those that see most come first
    row, head = together // heads, together % heads
    line = tl.arange(0, TILE)
    cached = slots - length
    offset = (TILE - cached % TILE) % TILE
    own_tile = (cached + offset) // TILE + number
    ours = number * TILE + line
    place = cached + ours
    far, whole = far_and_whole(looks, head, reach)
    lowest = lowest_seen(place, ours, row, empty, length, slots, reach)
    farthest = farthest_tile(cached + number * TILE, far, offset, own_tile, TILE)
    farthest = tl.minimum(farthest, own_tile - (tl.min(lowest) + offset) // TILE)
    latest = tl.max(lowest)  # from there on all queries of the tile see all keys, but for the future
    query = load_tile(queries, row, head, ours, length, KEY, KEYS)
    read = tl.zeros((TILE, VALUES), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    most = tl.full((TILE,), -float("inf"), tl.float32)

    if vector_keys is not None:
        for first in range(0, vectors, TILE):
            key = load_tile(vector_keys, row, head, first + line, vectors, KEY, KEYS)
            value = load_tile(vector_values, row, head, first + line, vectors, VALUE, VALUES)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            scores = tl.where((first + line < vectors)[None, :], scores, -float("inf"))
            keep = None
            if seed is not None:
                keep = kept(seed, together, ours[:, None], (slots + first + line)[None, :], dropout)
            read, total, most = absorb(scores, None, keep, value, read, total, most, PRECISION)

    if table is not None:
        place_query = query
        if places is not None:
            place_query = load_tile(places, row, head, ours, length, KEY, KEYS)
        distances = farthest * TILE + line
        rows = load_tile(table, head, head, distances, reach, KEY, KEYS)
        high = words(place_query, rows, bias, head, distances, reach, PRECISION)
    for step in range(farthest + 1):
        apart = farthest - step
        slot = (own_tile - apart) * TILE - offset + line
        key = load_tile(keys, row, head, slot, slots, KEY, KEYS)
        value = load_tile(values, row, head, slot, slots, VALUE, VALUES)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if table is not None:
            distances = (apart - 1) * TILE + line
            rows = load_tile(table, head, head, distances, reach, KEY, KEYS)
            low = words(place_query, rows, bias, head, distances, reach, PRECISION)
            scores += moved(tl.where(line[None, :] <= line[:, None], high, low), TILE)
            high = low
        if (apart == 0) | ((own_tile - apart) * TILE - offset < latest):
            seen = (slot[None, :] >= lowest[:, None]) & (slot[None, :] <= place[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        share = None
        if mask is not None:
            share = tl.full((TILE, TILE), 1.0, tl.float32)
            if not is_whole(apart, whole, TILE):
                share = shares(mask, head, apart, reach, TILE)
                scores = tl.where(share > 0, scores, -float("inf"))
        keep = None
        if seed is not None:
            keep = kept(seed, together, ours[:, None], slot[None, :], dropout)
        read, total, most = absorb(scores, share, keep, value, read, total, most, PRECISION)

    store_tile(reads, row, head, ours, length, read / (total * (1 - dropout))[:, None], VALUE, VALUES)
    tl.store(lse + together * length + ours, most * LOG2E + tl.log2(total), mask=ours < length)
    tl.store(largest + together * length + ours, most, mask=ours < length)
