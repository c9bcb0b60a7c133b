"""What happens between the tokens of a chunk: what is kept from one to another, and the notes' triangular system."""

import triton
import triton.language as tl

from .elementary import exp
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
    return exp(tl.where(seen, (logs[:, None] - logs[None, :]).to(tl.float32), float("-inf")))


@triton.jit
def later_half(token, level):
    """Whether a token is in the later half of its run of 2 · 2^level tokens."""
    return ((token >> level) & 1) == 1


@triton.jit
def towards_middle(token, other, level):
    """Whether `other` is one whose keep lies between `token` and the middle of its run of 2 · 2^level tokens."""
    same_half = (token >> level) == (other >> level)
    return same_half & ((other <= token) == later_half(token, level))


@triton.jit
def across_middle(token, other, level):
    """Whether `token` is in the later half of a run and `other` in the earlier half of the same."""
    return ((token >> level) == (other >> level) + 1) & later_half(token, level)


@triton.jit
def kept_over(which, logs, PRECISION: tl.constexpr):
    """[CHUNK, SIZE]: what is kept over the tokens that `which`, [CHUNK, CHUNK], has in each row; sums by themselves."""
    return exp(product(which.to(tl.float16), logs, PRECISION))


@triton.jit
def overlaps_by_feature(seen, recalled, q, k, logs, CHUNK: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """Adds Σ_f q_if k_jf kept_ijf for j ≤ i, and the same of keys with keys for j < i; each feature is kept by itself.

    Two tokens are in the two halves of one run of 2, 4, 8 … tokens. What is kept between them is what is kept from the
    earlier to the middle of that run, times what is kept from there to the later: neither factor can be too large.
    """
    place = tl.arange(0, CHUNK)
    row, column = place[:, None], place[None, :]
    own = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1)
    seen += tl.where(row == column, own[:, None], 0.0)
    for level in range(LEVELS):
        kept = kept_over(towards_middle(row, column, level), logs, PRECISION)
        across = across_middle(row, column, level)
        keys = k * kept
        turned = tl.trans(keys)
        seen += tl.where(across, product(q * kept, turned, PRECISION), 0.0)
        recalled += tl.where(across, product(keys, turned, PRECISION), 0.0)
    return seen, recalled
