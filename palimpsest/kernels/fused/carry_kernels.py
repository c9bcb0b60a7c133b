"""The memory scan from chunk to chunk: `carry`, and the same for gradients, last chunk first, `carry_back`.

On chip a page is turned, columns first, and cut into bands of 16 columns, one for each warp (bands.py): page and notes
are then the left side of every product they are in, which on tensor cores is where results already lie, so that nothing
between two chunks passes from warp to warp. Where there are more warps than bands, a program has one band `ALONE`,
tiles are [m, n], and all warps share each product.

For backward, notes are saved as tokens of columns, and the page before each chunk as columns of features. To lay them
out so, each warp waits for shared memory eight times a chunk; of wide heads they are saved as they were multiplied
instead, and TOGETHER tells before how many chunks a page is saved.
"""

import triton
import triton.language as tl

from .bands import BAND, as_multiplied, columns_of, times
from .features import holding
from .tiles import (
    KEYS,
    KEYS_LEFT,
    QUERIES,
    fade_at,
    first_in_line,
    first_of,
    gate_of,
    load_tile,
    look,
    numbers_at,
    seen_of,
    split,
    split_into,
    tile_of,
    whole_of,
)


@triton.jit
def look_for_bands(
    base, step, inside, matrix,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
    ALONE: tl.constexpr,
):  # fmt: skip
    """The features of a chunk's tokens as [1, CHUNK, SIZE], unless a band is alone."""
    if LOOK[0] == "Identity" and LOOK[1] == "Unscaled":
        return tile_for_bands(base, step, inside, FEATURES, SIZE, CHUNK, ALONE)
    elif ALONE:
        return look(base, step, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)
    else:
        return look(base, step, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)[None, :, :]


@triton.jit
def tile_for_bands(base, step, inside, count, SIZE: tl.constexpr, CHUNK: tl.constexpr, ALONE: tl.constexpr):
    """Numbers as [1, CHUNK, SIZE]: read so from the start, they go from shared memory straight into products."""
    if ALONE:
        return tile_of(base, step, inside, count, SIZE, CHUNK)
    else:
        place, column = tl.arange(0, CHUNK)[None, :, None], tl.arange(0, SIZE)[None, None, :]
        return tl.load(base + (place * step + column), mask=inside[None, :, None] & (column < count), other=0.0)


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
def times_dimmed(
    left, tiles, index, ALONE: tl.constexpr, TURNED: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr, onto=None,
):  # fmt: skip
    """Bands times features that `prepare` dimmed, [CHUNK, SIZE], or their transpose."""
    base = tiles + index.to(tl.int64) * (split_into(PRECISION) * CHUNK * FEATURES)
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
    """What is kept of it until the end of a chunk."""
    if KEEP == "features":
        return page * whole_of(index, kept_in, KEEP, FEATURES, SIZE, CHUNK)[None, None, :]
    elif KEEP == "heads":
        return page * whole_of(index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
    else:
        return page


@triton.jit
def load_for_bands(
    tiles, index, ALONE: tl.constexpr, TURNED: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr
):
    """A stored tile as [1, CHUNK, CHUNK], unless a band is alone; without what bfloat16 lost of it."""
    HALVES: tl.constexpr = split_into(PRECISION)
    base = tiles + index.to(tl.int64) * (HALVES * CHUNK * CHUNK)
    one, other = tl.arange(0, CHUNK)[None, :, None], tl.arange(0, CHUNK)[None, None, :]
    if ALONE:
        return load_tile(tiles, index, tl.arange(0, CHUNK), TURNED, CHUNK, PRECISION)
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
        high, lost = split(bands)
        tl.store(base + offsets, as_tokens(high), mask=here)
        tl.store(base + VALUES + offsets, as_tokens(lost), mask=here)
    else:
        tl.store(base + offsets, as_tokens(bands.to(base.dtype.element_ty)), mask=here)


@triton.jit
def save_notes(notes_out, index, slice, notes, VALUES: tl.constexpr):
    """As they were multiplied: what bfloat16 keeps of a chunk's notes, and then what it loses."""
    COUNT: tl.constexpr = notes.shape[0] * notes.shape[1] * notes.shape[2]
    HALF: tl.constexpr = holding(VALUES) * notes.shape[2]
    at = notes_out + index.to(tl.int64) * (2 * HALF) + slice * COUNT + tl.arange(0, COUNT)
    high, lost = split(notes)
    tl.store(at, as_multiplied(high))
    tl.store(at + HALF, as_multiplied(lost))


@triton.jit
def save_bands(tiles, line, chunk, chunks, slice, bands, wanted, VALUES: tl.constexpr, TOGETHER: tl.constexpr):
    """A page, or what was read of it, of so many chunks, as it was multiplied, if it is wanted now."""
    COUNT: tl.constexpr = bands.shape[0] * bands.shape[1] * bands.shape[2]
    block = line * ((chunks + TOGETHER - 1) // TOGETHER) + chunk // TOGETHER
    at = tiles + block.to(tl.int64) * (holding(VALUES) * bands.shape[2]) + slice * COUNT + tl.arange(0, COUNT)
    tl.store(at, as_multiplied(bands.to(tiles.dtype.element_ty)), mask=wanted)


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
        return gate_of(base, s_t, place, place < length - chunk * CHUNK, LIMIT)
    else:
        return place


@triton.jit
def opened(index, gates, CHUNK: tl.constexpr):
    """A gate, for bands."""
    return numbers_at(index, gates, tl.arange(0, CHUNK), CHUNK)[None, None, :]


@triton.jit
def given_to(values, recall, index, erase_in, write_in, WRITE: tl.constexpr, ALONE: tl.constexpr, CHUNK: tl.constexpr):
    """What T is given: write · value − erase · recall; there may be no values."""
    erase = opened(index, erase_in, CHUNK)
    if values is None:
        return -erase * recall
    elif not WRITE:
        return with_values(-erase * recall, values, ALONE)
    elif write_in is None:
        return erase * with_values(-recall, values, ALONE)
    else:
        return opened(index, write_in, CHUNK) * with_values(tl.zeros_like(recall), values, ALONE) - erase * recall


@triton.jit
def with_values(bands, values, ALONE: tl.constexpr):
    """Both added up. Values come as they are multiplied, and are multiplied by one to get where bands are."""
    if ALONE:
        return bands + values
    else:
        place = tl.arange(0, values.shape[2])
        ones = (place[:, None] == place[None, :])[None, :, :].to(values.dtype)
        return tl.dot(values, tl.broadcast_to(ones, (values.shape[0], values.shape[2], values.shape[2])), acc=bands)


@triton.jit
def nothing(PRECISION: tl.constexpr):
    """The square of a page that is less than what products lose of one."""
    if PRECISION == "split":
        return 2.0**-32
    else:
        return 2.0**-48


@triton.jit
def carry_kernel(
    queries, keys, values, write, matrix, solved, erase_in, write_in, seen_in, kept_in, remaining_in, dimmed_in, start,
    reads, mass, notes_out, pages, last, stops,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, write_b, write_t, write_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, LIMIT: tl.constexpr,
    STARTED: tl.constexpr, READS: tl.constexpr, READY: tl.constexpr, SAVES: tl.constexpr, TOGETHER: tl.constexpr,
    STAGES: tl.constexpr, ALONE: tl.constexpr, ROUND: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """`parts` pieces of `share` chunks each start from pages of their own, `start` [rows · heads, parts, k, v].

    Where nothing is read, only the first starts from the page that is given, `start` [rows · heads, k, v], and the last
    is left out; where one ends goes to `last` [rows · heads, parts, k, v], as what the next one starts from.

    Where there are no values, all but the first start from the columns of the identity: the page they end as, `last`
    [rows · heads, parts - 1, k, k], is what the piece does to the page it is given, and what a query reads,
    [rows, tokens, heads, k], is what it asks of that page; where pages are saved as they were multiplied, so is that.
    Every ROUND chunks it is looked whether anything is left of them. If not, the piece ends there, with nothing, and
    `stops` [programs] tells after how many chunks.

    What backward needs is saved if asked for, before the page is changed: there is no room for two of them.
    """
    TURNING: tl.constexpr = values is None
    BANDS: tl.constexpr = COLUMNS // BAND
    HALVES: tl.constexpr = split_into(FINE)
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    FULL: tl.constexpr = PAGE % COLUMNS == 0 and PAGE == VALUES
    LEFT_OUT: tl.constexpr = (0 if READS else 1) + (1 if TURNING else 0)
    program, pieces = tl.program_id(0), parts - LEFT_OUT
    slice, piece, line = program % SLICES, (program // SLICES) % pieces, program // (SLICES * pieces)
    if TURNING:
        piece += 1
    row, head = line // heads, line % heads
    place, feature = tl.arange(0, CHUNK), tl.arange(0, SIZE)[None, None, :]
    column, across = columns_of(BANDS)[:, :, None], tl.arange(0, COLUMNS)
    on_page, on_saved = feature * PAGE + column, column * FEATURES + feature
    there = on_slice(feature, column, slice, FEATURES, PAGE, COLUMNS, FULL)
    page = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    if TURNING:
        page += tl.where((feature == slice * COLUMNS + column) & there, 1.0, 0.0)
    elif STARTED:
        at = line * parts + piece if READS else line
        at = at.to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
        page += tl.load(start + at + on_page, mask=there if READS else there & (piece == 0), other=0.0)
    left = tl.minimum(share, chunks - piece * share)
    for turn in tl.range(tl.cdiv(share, ROUND) if TURNING else 1):
        done = turn * ROUND
        for step in tl.range(tl.minimum(left - done, ROUND) if TURNING else left, num_stages=STAGES):
            chunk = piece * share + done + step
            first, index = chunk * CHUNK, line * chunks + chunk
            inside = place < length - first
            ALONG: tl.constexpr = WRITE and not ERASE
            into = gate_at(chunk, write, row, head, length, write_b, write_t, write_h, ALONG, LIMIT, CHUNK)
            kept = fade_at(index, kept_in, place, KEEP, CHUNK)
            remaining = fade_at(index, remaining_in, place, KEEP, CHUNK)
            if TURNING:
                v = None
            else:
                v = tokens_at(chunk, values, row, head, slice, length, v_b, v_t, v_h, VALUES, BANDS, CHUNK, FULL)
            k = look_for_bands(
                first_of(keys, row, head, first, k_b, k_t, k_h), k_t, inside, matrix,
                LOOK, WIDTH, FEATURES, SIZE, CHUNK, ALONE,
            )  # fmt: skip
            if ERASE:
                recall = asked_of_page(page, k, dimmed_in, index * 3 + KEYS, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE)
                given = given_to(v, faded(recall, kept, KEEP), index, erase_in, write_in, WRITE, ALONE, CHUNK)
                notes = times_tile(given, solved, index, ALONE, True, CHUNK, FINE)
                notes = with_count(notes, 1.0, slice, VALUES, PAGE)  # in full, as nothing of it is erased
            elif TURNING:
                notes = tl.zeros((BANDS, BAND, CHUNK), k.dtype)
            else:
                notes = with_count(v, 1.0, slice, VALUES, PAGE).to(v.dtype)
                if WRITE:
                    notes = notes.to(tl.float32) * into[None, None, :]
            if READS:
                q = look_for_bands(
                    first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix,
                    LOOK, WIDTH, FEATURES, SIZE, CHUNK, ALONE,
                )  # fmt: skip
                # dimmed queries are no bfloat16; and what turns a page is rounded once it is found, and not before
                ASKING: tl.constexpr = FINE if KEEP == "features" or TURNING else ROUGH
                found = asked_of_page(
                    page, q, dimmed_in, index * 3 + QUERIES, ALONE, KEEP, FEATURES, SIZE, CHUNK, ASKING
                )
                found = faded(found, kept, KEEP)
                if READY:
                    SEEING: tl.constexpr = ROUGH if TURNING else FINE
                    found = times(notes, load_for_bands(seen_in, index, ALONE, True, CHUNK, FINE), SEEING, found)
                elif ALONE:
                    found = times(notes, tl.trans(seen_of(q, k, CHUNK, FINE)), ROUGH, found)
                else:
                    found = times(notes, tl.trans(seen_of(q, k, CHUNK, FINE))[None, :, :], ROUGH, found)
            token = (row * length + first).to(tl.int64) * heads + head
            here = on_tokens(inside, across, slice, VALUES, COLUMNS, FULL)
            if SAVES and TOGETHER > 0:
                save_notes(notes_out, index, slice, -notes, VALUES)
                save_bands(pages, line, chunk, chunks, slice, page, chunk % TOGETHER == 0, VALUES, TOGETHER)
            elif SAVES:
                if ERASE:
                    base = notes_out + token * (HALVES * VALUES) + slice * COLUMNS
                    offsets = place[:, None] * (heads * HALVES * VALUES) + across[None, :]
                    store_for_products(base, offsets, -notes, here, VALUES, FINE)
                base = pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
                tl.store(base + on_saved, page.to(pages.dtype.element_ty), mask=there)
            page = left_of_page(page, index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
            page = written(
                page, faded(notes, remaining, KEEP), k, dimmed_in, index * 3 + KEYS_LEFT,
                ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE,
            )  # fmt: skip
            if READS and TURNING and TOGETHER > 0:
                save_bands(reads, line, chunk, chunks, slice, found, True, VALUES, 1)
            elif READS:
                base = first_in_line(reads, row, head, first, length, heads, VALUES) + slice * COLUMNS
                offsets = place[:, None] * (heads * VALUES) + across[None, :]
                tl.store(base + offsets, as_tokens(found).to(reads.dtype.element_ty), mask=here)
                if PAGE > VALUES:
                    counting = column == VALUES - slice * COLUMNS
                    overlap = tl.sum(tl.sum(tl.where(counting, found, 0.0), axis=0), axis=0)
                    tl.store(mass + token + place * heads, overlap, mask=inside & (slice == SLICES - 1))
        if TURNING:
            gone = tl.sum(page * page) <= nothing(FINE)
            page = tl.where(gone, 0.0, page)
            left = tl.where(gone, tl.minimum(left, done + ROUND), left)
    if TURNING and READS:
        tl.store(stops + program, left)
    at = line
    if TURNING:
        at = line * (parts - 1) + piece - 1
    elif READS:
        there = there & (piece == parts - 1)
    else:
        at = line * parts + piece + 1
    tl.store(last + at.to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS + on_page, page, mask=there)


@triton.jit
def carry_back_kernel(
    queries, keys, matrix, solved, erase_in, write_in, seen_in, kept_in, remaining_in, dimmed_in,
    of_reads, of_mass, of_last, of_fresh, of_values, of_pages, of_start,
    q_b, q_t, q_h, k_b, k_t, k_h, r_b, r_t, r_h,
    length, heads, chunks, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, ENDED: tl.constexpr, TOGETHER: tl.constexpr,
    STAGES: tl.constexpr, ALONE: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """`of_last` [rows · heads, parts, k, v] is where each piece begins, at its end; `of_start` is where it ends.

    Where gradients of values tell those of what T was given, there is no `of_fresh`.
    """
    BANDS: tl.constexpr = COLUMNS // BAND
    HALVES: tl.constexpr = split_into(FINE)
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    FULL: tl.constexpr = PAGE % COLUMNS == 0 and PAGE == VALUES
    program = tl.program_id(0)
    slice, piece, line = program % SLICES, (program // SLICES) % parts, program // (SLICES * parts)
    row, head = line // heads, line % heads
    place, feature = tl.arange(0, CHUNK), tl.arange(0, SIZE)[None, None, :]
    column, across = columns_of(BANDS)[:, :, None], tl.arange(0, COLUMNS)
    on_page, on_saved = feature * PAGE + column, column * FEATURES + feature
    there = on_slice(feature, column, slice, FEATURES, PAGE, COLUMNS, FULL)
    page = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    if ENDED:
        at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
        page += tl.load(of_last + at + on_page, mask=there, other=0.0)
    end = tl.minimum(piece * share + share, chunks)
    for step in tl.range(end - piece * share, num_stages=STAGES):
        chunk = end - 1 - step
        first, index = chunk * CHUNK, line * chunks + chunk
        inside = place < length - first
        if TOGETHER > 0:
            wanted = (chunk % TOGETHER == TOGETHER - 1) | (chunk == chunks - 1)
            save_bands(of_pages, line, chunk, chunks, slice, page, wanted, VALUES, TOGETHER)
        else:
            base = of_pages + index.to(tl.int64) * (FEATURES * PAGE) + slice * (COLUMNS * FEATURES)
            tl.store(base + on_saved, page.to(of_pages.dtype.element_ty), mask=there)
        asked = gate_at(chunk, of_mass, row, head, length, length * heads, heads, 1, PAGE > VALUES, 0, CHUNK)
        kept, remaining = fade_at(index, kept_in, place, KEEP, CHUNK), fade_at(index, remaining_in, place, KEEP, CHUNK)
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
            erased = opened(index, erase_in, CHUNK) * fresh
            if not WRITE:
                of_value = fresh
            elif write_in is None:
                of_value = erased
            else:
                of_value = opened(index, write_in, CHUNK) * fresh
        q = look_for_bands(
            first_of(queries, row, head, first, q_b, q_t, q_h), q_t, inside, matrix,
            LOOK, WIDTH, FEATURES, SIZE, CHUNK, ALONE,
        )  # fmt: skip
        page = left_of_page(page, index, kept_in, KEEP, FEATURES, SIZE, CHUNK)
        page = written(
            page, faded(coming, kept, KEEP), q, dimmed_in, index * 3 + QUERIES, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE
        )
        if ERASE:
            erased = -faded(erased, kept, KEEP)
            page = written(page, erased, k, dimmed_in, index * 3 + KEYS, ALONE, KEEP, FEATURES, SIZE, CHUNK, FINE)
            token = (row * length + first).to(tl.int64) * heads + head
            here = on_tokens(inside, across, slice, VALUES, COLUMNS, FULL)
            if of_fresh is not None:
                base = of_fresh + token * (HALVES * VALUES) + slice * COLUMNS
                offsets = place[:, None] * (heads * HALVES * VALUES) + across[None, :]
                store_for_products(base, offsets, fresh, here, VALUES, FINE)
            base = first_in_line(of_values, row, head, first, length, heads, VALUES) + slice * COLUMNS
            offsets = place[:, None] * (heads * VALUES) + across[None, :]
            tl.store(base + offsets, as_tokens(of_value.to(of_values.dtype.element_ty)), mask=here)
    at = (line * parts + piece).to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
    tl.store(of_start + at + on_page, page, mask=there)
