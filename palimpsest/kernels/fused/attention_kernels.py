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

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from .elementary import LOG2E

# ------------------------------------------------------------------------------------------ what all kernels share
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


# ---------------------------------------------------------------------------------------------------------- forward


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


# --------------------------------------------------------------------------------------------------------- backward


@triton.jit
def slopes(products, keep, dots, dropout):
    """What a weight is worth to the loss, less what all weights of its query are worth on the average."""
    if keep is not None:
        products = left_of(products, keep, dropout)
    return products - dots


@triton.jit
def as_multiplied(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A product's numbers in the order in which four warps have them: they are stored without being laid out anew."""
    parts = tl.reshape(tile, (ROWS // 16, 2, 8, COLUMNS // 16, 2, 4, 2))
    return tl.reshape(tl.permute(parts, (3, 4, 0, 2, 5, 1, 6)), (ROWS * COLUMNS,))


@triton.jit
def add_up(at, again, added):
    """On its way without being waited for. No other program adds here, so that the order is that of the turns."""
    if again:
        tl.atomic_add(at, added, sem="relaxed")
    else:
        tl.store(at, added)


@triton.jit
def queries_kernel(
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
    grad,
    lse,
    largest,
    dots,
    of_queries,
    of_places,
    of_table,
    of_bias,
    of_mask,
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
    """Owns some query tiles of a row and head, one after the other, and what they add to table, bias and mask.

    Words are made where they are needed, though a step before made some of them: products cost less than room to keep
    them.
    """
    together, group, groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row, head = together // heads, together % heads
    tiles = tl.cdiv(length, TILE)
    line, all_sums = tl.arange(0, TILE), tl.arange(0, KEYS * TILE)
    nearer = line[None, :] <= line[:, None]
    # the same, as the third number is zero, which the compiler does not know: to keep it takes longer than to compare
    as_near = line[None, :] <= (line + tl.program_id(2))[:, None]
    cached = slots - length
    offset = (TILE - cached % TILE) % TILE
    far, whole = far_and_whole(looks, head, reach)
    # more tiles than there are distances: of the words of the last ones none is seen, but their turn comes
    sums = ((row * groups + group) * heads + head).to(tl.int64) * (tl.cdiv(reach, TILE) + 1)
    covered = 0  # distance tiles that hold sums already
    for turn in range(tl.cdiv(tiles - group, groups)):
        number = tiles - 1 - group - turn * groups  # the first sees most
        own_tile = (cached + offset) // TILE + number
        ours = number * TILE + line
        place = cached + ours
        lowest = lowest_seen(place, ours, row, empty, length, slots, reach)
        reached = farthest_tile(cached + number * TILE, far, offset, own_tile, TILE)
        farthest = tl.minimum(reached, own_tile - (tl.min(lowest) + offset) // TILE)
        latest = tl.max(lowest)
        query = load_tile(queries, row, head, ours, length, KEY, KEYS)
        of_read = load_tile(grad, row, head, ours, length, VALUE, VALUES)
        read = load_tile(reads, row, head, ours, length, VALUE, VALUES)
        dot = tl.sum(of_read.to(tl.float32) * read.to(tl.float32), 1)
        tl.store(dots + together * length + ours, dot, mask=ours < length)
        norm = tl.load(lse + together * length + ours, mask=ours < length, other=float("inf"))
        of_query = tl.zeros((TILE, KEYS), tl.float32)
        if mask is not None:
            most = tl.load(largest + together * length + ours, mask=ours < length, other=0.0)

        if vector_keys is not None:
            for first in range(0, vectors, TILE):
                key = load_tile(vector_keys, row, head, first + line, vectors, KEY, KEYS)
                value = load_tile(vector_values, row, head, first + line, vectors, VALUE, VALUES)
                scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
                weights = tl.exp2(scores * LOG2E - norm[:, None])
                weights = tl.where((first + line < vectors)[None, :], weights, 0.0)
                keep = None
                if seed is not None:
                    keep = kept(seed, together, ours[:, None], (slots + first + line)[None, :], dropout)
                products = tl.dot(of_read, tl.trans(value), input_precision=PRECISION)
                of_scores = weights * slopes(products, keep, dot[:, None], dropout)
                of_query = tl.dot(of_scores.to(key.dtype), key, of_query, input_precision=PRECISION)

        if table is not None:
            place_query = query
            if places is not None:
                place_query = load_tile(places, row, head, ours, length, KEY, KEYS)
                of_place = tl.zeros((TILE, KEYS), tl.float32)
        if (table is not None) or (mask is not None):
            # zeros, but of a product: what is moved is then laid out as products are, and never laid out anew;
            # the least of zero and what is not negative: so the compiler knows that nothing is multiplied
            none = load_tile(keys, row, head, slots + line, slots, KEY, KEYS)
            before = tl.minimum(tl.abs(tl.dot(query, tl.trans(none), input_precision=PRECISION)), 0.0)
            if (bias is None) and (mask is None):
                before = before.to(query.dtype)
        for step in range(farthest + 1):
            apart = farthest - step
            slot, distances = (own_tile - apart) * TILE - offset + line, apart * TILE + line
            key = load_tile(keys, row, head, slot, slots, KEY, KEYS)
            value = load_tile(values, row, head, slot, slots, VALUE, VALUES)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            if table is not None:
                high_rows = load_tile(table, head, head, distances, reach, KEY, KEYS)
                low_rows = load_tile(table, head, head, distances - TILE, reach, KEY, KEYS)
                low = words(place_query, low_rows, bias, head, distances - TILE, reach, PRECISION)
                high = words(place_query, high_rows, bias, head, distances, reach, PRECISION)
                scores += moved(tl.where(nearer, high, low), TILE)
            if mask is not None:  # what has no share may stand above the largest score
                scores = tl.minimum(scores, most[:, None])
            if (apart == 0) | ((own_tile - apart) * TILE - offset < latest):
                seen = (slot[None, :] >= lowest[:, None]) & (slot[None, :] <= place[:, None])
                scores = tl.where(seen, scores, -float("inf"))
            weights = tl.exp2(scores * LOG2E - norm[:, None])
            keep = None
            if seed is not None:
                keep = kept(seed, together, ours[:, None], slot[None, :], dropout)
            products = tl.dot(of_read, tl.trans(value), input_precision=PRECISION)
            of_scores = weights * slopes(products, keep, dot[:, None], dropout)

            again = apart < covered
            if (table is not None) or (mask is not None):
                now = moved(of_scores, TILE)
                if (bias is None) and (mask is None):  # no more of it is needed then, and it waits in half the room
                    now = now.to(query.dtype)
                by_distance = tl.where(as_near, now, before)
                before = now
            if mask is not None:  # so far as if all had the whole share
                add_up(of_mask + sums * TILE + distances, again, tl.sum(by_distance, 0))
                if not is_whole(apart, whole, TILE):
                    by_distance *= load_distances(mask, head, distances, reach)[None, :]
                    of_scores *= shares(mask, head, apart, reach, TILE)
            of_query = tl.dot(of_scores.to(key.dtype), key, of_query, input_precision=PRECISION)
            if bias is not None:
                add_up(of_bias + sums * TILE + distances, again, tl.sum(by_distance, 0))
            if table is not None:
                by_distance = by_distance.to(key.dtype)
                if places is not None:
                    of_place = tl.dot(by_distance, high_rows, of_place, input_precision=PRECISION)
                else:
                    of_query = tl.dot(by_distance, high_rows, of_query, input_precision=PRECISION)
                added = tl.dot(tl.trans(place_query), by_distance, input_precision=PRECISION)
                at = of_table + (sums + apart) * (KEYS * TILE) + all_sums
                add_up(at, again, as_multiplied(added, KEYS, TILE))

        store_tile(of_queries, row, head, ours, length, of_query, KEY, KEYS)
        if places is not None:
            store_tile(of_places, row, head, ours, length, of_place, KEY, KEYS)
        if empty is not None:
            # what is empty for a whole tile adds nothing, and has to say so once
            owed = tl.where(covered == 0, reached + 1, 0)
            for apart in range(farthest + 1, owed):
                distances = apart * TILE + line
                if table is not None:
                    tl.store(of_table + (sums + apart) * (KEYS * TILE) + all_sums, tl.zeros((KEYS * TILE,), tl.float32))
                if bias is not None:
                    tl.store(of_bias + sums * TILE + distances, tl.zeros((TILE,), tl.float32))
                if mask is not None:
                    tl.store(of_mask + sums * TILE + distances, tl.zeros((TILE,), tl.float32))
        covered = tl.maximum(covered, reached + 1)
        tl.debug_barrier()  # sums may be read by other threads than wrote them


@triton.jit
def distances_kernel(
    of_table,
    of_bias,
    of_mask,
    looks,
    out_table,
    out_bias,
    out_mask,
    batch,
    heads,
    length,
    slots,
    reach,
    groups,
    KEY: tl.constexpr,
    KEYS: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Adds up what the programs of `queries_kernel` left for a part of a distance tile, always in the same order."""
    own, head = tl.program_id(0), tl.program_id(1)
    apart, part = own // PARTS, own % PARTS
    PART: tl.constexpr = KEYS * TILE // PARTS
    ROWS: tl.constexpr = TILE // PARTS
    within, distances = part * PART + tl.arange(0, PART), own * ROWS + tl.arange(0, ROWS)
    cached = slots - length
    offset = (TILE - cached % TILE) % TILE
    tiles = tl.cdiv(length, TILE)
    far, _ = far_and_whole(looks, head, reach)
    table = tl.zeros((PART,), tl.float32)
    bias = tl.zeros((ROWS,), tl.float32)
    mask = tl.zeros((ROWS,), tl.float32)
    if apart * TILE < far + 2 * TILE:  # beyond, there is nothing to add
        tables = tl.zeros((DEPTH, PART), tl.float32)
        biases = tl.zeros((DEPTH, ROWS), tl.float32)
        masks = tl.zeros((DEPTH, ROWS), tl.float32)
        for first in range(0, batch * groups, DEPTH):
            number = first + tl.arange(0, DEPTH)
            tile = tiles - 1 - number % groups  # the first that the program took
            own_tile = (cached + offset) // TILE + tile
            covered = farthest_tile(cached + tile * TILE, far, offset, own_tile, TILE) + 1
            there = ((number < batch * groups) & (apart < covered))[:, None]
            sums = ((number * heads + head).to(tl.int64) * (tl.cdiv(reach, TILE) + 1))[:, None]
            if of_table is not None:
                at = of_table + (sums + apart) * (KEYS * TILE) + within[None, :]
                tables += tl.load(at, mask=there, other=0.0)
            if of_bias is not None:
                biases += tl.load(of_bias + sums * TILE + distances[None, :], mask=there, other=0.0)
            if of_mask is not None:
                masks += tl.load(of_mask + sums * TILE + distances[None, :], mask=there, other=0.0)
        table, bias, mask = tl.sum(tables, 0), tl.sum(biases, 0), tl.sum(masks, 0)
    if of_table is not None:
        # the inverse of `as_multiplied`: which lane and which distance these are
        chunk = within // 128
        rest = chunk // (KEYS // 16)
        lane = chunk % (KEYS // 16) * 16 + within // 2 % 2 * 8 + within // 16 % 8
        distance = apart * TILE + rest * 8 + within // 4 % 4 * 2 + within % 2
        at = out_table + (distance * heads + head) * KEY + lane
        tl.store(at, table.to(out_table.dtype.element_ty), mask=(lane < KEY) & (distance < reach))
    if of_bias is not None:
        tl.store(out_bias + distances * heads + head, bias, mask=distances < reach)
    if of_mask is not None:
        tl.store(out_mask + head * reach + distances, mask, mask=distances < reach)


@triton.jit
def keys_kernel(
    queries,
    keys,
    values,
    places,
    table,
    bias,
    mask,
    looks,
    empty,
    seed,
    grad,
    lse,
    largest,
    dots,
    of_keys,
    of_values,
    heads,
    length,
    slots,
    reach,
    dropout,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Owns a key tile of a row and head. Scores have keys as rows and queries as columns here."""
    line = tl.arange(0, TILE)
    nearer = line[:, None] <= line[None, :]
    cached = slots - length
    offset = (TILE - cached % TILE) % TILE
    first_tile = (cached + offset) // TILE
    tiles = first_tile + tl.cdiv(length, TILE)
    # those of one row and head side by side: they read the same queries
    together, own_tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row, head = together // heads, together % heads
    far, whole = far_and_whole(looks, head, reach)
    after = (far + TILE - 2) // TILE  # how many tiles after its own one see a key tile
    slot = own_tile * TILE - offset + line
    if own_tile < first_tile - after:  # no query sees it
        store_tile(of_keys, row, head, slot, slots, tl.zeros((TILE, KEYS), tl.float32), KEY, KEYS)
        store_tile(of_values, row, head, slot, slots, tl.zeros((TILE, VALUES), tl.float32), VALUE, VALUES)
    else:
        key = load_tile(keys, row, head, slot, slots, KEY, KEYS)
        value = load_tile(values, row, head, slot, slots, VALUE, VALUES)
        of_key = tl.zeros((TILE, KEYS), tl.float32)
        of_value = tl.zeros((TILE, VALUES), tl.float32)
        first, last = tl.maximum(own_tile, first_tile), tl.minimum(tiles, own_tile + 1 + after)
        tl.assume(first < last)  # of a loop that may have no turn, ptxas would have each product waited for
        for query_tile in range(first, last):
            distances = (query_tile - own_tile) * TILE + line
            ours = (query_tile - first_tile) * TILE + line
            place = cached + ours
            lowest = lowest_seen(place, ours, row, empty, length, slots, reach)
            query = load_tile(queries, row, head, ours, length, KEY, KEYS)
            of_read = load_tile(grad, row, head, ours, length, VALUE, VALUES)
            norm = tl.load(lse + together * length + ours, mask=ours < length, other=float("inf"))
            dot = tl.load(dots + together * length + ours, mask=ours < length, other=0.0)
            scores = tl.dot(key, tl.trans(query), input_precision=PRECISION)
            if table is not None:
                place_query = query
                if places is not None:
                    place_query = load_tile(places, row, head, ours, length, KEY, KEYS)
                high = load_tile(table, head, head, distances, reach, KEY, KEYS)
                low = load_tile(table, head, head, distances - TILE, reach, KEY, KEYS)
                by_distance = tl.where(
                    nearer,
                    tl.dot(high, tl.trans(place_query), input_precision=PRECISION),
                    tl.dot(low, tl.trans(place_query), input_precision=PRECISION),
                )
                if bias is not None:
                    by_distance += tl.where(
                        nearer,
                        load_distances(bias, head, distances, reach)[:, None],
                        load_distances(bias, head, distances - TILE, reach)[:, None],
                    )
                scores += moved_across(by_distance, TILE)
            if mask is not None:
                most = tl.load(largest + together * length + ours, mask=ours < length, other=0.0)
                scores = tl.minimum(scores, most[None, :])
            if (query_tile == own_tile) | (own_tile * TILE - offset < tl.max(lowest)):
                seen = (slot[:, None] >= lowest[None, :]) & (slot[:, None] <= place[None, :])
                scores = tl.where(seen, scores, -float("inf"))
            weights = tl.exp2(scores * LOG2E - norm[None, :])
            if mask is not None:
                if not is_whole(query_tile - own_tile, whole, TILE):
                    weights *= shares_across(mask, head, distances, reach, nearer, TILE)
            products = tl.dot(value, tl.trans(of_read), input_precision=PRECISION)
            keep = None
            left = weights
            if seed is not None:
                keep = kept(seed, together, ours[None, :], slot[:, None], dropout)
                left = left_of(weights, keep, dropout)
            of_value = tl.dot(left.to(of_read.dtype), of_read, of_value, input_precision=PRECISION)
            of_scores = weights * slopes(products, keep, dot[None, :], dropout)
            of_key = tl.dot(of_scores.to(query.dtype), query, of_key, input_precision=PRECISION)
        store_tile(of_keys, row, head, slot, slots, of_key, KEY, KEYS)
        store_tile(of_values, row, head, slot, slots, of_value, VALUE, VALUES)


@triton.jit
def vectors_kernel(
    queries,
    vector_keys,
    vector_values,
    seed,
    grad,
    lse,
    dots,
    of_keys,
    of_values,
    batch,
    heads,
    length,
    slots,
    vectors,
    dropout,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Owns a tile of a head's persistent vectors, and an equal share of all query tiles of all rows."""
    head, number, part, parts = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    line = tl.arange(0, TILE)
    vector = number * TILE + line
    key = load_tile(vector_keys, head, head, vector, vectors, KEY, KEYS)
    value = load_tile(vector_values, head, head, vector, vectors, VALUE, VALUES)
    of_key = tl.zeros((TILE, KEYS), tl.float32)
    of_value = tl.zeros((TILE, VALUES), tl.float32)
    tiles = tl.cdiv(length, TILE)
    for own in range(part, batch * tiles, parts):
        row = own // tiles
        together = row * heads + head
        ours = own % tiles * TILE + line
        query = load_tile(queries, row, head, ours, length, KEY, KEYS)
        of_read = load_tile(grad, row, head, ours, length, VALUE, VALUES)
        norm = tl.load(lse + together * length + ours, mask=ours < length, other=float("inf"))
        dot = tl.load(dots + together * length + ours, mask=ours < length, other=0.0)
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION)
        weights = tl.exp2(scores * LOG2E - norm[None, :])
        products = tl.dot(value, tl.trans(of_read), input_precision=PRECISION)
        keep = None
        left = weights
        if seed is not None:
            keep = kept(seed, together, ours[None, :], (slots + vector)[:, None], dropout)
            left = left_of(weights, keep, dropout)
        of_value = tl.dot(left.to(of_read.dtype), of_read, of_value, input_precision=PRECISION)
        of_scores = weights * slopes(products, keep, dot[None, :], dropout)
        of_key = tl.dot(of_scores.to(query.dtype), query, of_key, input_precision=PRECISION)
    store_tile(of_keys, part, head, vector, vectors, of_key, KEY, KEYS)
    store_tile(of_values, part, head, vector, vectors, of_value, VALUE, VALUES)
