"""Features on chip: feature map × key scale of a tile of raw keys or queries, and the way back, inside a kernel.

LOOK has the names of the parts, MAP and SCALE; NU, which is DPFP's; FLOOR, SumToOne's floor or UnitNorm's epsilon;
EPSILON and FACTOR, which are Favor's, as is the matrix, float32 [WIDTH, FEATURES / 2]; and, but for a single token,
EXACT. SIZE and WIDE are what holds FEATURES and WIDTH: `holding(…)`.
"""

import triton
import triton.language as tl

from .elementary import exp, relu, sigmoid
from .products import eight_bits, product

SHARE = tl.constexpr(32)  # features that a warp sums by itself


@triton.constexpr_function
def holding(count):
    """How wide a tile for `count` numbers has to be."""
    return max(16, triton.next_power_of_2(count))


@triton.constexpr_function
def precision(exact):
    """Of products of float32: the exponents of Favor must not be rounded."""
    return "ieee" if exact else "tf32x3"


@triton.jit
def features(
    rows,
    inside,
    stride,
    matrix,
    LOOK: tl.constexpr,
    WIDTH: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Pointers to each token's first raw number -> its features, float32 [tokens, SIZE], with exact zeros beyond."""
    MAP: tl.constexpr = LOOK[0]
    SCALE: tl.constexpr = LOOK[1]
    NU: tl.constexpr = LOOK[2]
    FLOOR: tl.constexpr = LOOK[3]
    EPSILON: tl.constexpr = LOOK[4]
    FACTOR: tl.constexpr = LOOK[5]
    EXACT: tl.constexpr = LOOK[6]
    raw = loaded(rows, inside, stride, WIDTH, holding(WIDTH))
    exist = inside[:, None] & (tl.arange(0, SIZE) < FEATURES)[None, :]
    if MAP == "DPFP":
        one, other = factors(raw, WIDTH, FEATURES, SIZE, NU, EXACT)
        mapped = one * other
    elif MAP == "Favor":
        powers = exponentials(raw, matrix, WIDTH, FEATURES, SIZE, FACTOR, EXACT)
        mapped = tl.where(exist, powers + EPSILON * FEATURES**-0.5, 0.0)
    else:
        mapped = pointwise(raw.to(tl.float32), exist, MAP)
    return scaled(mapped, inside, SCALE, FLOOR)


@triton.jit
def features_of_one(
    raw,
    matrix,
    LOOK: tl.constexpr,
    WIDTH: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The same of one token alone, [SIZE], from a pointer to its first raw number: there are no tiles to multiply."""
    MAP: tl.constexpr = LOOK[0]
    SCALE: tl.constexpr = LOOK[1]
    NU: tl.constexpr = LOOK[2]
    FLOOR: tl.constexpr = LOOK[3]
    EPSILON: tl.constexpr = LOOK[4]
    FACTOR: tl.constexpr = LOOK[5]
    feature, inside = tl.arange(0, SIZE)[None, :], tl.full((1,), True, tl.int1)
    exist = feature < FEATURES
    if MAP == "DPFP":
        mapped = half_of_one(raw, feature, 0, WIDTH, FEATURES, NU)
        mapped *= half_of_one(raw, feature, feature // (2 * WIDTH) + 1, WIDTH, FEATURES, NU)
    elif MAP == "Favor":
        powers = exponentials_of_one(raw, matrix, feature, WIDTH, FEATURES, SIZE, FACTOR)
        mapped = tl.where(exist, powers + EPSILON * FEATURES**-0.5, 0.0)
    else:
        mapped = pointwise(tl.load(raw + feature, mask=exist, other=0.0).to(tl.float32), exist, MAP)
    return tl.sum(scaled(mapped, inside, SCALE, FLOOR), axis=0)


@triton.jit
def raw_gradient(
    gradient,
    rows,
    inside,
    stride,
    matrix,
    LOOK: tl.constexpr,
    WIDTH: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    APART: tl.constexpr,
):
    """The features' gradient, float32 [tokens, SIZE] -> that of the raw numbers, [tokens, WIDE], with zeros beyond.

    APART: whether the warps have features apart from each other, and not tokens.
    """
    MAP: tl.constexpr = LOOK[0]
    SCALE: tl.constexpr = LOOK[1]
    NU: tl.constexpr = LOOK[2]
    FLOOR: tl.constexpr = LOOK[3]
    EPSILON: tl.constexpr = LOOK[4]
    FACTOR: tl.constexpr = LOOK[5]
    EXACT: tl.constexpr = LOOK[6]
    raw = loaded(rows, inside, stride, WIDTH, WIDE)
    exist = inside[:, None] & (tl.arange(0, SIZE) < FEATURES)[None, :]
    feature, number = tl.arange(0, SIZE)[:, None], tl.arange(0, WIDE)[None, :]
    if MAP == "DPFP":
        one, other = factors(raw, WIDTH, FEATURES, SIZE, NU, EXACT)
        inner = unscaled(gradient, one * other, inside, SCALE, FLOOR)
        first = halves(number, feature, 0, WIDTH, FEATURES, NU)
        second = halves(number, feature, feature // (2 * WIDTH) + 1, WIDTH, FEATURES, NU)
        of_one, of_other = tl.where(one > 0, inner * other, 0.0), tl.where(other > 0, inner * one, 0.0)
        if APART:
            outer = picked(in_shares(of_one, SHARE), shares_of_rows(first, SHARE), EXACT)
            outer = tl.sum(outer + picked(in_shares(of_other, SHARE), shares_of_rows(second, SHARE), EXACT), axis=0)
        else:
            outer = picked(of_one, first, EXACT) + picked(of_other, second, EXACT)
    elif MAP == "Favor":
        powers = exponentials(raw, matrix, WIDTH, FEATURES, SIZE, FACTOR, EXACT)
        mapped = tl.where(exist, powers + EPSILON * FEATURES**-0.5, 0.0)
        inner = tl.where(exist, unscaled(gradient, mapped, inside, SCALE, FLOOR) * powers, 0.0)
        rows = directions(matrix, number, feature, WIDTH, FEATURES)
        if APART:
            outer = tl.sum(product(in_shares(inner, SHARE), shares_of_rows(rows, SHARE), precision(EXACT)), axis=0)
        else:
            outer = product(inner, rows, precision(EXACT))
        outer = (outer - raw.to(tl.float32) * FACTOR * tl.sum(inner, axis=1)[:, None]) * FACTOR
    else:
        raw = raw.to(tl.float32)
        mapped = pointwise(raw, exist, MAP)
        outer = tl.where(exist, unscaled(gradient, mapped, inside, SCALE, FLOOR) * slope(raw, MAP), 0.0)
    return outer


@triton.constexpr_function
def shares(count, share):
    return max(1, count // share)


@triton.jit
def in_shares(x, MOST: tl.constexpr):
    """[tokens, features] -> [shares, tokens, features of a share], which are so many at most.

    Triton lays out the warps of products that follow from each other in one way, and for one with few columns, as one
    over all features has, it is one below the other: each would make all features of its tokens, more than registers
    hold. A product of shares is a batch; it has a layout of its own, and leaves the others theirs.
    """
    SHARES: tl.constexpr = shares(x.shape[1], MOST)
    return tl.permute(tl.reshape(x, (x.shape[0], SHARES, x.shape[1] // SHARES)), (1, 0, 2))


@triton.jit
def shares_of_rows(x, MOST: tl.constexpr):
    """[features, …] -> [shares, features of a share, …]"""
    SHARES: tl.constexpr = shares(x.shape[0], MOST)
    return tl.reshape(x, (SHARES, x.shape[0] // SHARES, x.shape[1]))


@triton.jit
def loaded(rows, inside, stride, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    number = tl.arange(0, WIDE)
    exist = inside[:, None] & (number < WIDTH)[None, :]
    return tl.load(rows[:, None] + number[None, :] * stride, mask=exist, other=0.0)


@triton.jit
def pointwise(raw, exist, MAP: tl.constexpr):
    if MAP == "EluPlusOne":
        return tl.where(exist, tl.where(raw > 0, raw + 1.0, exp(raw)), 0.0)
    elif MAP == "Silu":
        return raw * sigmoid(raw)
    else:
        tl.static_assert(MAP == "Identity", "no such feature map on chip")
        return raw


@triton.jit
def slope(raw, MAP: tl.constexpr):
    if MAP == "EluPlusOne":
        return tl.where(raw > 0, 1.0, exp(raw))
    elif MAP == "Silu":
        share = sigmoid(raw)
        return share * (1.0 + raw * (1.0 - share))
    else:
        return tl.full(raw.shape, 1.0, tl.float32)


@triton.jit
def factors(
    raw, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, NU: tl.constexpr, EXACT: tl.constexpr
):
    """The two numbers of which each of DPFP's features is the product; picked out by products, which are exact."""
    number, feature = tl.arange(0, raw.shape[1])[:, None], tl.arange(0, SIZE)[None, :]
    first = halves(number, feature, 0, WIDTH, FEATURES, NU)
    second = halves(number, feature, feature // (2 * WIDTH) + 1, WIDTH, FEATURES, NU)
    one, other = picked(raw, first, EXACT), picked(raw, second, EXACT)
    return relu(one), relu(other)


@triton.jit
def halves(number, feature, shift, WIDTH: tl.constexpr, FEATURES: tl.constexpr, NU: tl.constexpr):
    """Which raw number is a feature's, as it is (1) or negated (-1), when [x, -x] is rolled by `shift`; else 0.

    In float32: a GPU takes long to make other numbers of whole ones.
    """
    place = rolled(feature, shift, WIDTH, NU)
    sign = tl.where(place < WIDTH, 1.0, -1.0)
    return tl.where((place % WIDTH == number) & (feature < FEATURES), sign, 0.0)


@triton.jit
def rolled(feature, shift, WIDTH: tl.constexpr, NU: tl.constexpr):
    """Where a feature's number stood in [x, -x]."""
    return (feature + 2 * WIDTH * NU - shift) % (2 * WIDTH)


@triton.jit
def half_of_one(raw, feature, shift, WIDTH: tl.constexpr, FEATURES: tl.constexpr, NU: tl.constexpr):
    """One of the two numbers of which each feature is the product, for one token: it is picked from memory."""
    place = rolled(feature, shift, WIDTH, NU)
    found = tl.load(raw + place % WIDTH, mask=feature < FEATURES, other=0.0).to(tl.float32)
    return relu(tl.where(place < WIDTH, found, -found))


@triton.jit
def picked(x, choice, EXACT: tl.constexpr):
    """x times a matrix of 0, 1 and -1. Pieces of 8 bits: three hold all of a float32, one what bfloat16 keeps of it."""
    if x.dtype != tl.float32:
        return tl.dot(x, choice.to(x.dtype))
    elif EXACT:
        high = eight_bits(x)
        middle = eight_bits(x - high)
        choice = choice.to(tl.bfloat16)
        found = tl.dot(high.to(tl.bfloat16), choice)
        found = tl.dot(middle.to(tl.bfloat16), choice, acc=found)
        return tl.dot((x - high - middle).to(tl.bfloat16), choice, acc=found)
    else:
        return tl.dot(x.to(tl.bfloat16), choice.to(tl.bfloat16))


@triton.jit
def exponentials(
    raw,
    matrix,
    WIDTH: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
    FACTOR: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Favor's features, but for its epsilon."""
    number, feature = tl.arange(0, raw.shape[1])[:, None], tl.arange(0, SIZE)[None, :]
    raw = raw.to(tl.float32) * FACTOR
    projected = product(raw, directions(matrix, number, feature, WIDTH, FEATURES), precision(EXACT))
    return exp(projected - tl.sum(raw * raw, axis=1)[:, None] / 2) * FEATURES**-0.5


@triton.jit
def exponentials_of_one(
    raw, matrix, feature, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, FACTOR: tl.constexpr
):
    """The same for one token, a few of the matrix's rows at a time."""
    projected, length = tl.zeros((16, SIZE), tl.float32), tl.zeros((16, 1), tl.float32)
    for first in range(0, WIDTH, 16):
        number = first + tl.arange(0, 16)[:, None]
        some = tl.load(raw + number, mask=number < WIDTH, other=0.0).to(tl.float32) * FACTOR
        projected += some * directions(matrix, number, feature, WIDTH, FEATURES)
        length += some * some
    exponents = tl.sum(projected, axis=0) - tl.sum(length) / 2
    return exp(exponents)[None, :] * FEATURES**-0.5


@triton.jit
def directions(matrix, number, feature, WIDTH: tl.constexpr, FEATURES: tl.constexpr):
    """Favor's matrix, and beside it the same negated."""
    half: tl.constexpr = FEATURES // 2
    exist = (number < WIDTH) & (feature < FEATURES)
    entries = tl.load(matrix + number * half + feature % half, mask=exist, other=0.0)
    return tl.where(feature < half, entries, -entries)


@triton.jit
def scaled(mapped, inside, SCALE: tl.constexpr, FLOOR: tl.constexpr):
    if SCALE == "SumToOne":
        return mapped * one_by_sum(tl.sum(mapped, axis=1), inside, FLOOR)[:, None]
    elif SCALE == "UnitNorm":
        return mapped * one_by_length(mapped, inside, FLOOR)[:, None]
    else:
        tl.static_assert(SCALE == "Unscaled", "no such key scale on chip")
        return mapped


@triton.jit
def unscaled(gradient, mapped, inside, SCALE: tl.constexpr, FLOOR: tl.constexpr):
    """The gradient before the key scale, from that after it."""
    if SCALE == "SumToOne":
        total = tl.sum(mapped, axis=1)
        factor = one_by_sum(total, inside, FLOOR)
        overlap = tl.where(total < FLOOR, 0.0, tl.sum(gradient * mapped, axis=1) * factor)
        return (gradient - overlap[:, None]) * factor[:, None]
    elif SCALE == "UnitNorm":
        factor = one_by_length(mapped, inside, FLOOR)
        overlap = tl.sum(gradient * mapped, axis=1) * factor * factor
        return (gradient - mapped * overlap[:, None]) * factor[:, None]
    else:
        return gradient


@triton.jit
def one_by_sum(total, inside, FLOOR: tl.constexpr):
    """One division a token. Without a floor there is still something to divide by where there is no token."""
    return 1.0 / tl.where(inside, tl.where(total < FLOOR, FLOOR, total), 1.0)


@triton.jit
def one_by_length(mapped, inside, FLOOR: tl.constexpr):
    return tl.rsqrt(tl.where(inside, tl.sum(mapped * mapped, axis=1) + FLOOR, 1.0))
