"""What all kernels of relative attention share: tiles of tokens and of distances, shares, and what is dropped."""

import triton
import triton.language as tl

# Tensors come as tuples: a pointer, and the steps from row to row, token to token and head to head.
# Where there is a table but no place queries, queries ask for distances too.


@triton.jit
def start_of(tensor, row, head):
    return tensor[0] + row.to(tl.int64) * tensor[1] + head * tensor[3]


@triton.jit
def inside(numbers, count, WIDTH: tl.constexpr, LANES: tl.constexpr):
    return (numbers.to(tl.uint32) < tl.cast(count, tl.uint32))[:, None] & (tl.arange(0, LANES) < WIDTH)[None, :]


@triton.jit
def load_tile(tensor, row, head, numbers, count, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """The vectors of these numbers `tile lanes`; zeros where there are none."""
    at = start_of(tensor, row, head) + numbers[:, None] * tensor[2] + tl.arange(0, LANES)[None, :]
    return tl.load(at, mask=inside(numbers, count, WIDTH, LANES), other=0.0)


@triton.jit
def store_tile(tensor, row, head, numbers, count, tile, WIDTH: tl.constexpr, LANES: tl.constexpr):
    at = start_of(tensor, row, head) + numbers[:, None] * tensor[2] + tl.arange(0, LANES)[None, :]
    tl.store(at, tile.to(tensor[0].dtype.element_ty), mask=inside(numbers, count, WIDTH, LANES))


@triton.jit
def load_distances(tensor, head, distances, reach):
    """One number for each distance; zero where it is not seen."""
    seen = distances.to(tl.uint32) < tl.cast(reach, tl.uint32)
    return tl.load(tensor[0] + distances * tensor[1] + head * tensor[2], mask=seen, other=0.0).to(tl.float32)


@triton.jit
def taken(tile, place, TILE: tl.constexpr):
    """The entries that lie at these places when a tile is laid out so that a warp's accesses fall into 32 banks."""
    spread = tl.permute(tl.reshape(tile, (TILE // 8, 8, TILE // 8, 4, 2)), (0, 2, 4, 1, 3))
    # of one axis, as the compiler would send one of two axes through shuffles
    found = tl.gather(tl.reshape(spread, (TILE * TILE,)), tl.reshape(place, (TILE * TILE,)), 0)
    return tl.reshape(found, (TILE, TILE))


@triton.jit
def moved(tile, TILE: tl.constexpr):
    """Row m, column n <- row m, column (m − n) mod tile."""
    m, n = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    c = m - (n & 7)
    within = ((m >> 3) * (TILE * 8)) | ((c & 1) * 32) | ((m & 7) * 4) | ((c >> 1) & 3)
    place = within | (((c >> 3) * 64 - (n >> 3) * 64) & (TILE * 8 - 64))
    return taken(tile, place, TILE)


@triton.jit
def moved_across(tile, TILE: tl.constexpr):
    """The same with rows and columns exchanged: row n, column m <- row (m − n) mod tile, column m."""
    m, n = tl.arange(0, TILE)[None, :], tl.arange(0, TILE)[:, None]
    c = m - (n & 7)
    block = ((c >> 3) - (n >> 3)) & (TILE // 8 - 1)
    place = block * (TILE * 8) + (m >> 3) * 64 + (m & 1) * 32 + (c & 7) * 4 + ((m >> 1) & 3)
    return taken(tile, place, TILE)


@triton.jit
def words(place_query, rows, bias, head, distances, reach, PRECISION: tl.constexpr):
    """What a query tile's scores get from a tile of distances with these rows of the table, `query distance`."""
    by_distance = tl.dot(place_query, tl.trans(rows), input_precision=PRECISION)
    if bias is not None:
        by_distance += load_distances(bias, head, distances, reach)[None, :]
    return by_distance


@triton.jit
def far_and_whole(looks, head, reach):
    """How many distances a head looks at, and how many of them, from the nearest on, have a whole share."""
    if looks is not None:
        return tl.load(looks + 2 * head), tl.load(looks + 2 * head + 1)
    else:
        return reach, reach


@triton.jit
def is_whole(apart, whole, TILE: tl.constexpr):
    """Whether all keys of a tile have a whole share for all queries of another."""
    return (apart + 1) * TILE <= whole


@triton.jit
def shares(mask, head, apart, reach, TILE: tl.constexpr):
    """Of the keys of a tile for the queries of another, `query key`."""
    line = tl.arange(0, TILE)
    high = load_distances(mask, head, apart * TILE + line, reach)
    low = load_distances(mask, head, (apart - 1) * TILE + line, reach)
    return moved(tl.where(line[None, :] <= line[:, None], high[None, :], low[None, :]), TILE)


@triton.jit
def shares_across(mask, head, distances, reach, nearer, TILE: tl.constexpr):
    """The same, `key query`."""
    high = load_distances(mask, head, distances, reach)[:, None]
    low = load_distances(mask, head, distances - TILE, reach)[:, None]
    return moved_across(tl.where(nearer, high, low), TILE)


@triton.jit
def stirred(numbers):
    """Whole numbers of 32 bits as others, of which the first 16 bits depend evenly on all bits."""
    numbers = numbers ^ (numbers >> 16)
    numbers = numbers * tl.full((), 0x7FEB352D, tl.uint32)
    numbers = numbers ^ (numbers >> 15)
    return numbers * tl.full((), 0x846CA68B, tl.uint32)


@triton.jit
def scattered(numbers):
    """The same of all bits (Wellons's lowbias32)."""
    numbers = stirred(numbers)
    return numbers ^ (numbers >> 16)


@triton.jit
def kept(seed, together, queries, slots, dropout):
    """Which weights are not dropped: chance that depends on row, head, query and key alone.

    A generator for all purposes would take longer than all the products do.
    """
    line = scattered(tl.load(seed).to(tl.uint32) ^ (together.to(tl.uint32) * tl.full((), 0x9E3779B1, tl.uint32)))
    ours = scattered(line + queries.to(tl.uint32) * tl.full((), 0x85EBCA6B, tl.uint32))
    drawn = stirred(ours ^ (slots.to(tl.uint32) * tl.full((), 0xC2B2AE35, tl.uint32)))
    return drawn >= tl.cast(dropout * 4294967296.0, tl.uint32)


@triton.jit
def left_of(x, keep, dropout):
    """As much more of what is not dropped as makes up for the rest."""
    return tl.where(keep, x * (1 / (1 - dropout)), 0.0)


@triton.jit
def farthest_tile(first_place, far, offset, own_tile, TILE: tl.constexpr):
    """How many tiles before its own one a query tile looks."""
    return own_tile - (tl.maximum(first_place + 1 - far, 0) + offset) // TILE


@triton.jit
def lowest_seen(place, ours, row, empty, length, slots, reach):
    """The first key that each query sees."""
    lowest = tl.maximum(place + 1 - reach, 0)
    if empty is not None:
        held = tl.load(empty[0] + row * empty[1] + ours * empty[2], mask=ours < length, other=slots)
        lowest = tl.maximum(lowest, held.to(tl.int32))
    return lowest
