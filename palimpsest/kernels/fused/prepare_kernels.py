"""What of a memory scan needs no page: T, how much of each note each read sees, what is kept, and features."""

import triton
import triton.language as tl

from .chunk import between, inverse, kept_over, logs_of, not_less, overlaps_by_feature, until_end
from .elementary import exp
from .features import in_shares
from .products import product
from .tiles import (
    KEYS,
    KEYS_LEFT,
    QUERIES,
    first_of,
    gate_of,
    look,
    seen_of,
    split,
    split_into,
    store_tile,
    tile_at,
    tile_of,
)

SHARE = tl.constexpr(64)  # of many features, those that a warp of `prepare` multiplies
PIECE = tl.constexpr(64)  # … and, if they are ready, those that it has at a time


@triton.jit
def logs_by_feature(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Log keep, [CHUNK, SIZE], all of it finite: sums over some tokens are products in which others count 0 times."""
    return not_less(tile_of(base, step, inside, count, SIZE, CHUNK).to(tl.float32))


@triton.jit
def dimmed(x, kept, KEEP: tl.constexpr):
    """Rows [CHUNK, …] multiplied by what is kept of each, [CHUNK] or, for features, [CHUNK, SIZE]."""
    if KEEP == "heads":
        return x * kept[:, None]
    elif KEEP == "features":
        return x * kept
    else:
        return x


@triton.jit
def store_dimmed(tiles, index, tile, feature, FEATURES: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """Some features of queries or keys, as much as is kept of them; split as other tiles are."""
    offsets = tl.arange(0, CHUNK)[:, None] * FEATURES + feature[None, :]
    there = (feature < FEATURES)[None, :]
    at = tiles + index.to(tl.int64) * (split_into(PRECISION) * CHUNK * FEATURES) + offsets
    if PRECISION == "split":
        high, lost = split(tile)
        tl.store(at, high, mask=there)
        tl.store(at + CHUNK * FEATURES, lost, mask=there)
    else:
        tl.store(at, tile, mask=there)


@triton.jit
def overlap_with(vector, x, kept, KEEP: tl.constexpr):
    """Of each row of x with a vector [SIZE] of the page, [CHUNK]."""
    if KEEP == "features":
        return tl.sum(x * kept * vector[None, :], axis=1)
    elif KEEP == "heads":
        return tl.sum(x.to(tl.float32) * vector[None, :], axis=1) * kept
    else:
        return tl.sum(x.to(tl.float32) * vector[None, :], axis=1)


@triton.jit
def overlaps_of(
    q_base, k_base, q_t, k_t, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    ERASE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`seen_of` queries and keys, and of keys by themselves, a piece of the features at a time.

    A tile for both sides of products would not be loaded ahead, so that keys are loaded twice.
    """
    place = tl.arange(0, CHUNK)
    seen = tl.zeros((CHUNK, CHUNK), tl.float32)
    recalled = tl.zeros((CHUNK, CHUNK), tl.float32)
    for start in tl.range(0, SIZE, PIECE, num_stages=2):
        feature = start + tl.arange(0, PIECE)
        there = (feature < FEATURES)[:, None] & inside[None, :]
        turned = tl.load(k_base + (place[None, :] * k_t + feature[:, None]), mask=there, other=0.0)
        seen = product(tile_at(q_base, q_t, place, feature, inside, FEATURES), turned, PRECISION, seen)
        if ERASE:
            k = tile_at(k_base, k_t, place, feature, inside, FEATURES)
            recalled = product(k, turned, PRECISION, recalled)
    return tl.where(place[:, None] >= place[None, :], seen, 0.0), recalled


@triton.jit
def prepare_kernel(
    queries, keys, log_keep, erase, write, matrix,
    queries_out, keys_out, solved, erase_out, write_out, seen_out, logs_out, kept_out, remaining_out, dimmed_out,
    q_b, q_t, q_h, k_b, k_t, k_h, keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr, KEEP: tl.constexpr, ERASE: tl.constexpr, LIMIT: tl.constexpr,
    LOOKED: tl.constexpr, SHARES: tl.constexpr, EXACT: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    chunk, head, row = program % chunks, (program // chunks) % heads, program // (chunks * heads)
    place, first = tl.arange(0, CHUNK), chunk * CHUNK
    inside = place < length - first
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    at = program.to(tl.int64) * CHUNK
    BARE: tl.constexpr = LOOK[0] == "Identity" and LOOK[1] == "Unscaled"
    SLICE: tl.constexpr = 32 if BARE and SIZE > 32 else SIZE
    PIECES: tl.constexpr = KEEP != "features" and BARE and SIZE > PIECE
    if not PIECES and (KEEP != "features" or SLICE == SIZE):
        q = look(q_base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
        k = look(k_base, k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    if LOOKED:
        feature = tl.arange(0, SIZE)
        base = ((row * length + first).to(tl.int64) * heads + head) * FEATURES
        offsets = place[:, None] * (heads * FEATURES) + feature[None, :]
        there = inside[:, None] & (feature < FEATURES)[None, :]
        tl.store(queries_out + base + offsets, q, mask=there)
        tl.store(keys_out + base + offsets, k, mask=there)
    if KEEP == "features":  # which know nothing of each other, so that few of them at a time need be on chip
        base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
        seen = tl.zeros((CHUNK, CHUNK), tl.float32)
        recalled = tl.zeros((CHUNK, CHUNK), tl.float32)
        for start in range(0, SIZE, SLICE):
            feature = start + tl.arange(0, SLICE)
            if SLICE < SIZE:
                q = tile_of(q_base + start, q_t, inside, FEATURES - start, SLICE, CHUNK)
                k = tile_of(k_base + start, k_t, inside, FEATURES - start, SLICE, CHUNK)
            logs = logs_by_feature(base + start, keep_t, inside, FEATURES - start, SLICE, CHUNK)
            since = kept_over(place[:, None] >= place[None, :], logs, FINE)
            until = kept_over(place[:, None] < place[None, :], logs, FINE)
            whole = tl.sum(tl.where((place == CHUNK - 1)[:, None], since, 0.0), axis=0)
            tl.store(kept_out + program.to(tl.int64) * FEATURES + feature, whole, mask=feature < FEATURES)
            store_dimmed(dimmed_out, program * 3 + QUERIES, q * since, feature, FEATURES, CHUNK, FINE)
            if ERASE:
                store_dimmed(dimmed_out, program * 3 + KEYS, k * since, feature, FEATURES, CHUNK, FINE)
            store_dimmed(dimmed_out, program * 3 + KEYS_LEFT, k * until, feature, FEATURES, CHUNK, FINE)
            seen, recalled = overlaps_by_feature(seen, recalled, q, k, logs, CHUNK, LEVELS, FINE)
    elif PIECES:
        seen, recalled = overlaps_of(q_base, k_base, q_t, k_t, inside, FEATURES, SIZE, CHUNK, ERASE, FINE)
    else:
        if SHARES:  # for a square product warps would be laid one below the other, and each make all features
            q, k = in_shares(q, SHARE), in_shares(k, SHARE)
        seen = seen_of(q, k, CHUNK, FINE)
        if ERASE:
            recalled = seen_of(k, k, CHUNK, FINE)
    if KEEP == "heads":
        most, rest = logs_of(first_of(log_keep, row, head, first, keep_b, keep_t, keep_h), keep_t, inside, CHUNK)
        since = between(most, rest, place)
        tl.store(logs_out + 2 * at + place, most)
        tl.store(logs_out + 2 * at + CHUNK + place, rest)
        tl.store(kept_out + at + place, exp(most))
        tl.store(remaining_out + at + place, until_end(most, rest, CHUNK))
        seen *= since
        if ERASE:
            recalled *= since
    store_tile(seen_out, program, seen, CHUNK, FINE)
    if ERASE:
        beta = gate_of(first_of(erase, row, head, first, erase_b, erase_t, erase_h), erase_t, place, inside, LIMIT)
        system = tl.where(place[:, None] > place[None, :], beta[:, None] * recalled, 0.0)
        store_tile(solved, program, inverse(system, CHUNK, EXACT), CHUNK, FINE)
        tl.store(erase_out + at + place, beta)
        if write_out is not None:
            into = gate_of(first_of(write, row, head, first, write_b, write_t, write_h), write_t, place, inside, LIMIT)
            tl.store(write_out + at + place, into)
