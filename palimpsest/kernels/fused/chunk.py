"""What happens between the tokens of a chunk: what is kept from one to another, and the notes' triangular system."""

import triton
import triton.language as tl

from .products import product

BLOCK = tl.constexpr(16)  # rows that are solved one after the other; blocks of them are merged by products


@triton.jit
def inverse(system, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + system)⁻¹ of a strictly lower triangular [CHUNK, CHUNK].

    Diagonal blocks by substitution; what is left is nilpotent by blocks, so that a short product is exact.
    """
    BLOCKS: tl.constexpr = CHUNK // BLOCK
    first = tl.arange(0, BLOCKS)
    row = tl.arange(0, BLOCK)
    same = first[:, None, None, None] == first[None, None, :, None]
    by_block = tl.reshape(system, (BLOCKS, BLOCK, BLOCKS, BLOCK))
    solved = -tl.sum(tl.where(same, by_block, 0.0), axis=2)  # blocks, rows, columns
    for i in range(2, BLOCK):
        here = row[None, :, None] == i
        line = tl.sum(tl.where(here, solved, 0.0), axis=1)
        line += tl.sum(line[:, :, None] * solved, axis=1)
        solved = tl.where(here, line[:, None, :], solved)
    solved += tl.where(row[None, :, None] == row[None, None, :], 1.0, 0.0)
    if BLOCKS == 1:
        return tl.reshape(solved, (CHUNK, CHUNK))
    else:
        zero = tl.zeros((BLOCKS, BLOCK, BLOCKS, BLOCK), tl.float32)
        diagonal = tl.reshape(tl.where(same, solved[:, :, None, :], zero), (CHUNK, CHUNK))
        below = tl.reshape(tl.where(same, 0.0, by_block), (CHUNK, CHUNK))
        step = product(diagonal, below, PRECISION)
        place = tl.arange(0, CHUNK)
        one = tl.where(place[:, None] == place[None, :], 1.0, 0.0)
        found = one - step
        if BLOCKS > 2:
            twice = product(step, step, PRECISION)
            found += twice - product(step, twice, PRECISION)
        if BLOCKS > 4:
            tl.static_assert(False, "a chunk has at most four blocks")
        return product(found, diagonal, PRECISION)


@triton.jit
def between(logs, documents, CHUNK: tl.constexpr):
    """What is left at token i of what was there at token j ≤ i: [i, j], 0 for the future and for other documents."""
    place = tl.arange(0, CHUNK)
    seen = (place[:, None] >= place[None, :]) & (documents[:, None] == documents[None, :])
    return tl.exp(tl.where(seen, (logs[:, None] - logs[None, :]).to(tl.float32), float("-inf")))


@triton.jit
def row_of(tile, i, CHUNK: tl.constexpr):
    """Row i of [CHUNK, …]."""
    return tl.sum(tl.where(tl.arange(0, CHUNK)[:, None] == i, tile, 0.0), axis=0)


@triton.jit
def column_of(tile, j, COLUMNS: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == j, tile, 0.0), axis=1)


@triton.jit
def overlap_by_feature(left, right, logs, documents, CHUNK: tl.constexpr):
    """Σ_k left_ik right_jk kept_ijk for j ≤ i, each feature kept by itself: logs, documents are [CHUNK, features]."""
    place = tl.arange(0, CHUNK)
    found = tl.zeros((CHUNK, CHUNK), tl.float32)
    for j in range(CHUNK):
        kept = kept_since(j, logs, documents, CHUNK)
        column = tl.sum(left * row_of(right, j, CHUNK)[None, :] * kept, axis=1)
        found = tl.where(place[None, :] == j, column[:, None], found)
    return found


@triton.jit
def kept_since(j, logs, documents, CHUNK: tl.constexpr):
    """[CHUNK, features]: what is left at each token of what was there at token j; 0 before j."""
    place = tl.arange(0, CHUNK)[:, None]
    document = tl.sum(tl.where(place == j, documents, 0), axis=0)
    since = logs - row_of(logs, j, CHUNK)[None, :]
    seen = (place >= j) & (documents == document[None, :])
    return tl.exp(tl.where(seen, since.to(tl.float32), float("-inf")))
