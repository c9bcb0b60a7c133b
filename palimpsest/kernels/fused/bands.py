"""Bands: 16 rows of a tile for each warp, so that products of all bands with one tile ask nothing of another warp.

Tiles are [BANDS, BAND, n], and what all of them are multiplied with is [1, m, n] from the moment it is read: it lies in
shared memory once, and every warp reads it from there.

What bands leave for another kernel is stored as their products have it, *woven*: a thread has every fourth pair of 32
numbers, and these eight are stored beside each other. To lay them out in order each warp would wait for shared memory
several times a chunk. Who reads them takes the other side of its products in the woven order too.
"""

import triton
import triton.language as tl

from .products import product

BAND = tl.constexpr(16)  # rows of a tile that a warp has by itself
WOVEN = tl.constexpr(32)  # numbers that are in an order of their own


@triton.jit
def columns_of(BANDS: tl.constexpr):
    """Of a page, or a slice of one: those of each band."""
    return tl.arange(0, BANDS)[:, None] * BAND + tl.arange(0, BAND)[None, :]


@triton.jit
def times(bands, tile, PRECISION: tl.constexpr, onto=None):
    """Each band [BANDS, BAND, m] times one tile [1, m, n], which all warps read from where it lies.

    A tile [m, n] is for a band alone, and all warps share the product.
    """
    if len(tile.shape) == 2:
        if onto is not None:
            onto = tl.reshape(onto, (onto.shape[1], onto.shape[2]))
        band = tl.reshape(bands, (bands.shape[1], bands.shape[2]))
        return tl.reshape(product(band, tile, PRECISION, onto), (1, bands.shape[1], tile.shape[1]))
    else:
        tile = tl.broadcast_to(tile, (bands.shape[0], tile.shape[1], tile.shape[2]))
        return product(bands, tile, PRECISION, onto)


@triton.jit
def woven(number):
    """Where a number lies among 32 that are woven; also which one lies there, as this is its own inverse.

    In sums, not bits, so that Triton knows that pairs lie together.
    """
    return number // WOVEN * WOVEN + number // 2 % 4 * 8 + number // 8 % 4 * 2 + number % 2


@triton.jit
def in_order(numbers):
    """32 numbers woven, or in order again."""
    return tl.reshape(tl.permute(tl.reshape(numbers, (4, 4, 2)), (1, 0, 2)), (WOVEN,))


@triton.jit
def weave(tile):
    """[m, n] with its columns woven, or in order again."""
    parts = tl.reshape(tile, (tile.shape[0], tile.shape[1] // WOVEN, 4, 4, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 2, 4)), (tile.shape[0], tile.shape[1]))


@triton.jit
def as_multiplied(bands):
    """[BANDS, BAND, n] one after the other, as threads have them: eight numbers of each thread, of each warp."""
    BANDS: tl.constexpr = bands.shape[0]
    parts = tl.reshape(bands, (BANDS, 2, 8, bands.shape[2] // WOVEN, 4, 4, 2))
    return tl.reshape(tl.permute(parts, (3, 1, 0, 2, 5, 4, 6)), (BANDS * BAND * bands.shape[2],))


@triton.jit
def where_multiplied(row, number, ROWS: tl.constexpr, SLICE: tl.constexpr, GROUP: tl.constexpr):
    """Where `as_multiplied` leaves a row's number, by its woven place.

    Of every ROWS rows it made a slice; groups of 32 numbers lie GROUP from each other in a slice.
    """
    within = row % ROWS
    line = ((within // 8 % 2) * (ROWS // BAND) + within // BAND) * 8 + within % 8
    return (row // ROWS * SLICE + line * WOVEN) + (number // WOVEN * GROUP + number % WOVEN)
