"""The gradients of a memory scan that are not carried from chunk to chunk, chunk by chunk."""

import triton
import triton.language as tl

from .bands import WOVEN, in_order, weave, where_multiplied, woven
from .block_kernels import woven_page
from .chunk import across_middle, between_at, diagonal, kept_over, later_half, towards_middle
from .features import holding, in_shares
from .prepare_kernels import dimmed, logs_by_feature, overlap_with
from .products import product
from .tiles import (
    LITTLE,
    NOTHING,
    back,
    fade_at,
    first_of,
    gate_of,
    load_tile,
    look,
    seen_of,
    slope_of,
    split_into,
    tile_at,
    tile_of,
    whole_of,
)


@triton.jit
def fades_of(
    program, kept_in, remaining_in, keep_base, keep_t, place, inside, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What is kept since the chunk's start and until its end; that of features is found again."""
    if KEEP == "features":
        logs = logs_by_feature(keep_base, keep_t, inside, FEATURES, SIZE, CHUNK)
        kept = kept_over(place[:, None] >= place[None, :], logs, PRECISION)
        return kept, kept_over(place[:, None] < place[None, :], logs, PRECISION)
    else:
        return fade_at(program, kept_in, place, KEEP, CHUNK), fade_at(program, remaining_in, place, KEEP, CHUNK)


@triton.jit
def by_page_of(
    pages, of_pages, FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """What keeping each feature of a page is worth: its overlap with the gradient of the page after it, [SIZE]."""
    feature = tl.arange(0, SIZE)[None, :]
    found = tl.zeros((SIZE,), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)[:, None]
        at, there = column * FEATURES + feature, (feature < FEATURES) & (column < VALUES)
        page = tl.load(pages + at, mask=there, other=0.0).to(tl.float32)
        found += tl.sum(page * tl.load(of_pages + at, mask=there, other=0.0).to(tl.float32), axis=0)
    return found


@triton.jit
def looked_at(
    features_in, base, step, token, heads, place, inside, matrix, LOOKED: tl.constexpr, LOOK: tl.constexpr,
    WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """The features of a chunk's tokens, as `prepare` wrote them down, or made again; in the order of saved pages."""
    if LOOKED:
        base, step = features_in + token * FEATURES, heads * FEATURES
    if SLICE > 0:
        return tile_at(base, step, place, woven(tl.arange(0, SIZE)), inside, FEATURES)
    elif LOOKED:
        return tile_of(base, step, inside, FEATURES, SIZE, CHUNK)
    else:
        return look(base, step, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, CHUNK)


@triton.jit
def worth_of_values(
    of_fresh, values, step, v_step, inside, VALUES: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The overlap of each token's value with the gradient of what T was given for it, [CHUNK]."""
    found, place = tl.zeros((CHUNK, CHUNK), tl.float32), tl.arange(0, CHUNK)[:, None]
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)[None, :]
        here = inside[:, None] & (column < VALUES)
        fresh = tl.load(of_fresh + (place * step + column), mask=here, other=0.0)
        v = tl.load(values + (place * v_step + column), mask=here, other=0.0)
        found = product(fresh, tl.trans(v), PRECISION, found)
        if PRECISION == "split":
            lost = tl.load(of_fresh + VALUES + (place * step + column), mask=here, other=0.0)
            found = product(lost, tl.trans(v), PRECISION, found)
    return diagonal(found)


@triton.jit
def page_at(
    pages, start, FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """Some columns of a saved page, [COLUMNS, SIZE], in order or, where they were saved in slices, woven."""
    if SLICE > 0:
        return woven_page(pages, start, SIZE, COLUMNS, SLICE)
    else:
        column, feature = start + tl.arange(0, COLUMNS)[:, None], tl.arange(0, SIZE)[None, :]
        return tl.load(pages + (column * FEATURES + feature), mask=(feature < FEATURES) & (column < VALUES), other=0.0)


@triton.jit
def notes_at(
    notes, token, program, heads, place, inside, start, VALUES: tl.constexpr, COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of the notes of a chunk, which is this one of all and begins with a token.

    As [CHUNK, COLUMNS], as [COLUMNS, CHUNK], and what bfloat16 lost of these, if they are split. Where they lie as they
    were multiplied, a tile for both sides of products would not be loaded ahead, so that there are two.
    """
    column, number = start + tl.arange(0, COLUMNS), tl.arange(0, CHUNK)
    if SLICE > 0:
        base = notes + program.to(tl.int64) * (2 * CHUNK * holding(VALUES))
        found = tl.load(base + where_multiplied(column[None, :], number[:, None], SLICE, SLICE * WOVEN, 0))
        at = base + where_multiplied(column[:, None], number[None, :], SLICE, SLICE * WOVEN, 0)
        return found, tl.load(at), tl.load(at + CHUNK * holding(VALUES))
    else:
        NOTE: tl.constexpr = split_into(PRECISION) * VALUES
        found = tile_at(notes + token * NOTE, heads * NOTE, place, column, inside, VALUES)
        lost = found
        if PRECISION == "split":
            lost = tile_at(notes + token * NOTE + VALUES, heads * NOTE, place, column, inside, VALUES)
        return found, tl.trans(found), tl.trans(lost)


@triton.jit
def back_through(tiles, index, x, place, CHUNK: tl.constexpr, PRECISION: tl.constexpr, onto=None):
    """The transpose of a stored tile times [CHUNK, n]."""
    found = product(load_tile(tiles, index, place, True, CHUNK, PRECISION), x, PRECISION, onto)
    if PRECISION == "split":
        found = product(load_tile(tiles + CHUNK * CHUNK, index, place, True, CHUNK, PRECISION), x, "half", found)
    return found


@triton.jit
def recalled_by(
    program, k, logs_in, keep_base, keep_t, place, inside, KEEP: tl.constexpr, FEATURES: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """How much of each note before it a key recalls, [CHUNK, CHUNK]."""
    row, column = place[:, None], place[None, :]
    if KEEP == "features":
        logs = logs_by_feature(keep_base, keep_t, inside, FEATURES, SIZE, CHUNK)
        found = tl.zeros((CHUNK, CHUNK), tl.float32)
        for level in range(LEVELS):
            keys = in_shares(k * kept_over(towards_middle(row, column, level), logs, PRECISION), 32)
            found += tl.where(across_middle(row, column, level), seen_of(keys, keys, CHUNK, PRECISION), 0.0)
    else:
        found = product(k, tl.trans(k), PRECISION)
        if KEEP == "heads":
            found *= between_at(logs_in, program, place, CHUNK)
    return tl.where(row > column, found, 0.0)


@triton.jit
def worth_of_gate(
    program, token, k, recalled, kept, remaining, solved, seen_in, notes, pages, of_pages, of_reads, values,
    heads, r_step, v_step, place, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    COLUMNS: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """What one gate that erases and writes is worth, [CHUNK].

    That is the overlap of value − recall with the gradient of what T was given, both found again.
    """
    found = tl.zeros((CHUNK,), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=1):
        page = tl.trans(page_at(pages, start, FEATURES, SIZE, VALUES, COLUMNS, 0))
        of_page = tl.trans(page_at(of_pages, start, FEATURES, SIZE, VALUES, COLUMNS, 0))
        note, _, lost = notes_at(
            notes, token, program, heads, place, inside, start, VALUES, COLUMNS, CHUNK, 0, FINE
        )  # fmt: skip
        column = start + tl.arange(0, COLUMNS)
        coming = tile_at(of_reads, r_step, place, column, inside, VALUES)
        v = tile_at(values, v_step, place, column, inside, VALUES).to(tl.float32)
        if KEEP == "features":
            recall, of_notes = product(k * kept, page, FINE), product(k * remaining, of_page, FINE)
        else:
            recall = dimmed(product(k, page, ROUGH), kept, KEEP)
            of_notes = dimmed(product(k, of_page, ROUGH), remaining, KEEP)
        v = product(recalled, tl.trans(lost), ROUGH, product(recalled, note, FINE, v))
        of_notes = back_through(seen_in, program, coming, place, CHUNK, FINE, of_notes)
        found += tl.sum(back_through(solved, program, of_notes, place, CHUNK, FINE) * (v - recall), axis=1)
    return found


@triton.jit
def gradients_kernel(
    queries, keys, values, log_keep, erase, write, matrix,
    queries_in, keys_in, solved, seen_in, logs_in, kept_in, remaining_in,
    notes_in, pages, of_reads, of_mass, of_fresh, of_pages,
    of_queries, of_keys, of_values, of_log_keep, of_erase, of_write,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, LEVELS: tl.constexpr,
    KEEP: tl.constexpr, ERASE: tl.constexpr, WRITE: tl.constexpr, SHARED: tl.constexpr, LIMIT: tl.constexpr,
    LOOKED: tl.constexpr, READY: tl.constexpr, STAGES: tl.constexpr, SLICE: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of.

    One gate β erases and writes, and gradients of values are β times those of what T was given: if these were not
    saved, they stand for them, and what is found with them has been multiplied by β.

    Where notes and pages were saved as they were multiplied, in slices of SLICE columns, tokens and features are woven.
    """
    OPENED: tl.constexpr = ERASE and of_fresh is None
    JOINED: tl.constexpr = OPENED and KEEP == "all"
    NOTE: tl.constexpr = split_into(FINE) * VALUES
    program = tl.program_id(0)
    chunk, head, row = program % chunks, (program // chunks) % heads, program // (chunks * heads)
    place, feature, first = tl.arange(0, CHUNK), tl.arange(0, SIZE), chunk * CHUNK
    if SLICE > 0:
        place = woven(place)
    inside = place < length - first
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    v_base = first_of(values, row, head, first, v_b, v_t, v_h)
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    keep_base = log_keep
    if KEEP != "all":
        keep_base = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h)
    page_base = program.to(tl.int64) * (holding(VALUES) * SIZE if SLICE > 0 else FEATURES * PAGE)
    if KEEP == "features":  # before all else, in passing: pages wanted here too would be slow to come to products
        by_whole = by_page_of(pages + page_base, of_pages + page_base, FEATURES, SIZE, VALUES, COLUMNS, STAGES)
    elif KEEP == "heads":
        by_page = tl.zeros((COLUMNS, COLUMNS), tl.float32)  # its diagonal: what keeping the page is worth
    # those that are read, not made, come late where they would only be in the loop's way
    LATE: tl.constexpr = ERASE and KEEP == "all" and SIZE > 32 and (LOOKED or LOOK[0] == "Identity")
    if not LATE:
        q = looked_at(
            queries_in, q_base, q_t, token, heads, place, inside, matrix,
            LOOKED, LOOK, WIDTH, FEATURES, SIZE, CHUNK, SLICE,
        )  # fmt: skip
        k = looked_at(
            keys_in, k_base, k_t, token, heads, place, inside, matrix,
            LOOKED, LOOK, WIDTH, FEATURES, SIZE, CHUNK, SLICE,
        )  # fmt: skip
    if WRITE:
        base = first_of(write, row, head, first, write_b, write_t, write_h)
        into = gate_of(base, write_t, place, inside, LIMIT)
    if ERASE:
        base = first_of(erase, row, head, first, erase_b, erase_t, erase_h)
        beta = gate_of(base, erase_t, place, inside, LIMIT)
        little = tl.abs(beta) < (NOTHING if OPENED else LITTLE)
        some = SLICE == 0  # of others, `little_gates` finds what is asked for here
        if FINE == "split" and SLICE == 0:  # notes tell what gates are worth, unless some erase next to nothing
            some = tl.max((little & inside).to(tl.int32), axis=0) > 0
        if OPENED:
            given, GIVEN, erased = of_values, VALUES, tl.full((CHUNK,), 1.0, tl.float32)
        else:
            given, GIVEN, erased = of_fresh, NOTE, beta
            of_into = worth_of_values(
                given + token * GIVEN, v_base, heads * GIVEN, v_t, inside, VALUES, COLUMNS, CHUNK, STAGES, FINE
            )
        of_system = tl.zeros((CHUNK, CHUNK), tl.float32)  # its diagonal: what notes are worth
        if not JOINED:
            erasing = tl.zeros((CHUNK, SIZE), tl.float32)
    else:
        _, remaining = fades_of(
            program, kept_in, remaining_in, keep_base, keep_t, place, inside, KEEP, FEATURES, SIZE, CHUNK, FINE
        )
        of_into = tl.zeros((CHUNK,), tl.float32)
    if not ERASE and READY:
        seen_back = load_tile(seen_in, program, place, True, CHUNK, FINE)
    elif not ERASE:
        seen_back = tl.trans(seen_of(q, k, CHUNK, FINE))
    asking = tl.zeros((CHUNK, SIZE), tl.float32)
    writing = tl.zeros((CHUNK, SIZE), tl.float32)
    of_seen = tl.zeros((CHUNK, CHUNK), tl.float32)

    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)
        here = inside[:, None] & (column < VALUES)[None, :]
        coming = tl.load(r_base + (place[:, None] * r_t + column[None, :]), mask=here, other=0.0)
        page = page_at(pages + page_base, start, FEATURES, SIZE, VALUES, COLUMNS, SLICE)
        of_page = page_at(of_pages + page_base, start, FEATURES, SIZE, VALUES, COLUMNS, SLICE)
        if KEEP == "heads":
            by_page = product(page, tl.trans(of_page), ROUGH, by_page)
        if ERASE:
            on_given = token * GIVEN + (place[:, None] * (heads * GIVEN) + column[None, :])
            notes, turned, lost = notes_at(
                notes_in, token, program, heads, place, inside, start, VALUES, COLUMNS, CHUNK, SLICE, FINE
            )
            fresh = tl.load(given + on_given, mask=here, other=0.0)
            of_system = product(fresh, turned, FINE, of_system)
            of_seen = product(coming, turned, FINE, of_seen)
            if JOINED:  # of which both take away
                writing = product(fresh, page, ROUGH, writing)
            else:
                erasing = product(fresh, page, ROUGH, erasing)
            writing = product(notes, of_page, ROUGH, writing)
            if FINE == "split":
                of_system = product(fresh, lost, FINE, of_system)
                of_seen = product(coming, lost, FINE, of_seen)
            if FINE == "split" and not OPENED:
                lost = tl.load(given + VALUES + on_given, mask=here, other=0.0)
                of_system = product(lost, turned, FINE, of_system)
        else:
            v = tl.load(v_base + (place[:, None] * v_t + column[None, :]), mask=here, other=0.0)
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

    if ERASE:  # notes are saved with the other sign
        of_seen, writing = -of_seen, -writing
    if KEEP == "heads":
        by_whole = tl.sum(diagonal(by_page), axis=0)
    if PAGE > VALUES:  # the same for the column in which keys are counted
        at = page_base + VALUES * FEATURES + feature
        key_sum = tl.load(pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        of_sum = tl.load(of_pages + at, mask=feature < FEATURES, other=0.0).to(tl.float32)
        asked = gate_of(of_mass + token, heads, place, inside, 0)
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

    if LATE:
        q = looked_at(
            queries_in, q_base, q_t, token, heads, place, inside, matrix,
            LOOKED, LOOK, WIDTH, FEATURES, SIZE, CHUNK, SLICE,
        )  # fmt: skip
        k = looked_at(
            keys_in, k_base, k_t, token, heads, place, inside, matrix,
            LOOKED, LOOK, WIDTH, FEATURES, SIZE, CHUNK, SLICE,
        )  # fmt: skip
    row_place, column_place = place[:, None], place[None, :]
    of_seen = tl.where(row_place >= column_place, of_seen, 0.0)
    kept, remaining = fades_of(
        program, kept_in, remaining_in, keep_base, keep_t, place, inside, KEEP, FEATURES, SIZE, CHUNK, FINE
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
        noted = -diagonal(of_system)
        of_system = tl.where(row_place > column_place, of_system, 0.0)
        by_recalling = tl.zeros((CHUNK,), tl.float32)  # of β, from the recall, put together again
        if not JOINED:
            erasing = -dimmed(erasing, kept, KEEP)
            if KEEP != "all":
                by_recalling = tl.sum(erasing * k, axis=1)
            elif some:
                by_recalling = tl.sum(erasing * k, axis=1) + tl.sum(of_system * product(k, tl.trans(k), FINE), axis=1)
            erasing *= erased[:, None]
            of_k += erasing
        if KEEP == "features":
            by_later += erasing * k
        elif KEEP == "heads":
            by_later += by_recalling * erased
    if KEEP == "features":
        total = whole_of(program, kept_in, KEEP, FEATURES, SIZE, CHUNK)
        of_logs = (total * by_whole)[None, :] + product((row_place <= column_place).to(tl.float16), by_later, FINE)
        of_logs += product((row_place > column_place).to(tl.float16), by_earlier, FINE)
        own = diagonal(of_seen)[:, None]
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
                by_key += product(pairs + tl.trans(pairs * erased[:, None]), dim_keys, FINE)
                later = later_half(place, level)
                by_key *= kept
                by_recalling += tl.where(later, tl.sum(by_key * k, axis=1), 0.0)
                by_key *= tl.where(later, erased, 1.0)[:, None]
            else:
                by_key *= kept
            of_q += by_query
            of_k += by_key
            back_from_middle = towards_middle(column_place, row_place, level).to(tl.float16)
            of_logs += product(back_from_middle, by_query * q + by_key * k, FINE)
    else:
        if KEEP == "heads":
            since = between_at(logs_in, program, place, CHUNK)
            of_seen *= since
            pairs = of_seen * product(q, tl.trans(k), FINE)
        of_q += product(of_seen, k, ROUGH)
        of_k += product(tl.trans(of_seen), q, FINE)
        if ERASE:
            if KEEP == "heads":
                of_system *= since
                of_overlaps = of_system * product(k, tl.trans(k), FINE)
                by_recalling += tl.sum(of_overlaps, axis=1)
                pairs += erased[:, None] * of_overlaps
            of_system *= erased[:, None]
            of_k += product(of_system, k, ROUGH) + product(tl.trans(of_system), k, ROUGH)

    wide = tl.arange(0, WIDE)
    on_raw = inside[:, None] & (wide < WIDTH)[None, :]
    offsets = place[:, None] * (heads * WIDTH) + wide[None, :]
    if SLICE > 0:
        of_q, of_k = weave(of_q), weave(of_k)
    found = back(of_q, q_base, q_t, place, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, ERASE)
    tl.store(of_queries + token * WIDTH + offsets, found.to(of_queries.dtype.element_ty), mask=on_raw)
    found = back(of_k, k_base, k_t, place, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, ERASE)
    tl.store(of_keys + token * WIDTH + offsets, found.to(of_keys.dtype.element_ty), mask=on_raw)
    if KEEP == "features":
        offsets = place[:, None] * (heads * FEATURES) + feature[None, :]
        there = inside[:, None] & (feature[None, :] < FEATURES)
        tl.store(of_log_keep + token * FEATURES + offsets, of_logs.to(of_log_keep.dtype.element_ty), mask=there)
    elif KEEP == "heads":
        # of all pairs around a token, those that have it between them
        pairs = tl.where(row_place > column_place, pairs, 0.0)
        later = by_later + tl.sum(pairs, axis=1) - tl.sum(pairs, axis=0)
        found = from_each(later, SLICE) + before(by_earlier, SLICE)
        found += whole_of(program, kept_in, KEEP, FEATURES, SIZE, CHUNK) * by_whole
        kind = tl.load(keep_base + place * keep_t, mask=inside, other=0.0).to(tl.float32)
        found = tl.where(kind == float("-inf"), 0.0, found)
        tl.store(of_log_keep + token + place * heads, found.to(of_log_keep.dtype.element_ty), mask=inside)
    if ERASE:
        if OPENED:
            of_beta = noted / tl.where(little, 1.0, beta * beta)
            if some:
                k = looked_at(
                    keys_in, k_base, k_t, token, heads, place, inside, matrix,
                    LOOKED, LOOK, WIDTH, FEATURES, SIZE, CHUNK, SLICE,
                )  # fmt: skip
                recalled = recalled_by(
                    program, k, logs_in, keep_base, keep_t, place, inside, KEEP, FEATURES, SIZE, CHUNK, LEVELS, FINE
                )
                kept, remaining = fades_of(
                    program, kept_in, remaining_in, keep_base, keep_t, place, inside, KEEP, FEATURES, SIZE, CHUNK, FINE
                )
                again = worth_of_gate(
                    program, token, k, recalled, kept, remaining, solved, seen_in, notes_in,
                    pages + page_base, of_pages + page_base, r_base, v_base, heads, r_t, v_t, place, inside,
                    FEATURES, SIZE, VALUES, COLUMNS, CHUNK, KEEP, FINE, ROUGH,
                )  # fmt: skip
                of_beta = tl.where(little, again, of_beta)
        else:
            of_beta = by_recalling + of_into if SHARED else by_recalling
            if FINE == "split":  # notes are finer than the rounded recall, but not where next to nothing was erased
                worth = noted - of_into * into if WRITE else noted - of_into
                of_beta = tl.where(little, of_beta, worth / tl.where(little, 1.0, beta))
        of_beta *= slope_of(beta, LIMIT)
        tl.store(of_erase + token + place * heads, of_beta.to(of_erase.dtype.element_ty), mask=inside)
    if WRITE and not SHARED:
        of_into *= slope_of(into, LIMIT)
        tl.store(of_write + token + place * heads, of_into.to(of_write.dtype.element_ty), mask=inside)


@triton.jit
def from_each(x, SLICE: tl.constexpr):
    """The sum of all tokens from each on."""
    if SLICE > 0:
        return in_order(tl.cumsum(in_order(x), axis=0, reverse=True))
    else:
        return tl.cumsum(x, axis=0, reverse=True)


@triton.jit
def before(x, SLICE: tl.constexpr):
    """The sum of all tokens before each."""
    if SLICE > 0:
        x = in_order(x)
        return in_order(tl.cumsum(x, axis=0) - x)
    else:
        return tl.cumsum(x, axis=0) - x
