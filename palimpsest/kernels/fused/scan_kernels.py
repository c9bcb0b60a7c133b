"""The memory scan in Triton: the chunked form (kernels/chunked.py), one program for some columns of one head's page.

    prepare     all chunks side by side: T = (I + A)⁻¹, how much of each note each read sees, and what is kept
    carry       chunk after chunk: notes = T (write · value − erase · recall), the reads, the page
    carry_back  the same, last chunk first: the gradient of the page after each chunk, and of what T was given
    gradients   all chunks side by side: everything else, from the pages before and their gradients after each chunk

Where keys are counted, a page has one column more than there are values, PAGE = VALUES + 1, in which every key writes a
one. Those ones are not in memory either, and what is read of that column, the mass, is written by itself.

Raw queries and keys are read from memory; their features exist on chip alone. On chip a page is turned, columns first:
page and notes are then the left side of every product they are in, which on tensor cores is where results already
lie, so that nothing between two chunks passes through shared memory. All tiles have fewer than 64 rows: from there
on Triton (3.4 to 3.7.0) would use Hopper's warp group products, and lose track of their addresses in loops like these.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from .chunk import (
    across_middle,
    between,
    inverse,
    kept_over,
    later_half,
    overlaps_by_feature,
    towards_middle,
)
from .elementary import exp, sigmoid
from .features import features, raw_gradient
from .products import product

LITTLE = tl.constexpr(1 / 64)
QUERIES, KEYS, KEYS_LEFT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # what `prepare` dims by feature
ALL_GONE = tl.constexpr(-128.0)  # exp of which is 0 in float32
BAND = tl.constexpr(16)  # columns of a page that a warp carries by itself
SHARE = tl.constexpr(64)  # of many features, those that a warp of `prepare` multiplies


@triton.jit
def first_of(pointer, row, head, token, s_b, s_t, s_h):
    """Where the numbers of a token begin. All else is an offset of 32 bits: pointers cost twice the registers."""
    return pointer + row.to(tl.int64) * s_b + head * s_h + token.to(tl.int64) * s_t


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
def look_for_bands(
    base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    ALONE: tl.constexpr,
):  # fmt: skip
    """The same as [1, CHUNK, SIZE], unless a band is alone."""
    if LOOK[0] == "Identity" and LOOK[1] == "Unscaled":
        return tile_for_bands(base, step, inside, FEATURES, SIZE, CHUNK, ALONE)
    elif ALONE:
        return look(base, step, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    else:
        return look(base, step, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)[None, :, :]


@triton.jit
def back(
    gradient, base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The gradient of raw numbers from that of their features."""
    rows = base + tl.arange(0, CHUNK) * step
    return raw_gradient(gradient, rows, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE)


@triton.jit
def tile_of(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """[CHUNK, SIZE] numbers, `step` between tokens."""
    place, column = tl.arange(0, CHUNK), tl.arange(0, SIZE)
    there = inside[:, None] & (column < count)[None, :]
    return tl.load(base + (place[:, None] * step + column[None, :]), mask=there, other=0.0)


@triton.jit
def tile_for_bands(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr, ALONE: tl.constexpr):
    """The same as [1, CHUNK, SIZE]: read so from the start, it goes from shared memory straight into products."""
    if ALONE:
        return tile_of(base, step, inside, count, SIZE, CHUNK)
    else:
        place, column = tl.arange(0, CHUNK)[None, :, None], tl.arange(0, SIZE)[None, None, :]
        return tl.load(base + (place * step + column), mask=inside[None, :, None] & (column < count), other=0.0)


@triton.jit
def gate_of(base, step, inside, LIMIT: tl.constexpr, CHUNK: tl.constexpr):
    """One number a token; with a limit it comes as a logit."""
    found = tl.load(base + tl.arange(0, CHUNK) * step, mask=inside, other=0.0).to(tl.float32)
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
def logs_of(base, step, inside, CHUNK: tl.constexpr):
    """Sums of log keep since the chunk's start, and how often the page was wiped since.

    In float64: a difference of two sums must not lose what a great forgetting before both of them left of it.
    """
    logs = tl.load(base + tl.arange(0, CHUNK) * step, mask=inside, other=0.0).to(tl.float32)
    wiped = logs == float("-inf")
    sums = tl.cumsum(tl.where(wiped, 0.0, logs).to(tl.float64), axis=0)
    return sums, tl.cumsum(wiped.to(tl.int32), axis=0)


@triton.jit
def logs_by_feature(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Log keep, [CHUNK, SIZE], all of it finite: sums over some tokens are products in which others count 0 times."""
    logs = tile_of(base, step, inside, count, SIZE, CHUNK).to(tl.float32)
    return tl.where(logs < ALL_GONE, ALL_GONE, logs)


@triton.jit
def since_start(logs, documents):
    return tl.where(documents == 0, exp(logs.to(tl.float32)), 0.0)


@triton.jit
def until_end(logs, documents, CHUNK: tl.constexpr):
    last = tl.arange(0, CHUNK) == CHUNK - 1
    last_log = tl.sum(tl.where(last, logs, 0.0), axis=0)
    last_document = tl.sum(tl.where(last, documents, 0), axis=0)
    return tl.where(documents == last_document, exp((last_log - logs).to(tl.float32)), 0.0)


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
def seen_of(q, k, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """q_i · k_j for j ≤ i: how much of note j read i sees, where all is kept. Features may come in shares."""
    place = tl.arange(0, CHUNK)
    found = product(q, tl.trans(k), PRECISION)
    if len(found.shape) == 3:
        found = tl.sum(found, axis=0)
    return tl.where(place[:, None] >= place[None, :], found, 0.0)


@triton.jit
def in_shares(x, SHARES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Many features that were made by products, as [shares, CHUNK, SHARE], if asked to.

    Triton lays out the warps of products that follow from each other in one way, and for a square one, as that of
    queries and keys is, it is one below the other: each would make all features of the tokens, more than its registers
    hold. A product of shares has a layout of its own, and leaves the others theirs.
    """
    if SHARES:
        return tl.permute(tl.reshape(x, (CHUNK, SIZE // SHARE, SHARE)), (1, 0, 2))
    else:
        return x


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
def asked_of_page(
    page, x, dimmed_in, index, ALONE: tl.constexpr, KEEP: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What queries or keys find on the page the chunk began with, [BANDS, BAND, CHUNK], not faded by head."""
    if KEEP == "features":
        return times_dimmed(page, dimmed_in, index, ALONE, True, FEATURES, SIZE, CHUNK, PRECISION)
    else:
        return times(page, tl.trans(x), PRECISION)


@triton.jit
def faded(bands, kept, KEEP: tl.constexpr):
    """Of each token as much as is kept of it by its head."""
    if KEEP == "heads":
        return bands * kept[None, None, :]
    else:
        return bands


@triton.jit
def written(
    page, notes, x, dimmed_in, index, ALONE: tl.constexpr, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The page with notes [BANDS, BAND, CHUNK] under the keys x."""
    if KEEP == "features":
        return times_dimmed(notes, dimmed_in, index, ALONE, False, FEATURES, SIZE, CHUNK, PRECISION, page)
    else:
        return times(notes, x, PRECISION, page)


@triton.jit
def store_dimmed(tiles, index, tile, feature, FEATURES: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """Some features of queries or keys, as much as is kept of them; split as other tiles are."""
    offsets = tl.arange(0, CHUNK)[:, None] * FEATURES + feature[None, :]
    there = (feature < FEATURES)[None, :]
    if PRECISION == "split":
        base = tiles + index.to(tl.int64) * (2 * CHUNK * FEATURES)
        high = tile.to(tl.bfloat16)
        tl.store(base + offsets, high, mask=there)
        tl.store(base + CHUNK * FEATURES + offsets, (tile - high.to(tl.float32)).to(tl.bfloat16), mask=there)
    else:
        tl.store(tiles + index.to(tl.int64) * (CHUNK * FEATURES) + offsets, tile, mask=there)


@triton.jit
def times_dimmed(
    left, tiles, index, ALONE: tl.constexpr, TURNED: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr, onto=None,
):  # fmt: skip
    """Bands times what was stored so, [CHUNK, SIZE], or its transpose."""
    base = tiles + index.to(tl.int64) * (CHUNK * FEATURES)
    if PRECISION == "split":
        base += index.to(tl.int64) * (CHUNK * FEATURES)
    every = tl.arange(0, CHUNK) < CHUNK
    tile = tile_for_bands(base, FEATURES, every, FEATURES, SIZE, CHUNK, ALONE)
    if TURNED:
        tile = tl.trans(tile)
    found = times(left, tile, PRECISION, onto)
    if PRECISION == "split":
        lost = tile_for_bands(base + CHUNK * FEATURES, FEATURES, every, FEATURES, SIZE, CHUNK, ALONE)
        if TURNED:
            lost = tl.trans(lost)
        found = times(left, lost, "half", found)
    return found


@triton.jit
def left_of_page(
    page, index, kept_in, KEEP: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr
):
    """At the end of a chunk."""
    if KEEP == "features":
        return page * whole_of(index, kept_in, KEEP, FEATURES, SIZE, CHUNK)[None, None, :]
    elif KEEP == "heads":
        return page * whole_of(index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
    else:
        return page


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
def store_tile(tiles, index, tile, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """A [CHUNK, CHUNK] for all programs of a head; where products are split, what bfloat16 keeps and what it loses."""
    place = tl.arange(0, CHUNK)
    offsets = place[:, None] * CHUNK + place[None, :]
    if PRECISION == "split":
        base = tiles + index.to(tl.int64) * (2 * CHUNK * CHUNK)
        high = tile.to(tl.bfloat16)
        tl.store(base + offsets, high)
        tl.store(base + CHUNK * CHUNK + offsets, (tile - high.to(tl.float32)).to(tl.bfloat16))
    else:
        tl.store(tiles + index.to(tl.int64) * (CHUNK * CHUNK) + offsets, tile)


@triton.jit
def load_tile(tiles, index, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """The same, without what bfloat16 lost."""
    place = tl.arange(0, CHUNK)
    if TURNED:
        offsets = place[None, :] * CHUNK + place[:, None]
    else:
        offsets = place[:, None] * CHUNK + place[None, :]
    if PRECISION == "split":
        return tl.load(tiles + index.to(tl.int64) * (2 * CHUNK * CHUNK) + offsets)
    else:
        return tl.load(tiles + index.to(tl.int64) * (CHUNK * CHUNK) + offsets)


@triton.jit
def load_for_bands(
    tiles, index, ALONE: tl.constexpr, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr
):
    """The same as [1, CHUNK, CHUNK], unless a band is alone."""
    HALVES: tl.constexpr = 2 if PRECISION == "split" else 1
    base = tiles + index.to(tl.int64) * (HALVES * CHUNK * CHUNK)
    one, other = tl.arange(0, CHUNK)[None, :, None], tl.arange(0, CHUNK)[None, None, :]
    if ALONE:
        return load_tile(tiles, index, TURNED, CHUNK, PRECISION)
    elif TURNED:
        return tl.load(base + (other * CHUNK + one))
    else:
        return tl.load(base + (one * CHUNK + other))


@triton.jit
def times_tile(
    left, tiles, index, ALONE: tl.constexpr, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
    onto=None,
):  # fmt: skip
    """Bands [BANDS, BAND, CHUNK] times a stored tile or its transpose."""
    found = times(left, load_for_bands(tiles, index, ALONE, TURNED, CHUNK, PRECISION), PRECISION, onto)
    if PRECISION == "split":
        lost = load_for_bands(tiles + CHUNK * CHUNK, index, ALONE, TURNED, CHUNK, PRECISION)
        found = times(left, lost, "half", found)
    return found


@triton.jit
def prepare_kernel(
    queries, keys, log_keep, erase, write, matrix,
    queries_out, keys_out, solved, erasing, writing, seen_out, between_out, kept_out, remaining_out, dimmed_out,
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
    SLICE: tl.constexpr = 32 if LOOK[0] == "Identity" and LOOK[1] == "Unscaled" and SIZE > 32 else SIZE
    if KEEP != "features" or SLICE == SIZE:
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
    else:
        q = in_shares(q, SHARES, SIZE, CHUNK)
        k = in_shares(k, SHARES, SIZE, CHUNK)
        seen = seen_of(q, k, CHUNK, FINE)
        if ERASE:
            recalled = seen_of(k, k, CHUNK, FINE)
    if KEEP == "heads":
        logs, documents = logs_of(first_of(log_keep, row, head, first, keep_b, keep_t, keep_h), keep_t, inside, CHUNK)
        since = between(logs, documents, CHUNK)
        tl.store(between_out + at * CHUNK + (place[:, None] * CHUNK + place[None, :]), since)
        tl.store(kept_out + at + place, since_start(logs, documents))
        tl.store(remaining_out + at + place, until_end(logs, documents, CHUNK))
        seen *= since
        if ERASE:
            recalled *= since
    store_tile(seen_out, program, seen, CHUNK, FINE)
    if ERASE:
        beta = gate_of(first_of(erase, row, head, first, erase_b, erase_t, erase_h), erase_t, inside, LIMIT, CHUNK)
        system = tl.where(place[:, None] > place[None, :], beta[:, None] * recalled, 0.0)
        notes_by = inverse(system, CHUNK, EXACT)
        if solved is not None:
            store_tile(solved, program, notes_by, CHUNK, FINE)
        store_tile(erasing, program, notes_by * beta[None, :], CHUNK, FINE)
        if writing is not None:
            into = gate_of(first_of(write, row, head, first, write_b, write_t, write_h), write_t, inside, LIMIT, CHUNK)
            store_tile(writing, program, notes_by * into[None, :], CHUNK, FINE)


@triton.jit
def columns_of(BANDS: tl.constexpr):
    """Of a page, or a slice of one: those of each band."""
    return tl.arange(0, BANDS)[:, None] * BAND + tl.arange(0, BAND)[None, :]


@triton.jit
def tokens_at(
    chunk, values, row, head, slice, length, v_b, v_t, v_h, VALUES: tl.constexpr, BANDS: tl.constexpr,
    CHUNK: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """[BANDS, BAND, CHUNK] of values or of their reads' gradient."""
    place, column = tl.arange(0, CHUNK)[None, None, :], slice * (BANDS * BAND) + columns_of(BANDS)[:, :, None]
    here = place < length - chunk * CHUNK
    if not FULL:
        here = here & (column < VALUES)
    base = first_of(values, row, head, chunk * CHUNK, v_b, v_t, v_h)
    return tl.load(base + (place * v_t + column), mask=here, other=0.0)


@triton.jit
def on_slice(
    feature, column, slice, FEATURES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, FULL: tl.constexpr
):
    """What of a slice is on the page; all its columns are where slices are full."""
    there = (feature < FEATURES) & (column < COLUMNS)
    if not FULL:
        there = there & (column < PAGE - slice * COLUMNS)
    return there


@triton.jit
def on_tokens(inside, across, slice, VALUES: tl.constexpr, COLUMNS: tl.constexpr, FULL: tl.constexpr):
    """What of a slice is some token's, [CHUNK, COLUMNS]."""
    here = inside[:, None] & (across < COLUMNS)[None, :]
    if not FULL:
        here = here & (across < VALUES - slice * COLUMNS)[None, :]
    return here


@triton.jit
def as_tokens(bands):
    """[BANDS, BAND, CHUNK] -> [CHUNK, COLUMNS]"""
    COLUMNS: tl.constexpr = bands.shape[0] * bands.shape[1]
    return tl.reshape(tl.permute(bands, (2, 0, 1)), (bands.shape[2], COLUMNS))


@triton.jit
def store_for_products(base, offsets, bands, here, VALUES: tl.constexpr, PRECISION: tl.constexpr):
    """[BANDS, BAND, CHUNK] as tokens; where products are split, what bfloat16 keeps and, beside it, what it loses.

    Both are multiplied as they lie there: nothing else is as quick to come out of shared memory.
    """
    if PRECISION == "split":
        high = bands.to(tl.bfloat16)
        tl.store(base + offsets, as_tokens(high), mask=here)
        tl.store(base + VALUES + offsets, as_tokens((bands - high.to(tl.float32)).to(tl.bfloat16)), mask=here)
    else:
        tl.store(base + offsets, as_tokens(bands), mask=here)


@triton.jit
def with_count(bands, last, slice, VALUES: tl.constexpr, PAGE: tl.constexpr):
    """Bands with these numbers in the column in which keys are counted, if there is one and it is here."""
    if PAGE > VALUES:
        column = columns_of(bands.shape[0]) + slice * (bands.shape[0] * BAND)
        return tl.where((column == VALUES)[:, :, None], last, bands.to(tl.float32))
    else:
        return bands


@triton.jit
def gate_at(
    chunk, gate, row, head, length, s_b, s_t, s_h, PRESENT: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr
):
    place = tl.arange(0, CHUNK)
    if PRESENT:
        base = first_of(gate, row, head, chunk * CHUNK, s_b, s_t, s_h)
        return gate_of(base, s_t, place < length - chunk * CHUNK, LIMIT, CHUNK)
    else:
        return place


@triton.jit
def fade_at(index, fades, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """What `prepare` says is kept, of the chunk that is this one of all."""
    place = tl.arange(0, CHUNK)
    if KEEP == "heads":
        return tl.load(fades + index.to(tl.int64) * CHUNK + place)
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


@triton.jit
def carry_kernel(
    queries, keys, values, write, matrix, erasing, writing, seen_in, kept_in, remaining_in, dimmed_in, start,
    reads, mass, notes_out, pages, last,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, write_b, write_t, write_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, LIMIT: tl.constexpr,
    STARTED: tl.constexpr, READS: tl.constexpr, READY: tl.constexpr, SAVES: tl.constexpr, STAGES: tl.constexpr, ALONE: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """`parts` pieces of `share` chunks each start from pages of their own, `start` [rows · heads, parts, k, v].

    Where nothing is read, columns beyond the page begin as columns of the identity and are written nothing: the
    page they end as is what the piece does to the page it is given. There are none where all of that is kept. What
    backward needs is saved if asked for, before the page is changed: there is no room for two of them.
    """
    BANDS: tl.constexpr = COLUMNS // BAND
    HALVES: tl.constexpr = 2 if FINE == "split" else 1
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    FULL: tl.constexpr = READS and PAGE % COLUMNS == 0 and PAGE == VALUES
    TURNED: tl.constexpr = FEATURES if ERASE or KEEP != "all" else tl.constexpr(0)
    ALL: tl.constexpr = SLICES if READS else SLICES + (TURNED + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, piece, line = program % ALL, (program // ALL) % parts, program // (ALL * parts)
    row, head = line // heads, line % heads
    place, feature = tl.arange(0, CHUNK), tl.arange(0, SIZE)[None, None, :]
    column, across = columns_of(BANDS)[:, :, None], tl.arange(0, COLUMNS)
    on_page, on_saved = feature * PAGE + column, column * FEATURES + feature
    there = on_slice(feature, column, slice, FEATURES, PAGE, COLUMNS, FULL)
    page = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    if STARTED:
        at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
        page += tl.load(start + at + on_page, mask=there, other=0.0)
    if not READS:
        page += tl.where(feature == (slice - SLICES) * COLUMNS + column, 1.0, 0.0)
    for step in tl.range(tl.minimum(share, chunks - piece * share), num_stages=STAGES):
        chunk = piece * share + step
        first, index = chunk * CHUNK, line * chunks + chunk
        inside = place < length - first
        into = gate_at(chunk, write, row, head, length, write_b, write_t, write_h, WRITE and not ERASE, LIMIT, CHUNK)
        kept, remaining = fade_at(index, kept_in, KEEP, CHUNK), fade_at(index, remaining_in, KEEP, CHUNK)
        v = tokens_at(chunk, values, row, head, slice, length, v_b, v_t, v_h, VALUES, BANDS, CHUNK, FULL)
        k = look_for_bands(
            first_of(keys, row, head, first, k_b, k_t, k_h),
            k_t,
            inside,
            matrix,
            LOOK,
            WIDTH,
            FEATURES,
            SIZE,
            CHUNK,
            ALONE,
        )
        if ERASE:
            recall = asked_of_page(page, k, dimmed_in, index * 3 + KEYS, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE)
            recall = faded(recall, kept, KEEP)
            notes = times_tile(v, erasing if writing is None else writing, index, ALONE, True, CHUNK, FINE)
            notes -= times_tile(recall, erasing, index, ALONE, True, CHUNK, FINE)
            notes = with_count(notes, 1.0, slice, VALUES, PAGE)  # in full, as nothing of it is erased
        else:
            notes = with_count(v, 1.0, slice, VALUES, PAGE).to(v.dtype)
            if WRITE:
                notes = notes.to(tl.float32) * into[None, None, :]
        if READS:
            q = look_for_bands(
                first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix,
                LOOK, WIDTH, FEATURES, SIZE, CHUNK, ALONE,
            )  # fmt: skip
            ASKING: tl.constexpr = FINE if KEEP == "features" else ROUGH  # dimmed queries are no bfloat16
            found = asked_of_page(page, q, dimmed_in, index * 3 + QUERIES, ALONE, KEEP, FEATURES, SIZE, CHUNK, ASKING)
            found = faded(found, kept, KEEP)
            if READY:
                found = times(notes, load_for_bands(seen_in, index, ALONE, True, CHUNK, FINE), FINE, found)
            elif ALONE:
                found = times(notes, tl.trans(seen_of(q, k, CHUNK, FINE)), ROUGH, found)
            else:
                found = times(notes, tl.trans(seen_of(q, k, CHUNK, FINE))[None, :, :], ROUGH, found)
        token = (row * length + first).to(tl.int64) * heads + head
        here = on_tokens(inside, across, slice, VALUES, COLUMNS, FULL)
        if SAVES:
            if ERASE:
                base = notes_out + token * (HALVES * VALUES) + slice * COLUMNS
                offsets = place[:, None] * (heads * HALVES * VALUES) + across[None, :]
                store_for_products(base, offsets, notes, here, VALUES, FINE)
            base = pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
            tl.store(base + on_saved, page.to(pages.dtype.element_ty), mask=there)
        page = left_of_page(page, index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
        page = written(
            page, faded(notes, remaining, KEEP), k, dimmed_in, index * 3 + KEYS_LEFT,
            ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE,
        )  # fmt: skip
        if READS:
            base = reads + token * VALUES + slice * COLUMNS
            offsets = place[:, None] * (heads * VALUES) + across[None, :]
            tl.store(base + offsets, as_tokens(found).to(reads.dtype.element_ty), mask=here)
            if PAGE > VALUES:
                counting = column == VALUES - slice * COLUMNS
                overlap = tl.sum(tl.sum(tl.where(counting, found, 0.0), axis=0), axis=0)
                tl.store(mass + token + place * heads, overlap, mask=inside & (slice == SLICES - 1))
    if READS:
        if piece == parts - 1:
            tl.store(last + line.to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS + on_page, page, mask=there)
    else:
        WIDER: tl.constexpr = PAGE + TURNED
        beyond = slice >= SLICES
        begin = tl.where(beyond, PAGE + (slice - SLICES) * COLUMNS, slice * COLUMNS)
        end = tl.where(beyond, WIDER, PAGE)
        base = last + (line * parts + piece).to(tl.int64) * (FEATURES * WIDER) + begin
        there = (feature < FEATURES) & (begin + column < end)
        tl.store(base + (feature * WIDER + column), page, mask=there)


@triton.jit
def carry_back_kernel(
    queries, keys, matrix, solved, erasing, writing, seen_in, kept_in, remaining_in, dimmed_in,
    of_reads, of_mass, of_last, of_fresh, of_values, of_pages, of_start,
    q_b, q_t, q_h, k_b, k_t, k_h, r_b, r_t, r_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, ENDED: tl.constexpr, SAVES: tl.constexpr,
    STAGES: tl.constexpr, ALONE: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """`of_last` [rows · heads, parts, k, v] is where each piece begins, at its end; `of_start` is where it ends."""
    BANDS: tl.constexpr = COLUMNS // BAND
    HALVES: tl.constexpr = 2 if FINE == "split" else 1
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    FULL: tl.constexpr = PAGE % COLUMNS == 0 and PAGE == VALUES
    program = tl.program_id(0)
    slice, piece, line = program % SLICES, (program // SLICES) % parts, program // (SLICES * parts)
    row, head = line // heads, line % heads
    place, feature = tl.arange(0, CHUNK), tl.arange(0, SIZE)[None, None, :]
    column, across = columns_of(BANDS)[:, :, None], tl.arange(0, COLUMNS)
    on_page, on_saved = feature * PAGE + column, column * FEATURES + feature
    there = on_slice(feature, column, slice, FEATURES, PAGE, COLUMNS, FULL)
    at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
    page = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    if ENDED:
        page += tl.load(of_last + at + on_page, mask=there, other=0.0)
    end = tl.minimum(piece * share + share, chunks)
    for step in tl.range(end - piece * share, num_stages=STAGES):
        chunk = end - 1 - step
        first, index = chunk * CHUNK, line * chunks + chunk
        inside = place < length - first
        if SAVES:
            base = of_pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
            tl.store(base + on_saved, page.to(of_pages.dtype.element_ty), mask=there)
        asked = gate_at(chunk, of_mass, row, head, length, length * heads, heads, 1, PAGE > VALUES, 0, CHUNK)
        kept, remaining = fade_at(index, kept_in, KEEP, CHUNK), fade_at(index, remaining_in, KEEP, CHUNK)
        coming = tokens_at(chunk, of_reads, row, head, slice, length, r_b, r_t, r_h, VALUES, BANDS, CHUNK, FULL)
        coming = with_count(coming, asked[None, None, :], slice, VALUES, PAGE)
        if ERASE:
            k = look_for_bands(
                first_of(keys, row, head, first, k_b, k_t, k_h), k_t, inside, matrix,
                LOOK, WIDTH, FEATURES, SIZE, CHUNK, ALONE,
            )  # fmt: skip
            of_notes = asked_of_page(
                page, k, dimmed_in, index * 3 + KEYS_LEFT, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE
            )
            of_notes = times_tile(coming, seen_in, index, ALONE, False, CHUNK, FINE, faded(of_notes, remaining, KEEP))
            of_notes = with_count(of_notes, 0.0, slice, VALUES, PAGE)
            fresh = times_tile(of_notes, solved, index, ALONE, False, CHUNK, FINE)
            erased = times_tile(of_notes, erasing, index, ALONE, False, CHUNK, FINE)
            if not WRITE:
                of_value = fresh
            elif writing is None:
                of_value = erased
            else:
                of_value = times_tile(of_notes, writing, index, ALONE, False, CHUNK, FINE)
        q = look_for_bands(
            first_of(queries, row, head, first, q_b, q_t, q_h),
            q_t,
            inside,
            matrix,
            LOOK,
            WIDTH,
            FEATURES,
            SIZE,
            CHUNK,
            ALONE,
        )
        page = left_of_page(page, index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
        page = written(
            page, faded(coming, kept, KEEP), q, dimmed_in, index * 3 + QUERIES, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE
        )
        if ERASE:
            page = written(
                page,
                -faded(erased, kept, KEEP),
                k,
                dimmed_in,
                index * 3 + KEYS,
                ALONE,
                KEEP,
                FEATURES,
                SIZE,
                CHUNK,
                FINE,
            )
            if SAVES:
                token = (row * length + first).to(tl.int64) * heads + head
                here = on_tokens(inside, across, slice, VALUES, COLUMNS, FULL)
                base = of_fresh + token * (HALVES * VALUES) + slice * COLUMNS
                offsets = place[:, None] * (heads * HALVES * VALUES) + across[None, :]
                store_for_products(base, offsets, fresh, here, VALUES, FINE)
                base = of_values + token * VALUES + slice * COLUMNS
                offsets = place[:, None] * (heads * VALUES) + across[None, :]
                tl.store(base + offsets, as_tokens(of_value.to(of_values.dtype.element_ty)), mask=here)
    tl.store(of_start + at + on_page, page, mask=there)


@triton.jit
def fades_of(
    program, kept_in, remaining_in, keep_base, keep_t, inside, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What is kept since the chunk's start and until its end; that of features is found again."""
    if KEEP == "features":
        place = tl.arange(0, CHUNK)
        logs = logs_by_feature(keep_base, keep_t, inside, FEATURES, SIZE, CHUNK)
        kept = kept_over(place[:, None] >= place[None, :], logs, PRECISION)
        return kept, kept_over(place[:, None] < place[None, :], logs, PRECISION)
    else:
        return fade_at(program, kept_in, KEEP, CHUNK), fade_at(program, remaining_in, KEEP, CHUNK)


@triton.jit
def by_page_of(
    pages, of_pages, KEEP: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What it is worth that a page is kept: the overlap of it and its gradient after the chunk, of each feature or all."""
    BANDS: tl.constexpr = COLUMNS // BAND
    if KEEP == "features":
        feature = tl.arange(0, SIZE)[None, :]
        by_feature = tl.zeros((SIZE,), tl.float32)
        for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
            column = start + tl.arange(0, COLUMNS)[:, None]
            at, there = column * FEATURES + feature, (feature < FEATURES) & (column < VALUES)
            page = tl.load(pages + at, mask=there, other=0.0).to(tl.float32)
            by_feature += tl.sum(page * tl.load(of_pages + at, mask=there, other=0.0).to(tl.float32), axis=0)
        return by_feature
    else:
        feature, across = tl.arange(0, SIZE)[None, None, :], tl.arange(0, BAND)
        by_bands = tl.zeros((BANDS, BAND, BAND), tl.float32)  # on their diagonals
        for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
            column = start + columns_of(BANDS)[:, :, None]
            at, there = column * FEATURES + feature, (feature < FEATURES) & (column < VALUES)
            page = tl.load(pages + at, mask=there, other=0.0)
            by_bands = product(page, tl.trans(tl.load(of_pages + at, mask=there, other=0.0)), PRECISION, by_bands)
        return tl.sum(tl.where((across[:, None] == across[None, :])[None, :, :], by_bands, 0.0))


@triton.jit
def gradients_kernel(
    queries, keys, values, log_keep, erase, write, matrix,
    queries_in, keys_in, seen_in, between_in, kept_in, remaining_in,
    notes_in, pages, of_reads, of_mass, of_fresh, of_pages,
    of_queries, of_keys, of_values, of_log_keep, of_erase, of_write,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, SHARED: tl.constexpr, LIMIT: tl.constexpr,
    LOOKED: tl.constexpr, READY: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of."""
    HALVES: tl.constexpr = 2 if FINE == "split" else 1
    program = tl.program_id(0)
    chunk, head, row = program % chunks, (program // chunks) % heads, program // (chunks * heads)
    place, feature, first = tl.arange(0, CHUNK), tl.arange(0, SIZE), chunk * CHUNK
    inside = place < length - first
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    v_base = first_of(values, row, head, first, v_b, v_t, v_h)
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    keep_base = log_keep
    if KEEP != "all":
        keep_base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
    page_base = program.to(tl.int64) * (FEATURES * PAGE)
    if KEEP != "all":  # before all else, in passing: pages that are wanted here too would be slow to come to products
        by_whole = by_page_of(
            pages + page_base, of_pages + page_base, KEEP, FEATURES, SIZE, VALUES, COLUMNS, STAGES, ROUGH
        )
    if LOOKED:
        q = tile_of(queries_in + token * FEATURES, heads * FEATURES, inside, FEATURES, SIZE, CHUNK)
        k = tile_of(keys_in + token * FEATURES, heads * FEATURES, inside, FEATURES, SIZE, CHUNK)
    else:
        q = look(q_base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
        k = look(k_base, k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    if WRITE:
        base = first_of(write, row, head, first, write_b, write_t, write_h)
        into = gate_of(base, write_t, inside, LIMIT, CHUNK)
    if ERASE:
        base = first_of(erase, row, head, first, erase_b, erase_t, erase_h)
        beta = gate_of(base, erase_t, inside, LIMIT, CHUNK)
        of_system = tl.zeros((CHUNK, CHUNK), tl.float32)  # its diagonal: what notes are worth
        of_given = tl.zeros((CHUNK, CHUNK), tl.float32)  # its diagonal: what values are worth, before write
        erasing = tl.zeros((CHUNK, SIZE), tl.float32)
    else:
        _, remaining = fades_of(
            program, kept_in, remaining_in, keep_base, keep_t, inside, KEEP, FEATURES, SIZE, CHUNK, FINE
        )
    if not ERASE and READY:
        seen_back = load_tile(seen_in, program, True, CHUNK, FINE)
    elif not ERASE:
        seen_back = tl.trans(seen_of(q, k, CHUNK, FINE))
    asking = tl.zeros((CHUNK, SIZE), tl.float32)
    writing = tl.zeros((CHUNK, SIZE), tl.float32)
    of_seen = tl.zeros((CHUNK, CHUNK), tl.float32)
    of_into = tl.zeros((CHUNK,), tl.float32)

    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)
        here = inside[:, None] & (column < VALUES)[None, :]
        there = (feature[None, :] < FEATURES) & (column < VALUES)[:, None]
        on_page = column[:, None] * FEATURES + feature[None, :]
        coming = tl.load(r_base + (place[:, None] * r_t + column[None, :]), mask=here, other=0.0)
        page = tl.load(pages + page_base + on_page, mask=there, other=0.0)
        of_page = tl.load(of_pages + page_base + on_page, mask=there, other=0.0)
        v = tl.load(v_base + (place[:, None] * v_t + column[None, :]), mask=here, other=0.0)
        if ERASE:
            at = token * (HALVES * VALUES) + (place[:, None] * (heads * HALVES * VALUES) + column[None, :])
            notes = tl.load(notes_in + at, mask=here, other=0.0)
            fresh = tl.load(of_fresh + at, mask=here, other=0.0)
            of_system = product(fresh, tl.trans(notes), FINE, of_system)
            of_given = product(fresh, tl.trans(v), FINE, of_given)
            of_seen = product(coming, tl.trans(notes), FINE, of_seen)
            erasing = product(fresh, page, ROUGH, erasing)
            writing = product(notes, of_page, ROUGH, writing)
            if FINE == "split":
                lost = tl.load(of_fresh + VALUES + at, mask=here, other=0.0)
                of_system = product(lost, tl.trans(notes), FINE, of_system)
                of_given = product(lost, tl.trans(v), FINE, of_given)
                lost = tl.load(notes_in + VALUES + at, mask=here, other=0.0)
                of_system = product(fresh, tl.trans(lost), FINE, of_system)
                of_seen = product(coming, tl.trans(lost), FINE, of_seen)
        else:
            notes = v
            if WRITE:
                notes = v.to(tl.float32) * into[:, None]
            of_value = product(seen_back, coming, ROUGH)
            if KEEP == "features":
                of_value = product(k * remaining, tl.trans(of_page), ROUGH, of_value)
            else:
                of_value += dimmed(product(k, tl.trans(of_page), ROUGH), remaining, KEEP)
            of_seen = product(coming, tl.trans(notes), FINE, of_seen)
            writing = product(notes, of_page, ROUGH, writing)
            if WRITE:
                of_into += tl.sum(of_value * v.to(tl.float32), axis=1)
                of_value *= into[:, None]
            at = token * VALUES + (place[:, None] * (heads * VALUES) + column[None, :])
            tl.store(of_values + at, of_value.to(of_values.dtype.element_ty), mask=here)
        asking = product(coming, page, ROUGH, asking)

    if PAGE > VALUES:  # the same for the column in which keys are counted
        at = page_base + VALUES * FEATURES + feature
        key_sum = tl.load(pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        of_sum = tl.load(of_pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        asked = gate_of(of_mass + token, heads, inside, 0, CHUNK)
        once = tl.full((CHUNK,), 1.0, tl.float32)
        if WRITE and not ERASE:
            once = into
            of_into += tl.sum(seen_back.to(tl.float32) * asked[None, :], axis=1)
            of_into += overlap_with(of_sum, k, remaining, KEEP)
        of_seen += asked[:, None] * once[None, :]
        asking += asked[:, None] * key_sum[None, :]
        writing += once[:, None] * of_sum[None, :]
        if KEEP == "features":
            by_whole += key_sum * of_sum
        elif KEEP == "heads":
            by_whole += tl.sum(key_sum * of_sum)

    row_place, column_place = place[:, None], place[None, :]
    of_seen = tl.where(row_place >= column_place, of_seen, 0.0)
    kept, remaining = fades_of(
        program, kept_in, remaining_in, keep_base, keep_t, inside, KEEP, FEATURES, SIZE, CHUNK, FINE
    )
    of_q = dimmed(asking, kept, KEEP)
    of_k = dimmed(writing, remaining, KEEP)
    if KEEP == "features":
        by_later = of_q * q  # what is kept from the start until each token
        by_earlier = of_k * k  # … from each token until the end
    elif KEEP == "heads":
        by_later = tl.sum(of_q * q, axis=1)
        by_earlier = tl.sum(of_k * k, axis=1)
    if ERASE:
        of_into = tl.sum(tl.where(row_place == column_place, of_given, 0.0), axis=1)
        of_beta = tl.sum(tl.where(row_place == column_place, of_system, 0.0), axis=1)
        if WRITE:
            of_beta -= of_into * into  # what was erased, β times the recall
        else:
            of_beta -= of_into
        of_system = tl.where(row_place > column_place, -of_system, 0.0)
        erasing = -dimmed(erasing, kept, KEEP)
        by_recalling = tl.sum(erasing * k, axis=1)  # of β, from the recall, put together again
        erasing *= beta[:, None]
        of_k += erasing
        if KEEP == "features":
            by_later += erasing * k
        elif KEEP == "heads":
            by_later += by_recalling * beta
    if KEEP == "features":
        total = whole_of(program, kept_in, KEEP, FEATURES, SIZE, CHUNK)
        of_logs = (total * by_whole)[None, :] + product((row_place <= column_place).to(tl.float16), by_later, FINE)
        of_logs += product((row_place > column_place).to(tl.float16), by_earlier, FINE)
        own = tl.sum(tl.where(row_place == column_place, of_seen, 0.0), axis=1)[:, None]
        of_q += own * k
        of_k += own * q
        logs = logs_by_feature(keep_base, keep_t, inside, FEATURES, SIZE, CHUNK)
        for level in range(LEVELS):
            kept = kept_over(towards_middle(row_place, column_place, level), logs, FINE)
            across = across_middle(row_place, column_place, level)
            pairs = tl.where(across, of_seen, 0.0)
            dim_keys = k * kept
            by_query = product(pairs, dim_keys, FINE) * kept
            by_key = product(tl.trans(pairs), q * kept, FINE)
            if ERASE:  # rows of the later half are multiplied by β once the recall is put together
                pairs = tl.where(across, of_system, 0.0)
                by_key += product(pairs + tl.trans(pairs * beta[:, None]), dim_keys, FINE)
                later = later_half(place, level)
                by_key *= kept
                by_recalling += tl.where(later, tl.sum(by_key * k, axis=1), 0.0)
                by_key *= tl.where(later, beta, 1.0)[:, None]
            else:
                by_key *= kept
            of_q += by_query
            of_k += by_key
            back_from_middle = towards_middle(column_place, row_place, level).to(tl.float16)
            of_logs += product(back_from_middle, by_query * q + by_key * k, FINE)
    else:
        if KEEP == "heads":
            at = program.to(tl.int64) * (CHUNK * CHUNK)
            since = tl.load(between_in + at + (place[:, None] * CHUNK + place[None, :]))
            of_seen *= since
            pairs = of_seen * product(q, tl.trans(k), FINE)
        of_q += product(of_seen, k, ROUGH)
        of_k += product(tl.trans(of_seen), q, ROUGH)
        if ERASE:
            if KEEP == "heads":
                of_system *= since
            of_overlaps = of_system * product(k, tl.trans(k), FINE)
            by_recalling += tl.sum(of_overlaps, axis=1)
            of_system *= beta[:, None]
            of_k += product(of_system, k, ROUGH) + product(tl.trans(of_system), k, ROUGH)
            if KEEP == "heads":
                pairs += beta[:, None] * of_overlaps

    wide = tl.arange(0, WIDE)
    on_raw = inside[:, None] & (wide < WIDTH)[None, :]
    offsets = place[:, None] * (heads * WIDTH) + wide[None, :]
    found = back(of_q, q_base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, CHUNK)
    tl.store(of_queries + token * WIDTH + offsets, found.to(of_queries.dtype.element_ty), mask=on_raw)
    found = back(of_k, k_base, k_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, CHUNK)
    tl.store(of_keys + token * WIDTH + offsets, found.to(of_keys.dtype.element_ty), mask=on_raw)
    if ERASE:
        if (
            FINE == "split"
        ):  # what was erased is finer than the rounded recall, but not where next to nothing was erased
            of_beta = tl.where(tl.abs(beta) < LITTLE, by_recalling, of_beta / tl.where(beta == 0, 1.0, beta))
        else:
            of_beta = by_recalling
        of_beta *= slope_of(beta, LIMIT)
    if WRITE:
        of_into *= slope_of(into, LIMIT)
        if SHARED:
            of_beta += of_into
        else:
            tl.store(of_write + token + place * heads, of_into.to(of_write.dtype.element_ty), mask=inside)
    if ERASE:
        tl.store(of_erase + token + place * heads, of_beta.to(of_erase.dtype.element_ty), mask=inside)
    if KEEP == "features":
        offsets = place[:, None] * (heads * FEATURES) + feature[None, :]
        there = inside[:, None] & (feature[None, :] < FEATURES)
        tl.store(of_log_keep + token * FEATURES + offsets, of_logs.to(of_log_keep.dtype.element_ty), mask=there)
    elif KEEP == "heads":
        # of all pairs around a token, those that have it between them
        pairs = tl.where(row_place > column_place, pairs, 0.0)
        later = by_later + tl.sum(pairs, axis=1) - tl.sum(pairs, axis=0)
        found = tl.cumsum(later, axis=0, reverse=True) + before(by_earlier)
        found += whole_of(program, kept_in, KEEP, FEATURES, SIZE, CHUNK) * by_whole
        kind = tl.load(keep_base + place * keep_t, mask=inside, other=0.0).to(tl.float32)
        found = tl.where(kind == float("-inf"), 0.0, found)
        tl.store(of_log_keep + token + place * heads, found.to(of_log_keep.dtype.element_ty), mask=inside)


@triton.jit
def before(x):
    """The sum of all rows before each."""
    return tl.cumsum(x, axis=0) - x
