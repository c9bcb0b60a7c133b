"""The gradients of relative attention (attention_kernels.py)."""

import triton
import triton.language as tl

from .attention_tiles import (
    far_and_whole,
    farthest_tile,
    is_whole,
    kept,
    left_of,
    load_distances,
    load_tile,
    lowest_seen,
    moved,
    moved_across,
    shares,
    shares_across,
    store_tile,
    words,
)
from .elementary import LOG2E


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
