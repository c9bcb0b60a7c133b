"""Tiles of a chunk's tokens, as the kernels of the memory scan read and store them."""

import triton
import triton.language as tl

from .elementary import sigmoid
from .features import features, raw_gradient
from .products import product

LITTLE = tl.constexpr(1 / 64)  # of a gate that erases: what that took away is not to be found by dividing by it
NOTHING = tl.constexpr(2.0**-30)  # … and of one that erases and writes, as all of a note is as small as it
QUERIES, KEYS, KEYS_LEFT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what `prepare` dims by feature


@triton.constexpr_function
def split_into(precision):
    """Into how many numbers one is that will be multiplied so: what bfloat16 keeps of it, and what it loses."""
    return 2 if precision == "split" else 1


@triton.jit
def split(x):
    """What bfloat16 keeps of float32 numbers, and what it loses."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def first_of(pointer, row, head, token, s_b, s_t, s_h):
    """Where the numbers of a token begin. All else is an offset of 32 bits: pointers cost twice the registers."""
    return pointer + row.to(tl.int64) * s_b + head * s_h + token.to(tl.int64) * s_t


@triton.jit
def first_in_line(pointer, row, head, token, length, heads, count: tl.constexpr):
    """The same of a tensor in one piece, [rows, length, heads, count].

    From token to token by one step, not by their number among all: that spares a loop over chunks registers.
    """
    step = heads * count
    return pointer + row.to(tl.int64) * length * step + head * count + token.to(tl.int64) * step


@triton.jit
def look(
    base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The features of a chunk's tokens, rounded once to the type of the raw numbers."""
    if LOOK[0] == "Identity" and LOOK[1] == "Unscaled":
        return tile_of(base, step, inside, FEATURES, SIZE, CHUNK)
    else:
        rows = base + tl.arange(0, CHUNK) * step
        found = features(rows, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE)
        return found.to(base.dtype.element_ty)


@triton.jit
def back(
    gradient, base, step, place, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """The gradient of raw numbers from that of their features."""
    return raw_gradient(gradient, base + place * step, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, APART)


@triton.jit
def tile_of(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """[CHUNK, SIZE] numbers, `step` between tokens."""
    return tile_at(base, step, tl.arange(0, CHUNK), tl.arange(0, SIZE), inside, count)


@triton.jit
def tile_at(base, step, place, column, inside, count):
    """The same of these tokens and columns, in this order."""
    there = inside[:, None] & (column < count)[None, :]
    return tl.load(base + (place[:, None] * step + column[None, :]), mask=there, other=0.0)


@triton.jit
def gate_of(base, step, place, inside, LIMIT: tl.constexpr):
    """One number a token; with a limit it comes as a logit."""
    found = tl.load(base + place * step, mask=inside, other=0.0).to(tl.float32)
    if LIMIT > 0:
        found = LIMIT * sigmoid(found)
    return found


@triton.jit
def slope_of(gate, LIMIT: tl.constexpr):
    """Of a gate by its logit."""
    if LIMIT > 0:
        return gate * (1.0 - gate / LIMIT)
    else:
        return 1.0


@triton.jit
def seen_of(q, k, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """q_i · k_j for j ≤ i: how much of note j read i sees, where all is kept. Features may come in shares."""
    place = tl.arange(0, CHUNK)
    found = product(q, tl.trans(k), PRECISION)
    if len(found.shape) == 3:
        found = tl.sum(found, axis=0)
    return tl.where(place[:, None] >= place[None, :], found, 0.0)


@triton.jit
def store_tile(tiles, index, tile, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """A [CHUNK, CHUNK] for all programs of a head; where products are split, what bfloat16 keeps and what it loses."""
    place = tl.arange(0, CHUNK)
    at = tiles + index.to(tl.int64) * (split_into(PRECISION) * CHUNK * CHUNK)
    at += place[:, None] * CHUNK + place[None, :]
    if PRECISION == "split":
        high, lost = split(tile)
        tl.store(at, high)
        tl.store(at + CHUNK * CHUNK, lost)
    else:
        tl.store(at, tile)


@triton.jit
def load_tile(tiles, index, place, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """The same, without what bfloat16 lost, its tokens in this order."""
    if TURNED:
        offsets = place[None, :] * CHUNK + place[:, None]
    else:
        offsets = place[:, None] * CHUNK + place[None, :]
    return tl.load(tiles + index.to(tl.int64) * (split_into(PRECISION) * CHUNK * CHUNK) + offsets)


@triton.jit
def numbers_at(index, numbers, place, CHUNK: tl.constexpr):
    """Those that `prepare` wrote down, one a token, for the chunk that is this one of all."""
    return tl.load(numbers + index.to(tl.int64) * CHUNK + place)


@triton.jit
def fade_at(index, fades, place, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """What is kept of each token, where heads fade."""
    if KEEP == "heads":
        return numbers_at(index, fades, place, CHUNK)
    else:
        return place


@triton.jit
def whole_of(index, fades, KEEP: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """What is kept from start to end: until the last token; of features it is all that `fades` has."""
    if KEEP == "heads":
        return tl.load(fades + index.to(tl.int64) * CHUNK + CHUNK - 1)
    else:
        feature = tl.arange(0, SIZE)
        return tl.load(fades + index.to(tl.int64) * FEATURES + feature, mask=feature < FEATURES, other=0.0)
