"""What happens between the tokens of a chunk: what is kept from one to another, and the notes' triangular system."""

import triton
import triton.language as tl

from .elementary import exp
from .products import product

BLOCK = tl.constexpr(8)  # rows that are solved one after the other
ALL_GONE = tl.constexpr(-128.0)  # exp of which is 0 in float32


@triton.jit
def inverse(system, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """(I + system)⁻¹ of a strictly lower triangular [CHUNK, CHUNK].

    Small blocks on the diagonal by substitution; then those that are twice as large, of two each, until one is left.
    """
    row = tl.arange(0, BLOCK)
    solved = -diagonal_blocks(system, CHUNK, BLOCK)
    for i in range(2, BLOCK):
        here = row[None, :, None] == i
        line = tl.sum(tl.where(here, solved, 0.0), axis=1)
        line += tl.sum(line[:, :, None] * solved, axis=1)
        solved = tl.where(here, line[:, None, :], solved)
    solved += tl.where(row[None, :, None] == row[None, None, :], 1.0, 0.0)
    solved = merged(solved, diagonal_blocks(system, CHUNK, 2 * BLOCK), 2 * BLOCK, PRECISION)
    if CHUNK > 2 * BLOCK:
        tl.static_assert(CHUNK == 4 * BLOCK, "a chunk has two or four blocks")
        solved = of_halves(solved, system, CHUNK, PRECISION)
    return tl.reshape(solved, (CHUNK, CHUNK))


@triton.jit
def diagonal_blocks(tile, CHUNK: tl.constexpr, SIZE: tl.constexpr):
    """[CHUNK / SIZE, SIZE, SIZE]"""
    COUNT: tl.constexpr = CHUNK // SIZE
    if COUNT == 1:
        return tl.reshape(tile, (1, SIZE, SIZE))
    else:
        number = tl.arange(0, COUNT)
        same = number[:, None, None, None] == number[None, None, :, None]
        return tl.sum(tl.where(same, tl.reshape(tile, (COUNT, SIZE, COUNT, SIZE)), 0.0), axis=2)


@triton.jit
def merged(solved, systems, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    """Inverses [n, SIZE, SIZE] of systems of two blocks each, whose own inverses are known, [2 n, SIZE / 2, SIZE / 2].

    With D those two on a diagonal, and L what lies below them, D L D L = 0: the inverse is D − D L D.
    """
    HALF: tl.constexpr = SIZE // 2
    COUNT: tl.constexpr = systems.shape[0]
    half = tl.arange(0, 2)
    same = half[None, :, None, None, None] == half[None, None, None, :, None]
    pairs = tl.reshape(solved, (COUNT, 2, HALF, 1, HALF))
    diagonal = tl.reshape(tl.where(same, pairs, 0.0), (COUNT, SIZE, SIZE))
    below = tl.reshape(tl.where(same, 0.0, tl.reshape(systems, (COUNT, 2, HALF, 2, HALF))), (COUNT, SIZE, SIZE))
    return diagonal - product(product(diagonal, below, PRECISION), diagonal, PRECISION)


@triton.jit
def of_halves(solved, system, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse of all, [2, CHUNK / 2, 2, CHUNK / 2], from those of its halves, [2, CHUNK / 2, CHUNK / 2].

    As `merged`, but half a chunk is enough for a product by itself: what is zero is not multiplied.
    """
    HALF: tl.constexpr = CHUNK // 2
    half = tl.arange(0, 2)
    low = (half[:, None, None, None] == 1) & (half[None, None, :, None] == 0)
    below = tl.sum(tl.sum(tl.where(low, tl.reshape(system, (2, HALF, 2, HALF)), 0.0), axis=2), axis=0)
    first = tl.sum(tl.where(half[:, None, None] == 0, solved, 0.0), axis=0)
    second = tl.sum(tl.where(half[:, None, None] == 1, solved, 0.0), axis=0)
    corner = product(second, product(below, first, PRECISION), PRECISION)
    same = half[:, None, None, None] == half[None, None, :, None]
    return tl.where(same, solved[:, :, None, :], tl.where(low, -corner[None, :, None, :], 0.0))


@triton.jit
def diagonal(x):
    place = tl.arange(0, x.shape[0])
    return tl.sum(tl.where(place[:, None] == place[None, :], x, 0.0), axis=1)


@triton.jit
def not_less(logs):
    """Log keep, all of it finite: sums and differences of it are then never infinite."""
    return tl.where(logs < ALL_GONE, ALL_GONE, logs)


@triton.jit
def logs_of(base, step, inside, CHUNK: tl.constexpr):
    """Sums of log keep since the chunk's start, in two numbers: what float32 keeps of float64, and what it loses."""
    logs = tl.load(base + tl.arange(0, CHUNK) * step, mask=inside, other=0.0).to(tl.float32)
    sums = tl.cumsum(not_less(logs).to(tl.float64), axis=0)
    most = sums.to(tl.float32)
    return most, (sums - most).to(tl.float32)


@triton.jit
def until_end(most, rest, CHUNK: tl.constexpr):
    """What is left of each token at the end of its chunk."""
    last = tl.arange(0, CHUNK) == CHUNK - 1
    last_most, last_rest = tl.sum(tl.where(last, most, 0.0), axis=0), tl.sum(tl.where(last, rest, 0.0), axis=0)
    return exp((last_most - most) + (last_rest - rest))


@triton.jit
def between(most, rest, place):
    """What is left at token i of what was there at token j ≤ i: [i, j], 0 for the future."""
    logs = (most[:, None] - most[None, :]) + (rest[:, None] - rest[None, :])  # as exact as float32 can tell it
    return exp(tl.where(place[:, None] >= place[None, :], logs, float("-inf")))


@triton.jit
def between_at(logs, index, place, CHUNK: tl.constexpr):
    """The same, from the sums that `prepare` wrote down for a chunk."""
    at = logs + index.to(tl.int64) * (2 * CHUNK) + place
    return between(tl.load(at), tl.load(at + CHUNK), place)


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
