"""The gradients of queries, keys and gates, for a block of two chunks at a time: `gradients` of wide heads.

The formulas know nothing of chunks. With S the page before a block, dS its gradient after it, n the notes, o the
gradient of reads and dv that of values (which is β times the gradient of what T was given), where all is kept:

    of q_i = o_i S + Σ_{j ≤ i} (o_i · n_j) k_j
    of k_j = n_j dS − dv_j S + Σ_{i ≥ j} (o_i · n_j) q_i − Σ_{i > j} (dv_i · n_j) k_i − Σ_{i < j} (dv_j · n_i) k_i
    of β_j = (dv_j · n_j) / β_j²

So pages need not be saved for every chunk; and four warps with 16 tokens each (bands.py) sum over what belongs to a
token without asking each other. This is for one gate that erases and writes, bfloat16, and features that are ready or
made one by one; everything else is for `gradients` (scan_kernels.py). Notes and pages lie as `carry` and `carry_back`
multiplied them, and notes have the other sign: tokens and features are in woven order here, until they are stored.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from .bands import BAND, WOVEN, columns_of, times, weave, where_multiplied, woven
from .features import holding, raw_gradient
from .tiles import LITTLE, first_of, slope_of


@triton.jit
def page_at(base, start, SIZE: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """Some columns of a page, for bands: [1, COLUMNS, SIZE]."""
    column, feature = start + tl.arange(0, COLUMNS)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    return tl.load(base + where_multiplied(column, feature, SLICE, SLICE * SIZE, SLICE * WOVEN))


@triton.jit
def on_notes(column, token, VALUES: tl.constexpr, SLICE: tl.constexpr):
    """Where in a block's notes lies what bfloat16 keeps of a column's token, by its woven place."""
    return where_multiplied(column, token, SLICE, SLICE * WOVEN, 2 * WOVEN * holding(VALUES))


@triton.jit
def notes_at(
    base, start, there, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr
):
    """Some columns of a block's notes, for bands: [1, COLUMNS, BLOCK], and what bfloat16 lost of them."""
    column, token = start + tl.arange(0, COLUMNS)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    at = base + on_notes(column, token, VALUES, SLICE)
    notes = tl.load(at, mask=there[None, None, :], other=0.0)
    return notes, tl.load(at + WOVEN * holding(VALUES), mask=there[None, None, :], other=0.0)


@triton.jit
def tokens_at(base, step, start, token, inside, VALUES: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of tokens, in whatever shape these come."""
    column = start + tl.arange(0, COLUMNS)
    if len(token.shape) == 2:
        return tl.load(
            base + (token[:, :, None] * step + column[None, None, :]),
            mask=inside[:, :, None] & (column < VALUES)[None, None, :],
            other=0.0,
        )
    else:
        return tl.load(
            base + (token[:, None] * step + column[None, :]),
            mask=inside[:, None] & (column < VALUES)[None, :],
            other=0.0,
        )[None, :, :]


@triton.jit
def features_at(base, step, token, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr):
    """Those of a block's tokens, woven, for bands: [1, BLOCK, SIZE]."""
    feature = woven(tl.arange(0, SIZE))[None, None, :]
    mask = inside[None, :, None] & (feature < FEATURES)
    return tl.load(base + (token[None, :, None] * step + feature), mask=mask, other=0.0)


@triton.jit
def turned(bands):
    """[BANDS, BAND, n] of a square tile, its rows and columns exchanged."""
    ROWS: tl.constexpr = bands.shape[2]
    return tl.reshape(tl.trans(tl.reshape(bands, (ROWS, ROWS))), (bands.shape[0], bands.shape[1], ROWS))


@triton.jit
def bands_at(base, step, token, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr):
    """The same as bands: [BANDS, BAND, SIZE]."""
    feature = woven(tl.arange(0, SIZE))[None, None, :]
    mask = inside[:, :, None] & (feature < FEATURES)
    return tl.load(base + (token[:, :, None] * step + feature), mask=mask, other=0.0)


@triton.jit
def overlaps_with(bands, base, step, token, inside, FEATURES: tl.constexpr):
    """Of each token with its features, [BANDS, BAND]."""
    return tl.sum(bands * bands_at(base, step, token, inside, FEATURES, bands.shape[2]), axis=2)


@triton.jit
def over_tokens(bands):
    """The sum of all rows."""
    return tl.sum(tl.sum(bands, axis=1), axis=0)


@triton.jit
def faded(bands, kept, KEEP: tl.constexpr):
    """As much of each token as is kept of it."""
    if KEEP == "heads":
        return bands * kept[:, :, None]
    else:
        return bands


@triton.jit
def fades_of(kept_in, remaining_in, at, token, there, both, KEEP: tl.constexpr, CHUNK: tl.constexpr):
    """What is kept of each token since the block's start, until its end, and of the page from start to end."""
    if KEEP == "heads":
        first = tl.load(kept_in + at + CHUNK - 1)
        second = tl.load(kept_in + at + 2 * CHUNK - 1, mask=both, other=1.0)
        later = token >= CHUNK
        kept = tl.load(kept_in + at + token, mask=there, other=0.0) * tl.where(later, first, 1.0)
        remaining = tl.load(remaining_in + at + token, mask=there, other=0.0) * tl.where(later, 1.0, second)
        return kept, remaining, first * second
    else:
        return token, token, 1.0


@triton.jit
def between_tokens(between_in, kept_in, remaining_in, at, ours, others, there, both, CHUNK: tl.constexpr):
    """What is kept from token to token, [BANDS, BAND, BLOCK]; from one chunk to the other it goes over its border."""
    one, other = ours[:, :, None], others[None, None, :]
    same = (one // CHUNK == other // CHUNK) & there[None, None, :]
    inside = tl.load(between_in + at * CHUNK + (one * CHUNK + other % CHUNK), mask=same, other=0.0)
    since = tl.load(kept_in + at + ours, mask=(ours >= CHUNK) & both, other=0.0)
    until = tl.load(remaining_in + at + others, mask=others < CHUNK, other=0.0)
    return inside + since[:, :, None] * until[None, None, :]


@triton.jit
def overlap_of(pages, of_pages, COUNT: tl.constexpr):
    """What keeping a page is worth: its overlap with its gradient after the block, in passing."""
    PIECE: tl.constexpr = min(COUNT, 2048)
    found = tl.zeros((PIECE,), tl.float32)
    for start in tl.range(0, COUNT, PIECE, num_stages=1):
        at = start + tl.arange(0, PIECE)
        page, of_page = tl.load(pages + at), tl.load(of_pages + at)
        found += page.to(tl.float32) * of_page.to(tl.float32)
    return tl.sum(found, axis=0)


@triton.jit
def worth_of_gate(
    queries, keys, q, k, since, kept, remaining, notes, pages, of_pages, of_reads, of_values, values, r_t, d_t, v_t,
    ours, others, ours_inside, inside, there, VALUES: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    SLICE: tl.constexpr, KEEP: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """What one gate that erases and writes is worth, [BANDS, BAND].

    That is the overlap of value − recall with the gradient of what T was given, both found again.
    """
    BANDS: tl.constexpr = ours.shape[0]
    BLOCK: tl.constexpr = BANDS * BAND
    one, other = ours[:, :, None], others[None, None, :]
    seen = tl.where(one >= other, times(queries, tl.permute(k, (0, 2, 1)), FINE), 0.0)
    recalled = tl.where(one > other, times(keys, tl.permute(k, (0, 2, 1)), FINE), 0.0)
    if KEEP == "heads":
        seen, recalled = seen * since, recalled * since
    found = tl.zeros((BANDS, BAND), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=1):
        page = tl.permute(page_at(pages, start, SIZE, COLUMNS, SLICE), (0, 2, 1))
        of_page = tl.permute(page_at(of_pages, start, SIZE, COLUMNS, SLICE), (0, 2, 1))
        note, lost = notes_at(notes, start, there, VALUES, COLUMNS, SLICE, BLOCK)
        coming = tokens_at(of_reads, r_t, start, others, inside, VALUES, COLUMNS)
        of_value = tokens_at(of_values, d_t, start, others, inside, VALUES, COLUMNS)
        left = tokens_at(values, v_t, start, ours, ours_inside, VALUES, COLUMNS).to(tl.float32)
        left -= faded(times(keys, page, ROUGH), kept, KEEP)
        left = times(recalled, tl.permute(note, (0, 2, 1)), FINE, times(recalled, tl.permute(lost, (0, 2, 1)), ROUGH, left))
        fresh = faded(times(keys, of_page, ROUGH), remaining, KEEP)
        fresh = times(turned(seen), coming, FINE, times(turned(-recalled), of_value, FINE, fresh))
        found += tl.sum(fresh * left, axis=2)
    return found


@triton.jit
def block_gradients_kernel(
    queries, keys, values, log_keep, matrix,
    queries_in, keys_in, erase_in, between_in, kept_in, remaining_in, notes_in, pages, of_reads, of_pages, of_values,
    of_queries, of_keys, of_log_keep, of_erase,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, keep_b, keep_t, keep_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, CHUNK: tl.constexpr, KEEP: tl.constexpr,
    LIMIT: tl.constexpr, LOOKED: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of; `of_values` is given."""
    BLOCK: tl.constexpr = 2 * CHUNK
    BANDS: tl.constexpr = BLOCK // BAND
    tl.static_assert(CHUNK == WOVEN)
    program, blocks = tl.program_id(0), (chunks + 1) // 2
    block, head, row = program % blocks, (program // blocks) % heads, program // (blocks * heads)
    first = block * BLOCK
    ours, others = woven(columns_of(BANDS)), woven(tl.arange(0, BLOCK))
    ours_inside, inside = ours < length - first, others < length - first
    both = 2 * block + 1 < chunks
    there = (tl.arange(0, BLOCK) < CHUNK) | both  # chunks that are there, of which all is written down
    ours_there = (columns_of(BANDS) < CHUNK) | both
    index = (program // blocks) * chunks + 2 * block  # of the first chunk
    at = index.to(tl.int64) * CHUNK
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    looked_q, looked_q_t, looked_k, looked_k_t = q_base, q_t, k_base, k_t
    if LOOKED:
        looked_q, looked_q_t = queries_in + token * FEATURES, heads * FEATURES
        looked_k, looked_k_t = keys_in + token * FEATURES, heads * FEATURES
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    d_base, d_t = of_values + token * VALUES, heads * VALUES
    notes_base = notes_in + at * (2 * holding(VALUES))
    page_base = pages + program.to(tl.int64) * (holding(VALUES) * SIZE)
    of_page_base = of_pages + program.to(tl.int64) * (holding(VALUES) * SIZE)

    asking = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    of_seen = tl.zeros((BANDS, BAND, BLOCK), tl.float32)
    of_system = tl.zeros((BANDS, BAND, BLOCK), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        coming = tokens_at(r_base, r_t, start, ours, ours_inside, VALUES, COLUMNS)
        of_value = tokens_at(d_base, d_t, start, ours, ours_inside, VALUES, COLUMNS)
        notes, lost = notes_at(notes_base, start, there, VALUES, COLUMNS, SLICE, BLOCK)
        page = page_at(page_base, start, SIZE, COLUMNS, SLICE)
        asking = times(coming, page, ROUGH, asking)
        of_seen = times(coming, lost, FINE, times(coming, notes, FINE, of_seen))
        of_system = times(of_value, lost, FINE, times(of_value, notes, FINE, of_system))

    one, other = ours[:, :, None], others[None, None, :]
    noted = -tl.sum(tl.where(one == other, of_system, 0.0), axis=2)
    of_seen = tl.where(one >= other, -of_seen, 0.0)
    of_system = tl.where(one > other, of_system, 0.0)
    kept, remaining, whole = fades_of(kept_in, remaining_in, at, ours, ours_there, both, KEEP, CHUNK)
    if KEEP == "heads":
        since = between_tokens(between_in, kept_in, remaining_in, at, ours, others, there, both, CHUNK)
        of_seen, of_system = of_seen * since, of_system * since
        asking *= kept[:, :, None]
        by_later = overlaps_with(asking, looked_q, looked_q_t, ours, ours_inside, FEATURES)
    k = features_at(looked_k, looked_k_t, others, inside, FEATURES, SIZE)
    of_q = weave(tl.reshape(times(of_seen, k, ROUGH, asking), (BLOCK, SIZE)))
    wide = tl.arange(0, WIDE)
    on_raw = inside[:, None] & (wide < WIDTH)[None, :]
    offsets = others[:, None] * (heads * WIDTH) + wide[None, :]
    of_q = raw_gradient(of_q, q_base + others * q_t, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, False)
    tl.store(of_queries + token * WIDTH + offsets, of_q.to(of_queries.dtype.element_ty), mask=on_raw)
    if KEEP == "heads":
        turned_k = tl.permute(k, (0, 2, 1))
        pairs = of_seen * times(bands_at(looked_q, looked_q_t, ours, ours_inside, FEATURES, SIZE), turned_k, FINE)
        pairs += of_system * times(bands_at(looked_k, looked_k_t, ours, ours_inside, FEATURES, SIZE), turned_k, FINE)
        earlier = (others[:, None] < others[None, :]).to(k.dtype)[None, :, :]
        around = times(tl.where(one > other, pairs, 0.0), earlier, FINE)  # of pairs with a token between them
        of_logs = over_tokens(tl.where(one >= other, by_later[:, :, None] + around, 0.0))
        of_logs += whole * overlap_of(page_base, of_page_base, (VALUES + SLICE - 1) // SLICE * (SLICE * SIZE))
        erasing = tl.zeros((BANDS, BAND, SIZE), tl.float32)

    writing = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column, place = start + tl.arange(0, COLUMNS)[None, None, :], columns_of(BANDS)[:, :, None]
        on_ours = notes_base + on_notes(column, place, VALUES, SLICE)
        notes = tl.load(on_ours, mask=ours_there[:, :, None], other=0.0)
        of_value = tokens_at(d_base, d_t, start, ours, ours_inside, VALUES, COLUMNS)
        page = page_at(page_base, start, SIZE, COLUMNS, SLICE)
        of_page = page_at(of_page_base, start, SIZE, COLUMNS, SLICE)
        if KEEP == "heads":
            erasing = times(of_value, page, ROUGH, erasing)
        else:  # of which both take away
            writing = times(of_value, page, ROUGH, writing)
        writing = times(notes, of_page, ROUGH, writing)

    k = features_at(looked_k, looked_k_t, others, inside, FEATURES, SIZE)
    of_k = -writing
    if KEEP == "heads":
        of_k *= remaining[:, :, None]
        erasing *= -kept[:, :, None]
        by_later = overlaps_with(erasing, looked_k, looked_k_t, ours, ours_inside, FEATURES)
        by_earlier = overlaps_with(of_k, looked_k, looked_k_t, ours, ours_inside, FEATURES)
        of_logs += over_tokens(tl.where(one >= other, by_later[:, :, None], by_earlier[:, :, None]))
        of_k += erasing
    of_k = times(of_system + turned(of_system), k, ROUGH, of_k)
    q = features_at(looked_q, looked_q_t, others, inside, FEATURES, SIZE)
    of_k = weave(tl.reshape(times(turned(of_seen), q, FINE, of_k), (BLOCK, SIZE)))
    of_k = raw_gradient(of_k, k_base + others * k_t, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, False)
    tl.store(of_keys + token * WIDTH + offsets, of_k.to(of_keys.dtype.element_ty), mask=on_raw)

    if KEEP == "heads":
        logs = first_of(log_keep, row, head, first, keep_b, keep_t, keep_h) + others * keep_t
        wiped = tl.load(logs, mask=inside, other=0.0).to(tl.float32) == float("-inf")
        of_logs = tl.where(wiped, 0.0, of_logs)
        tl.store(of_log_keep + token + others * heads, of_logs.to(of_log_keep.dtype.element_ty), mask=inside)
    beta = tl.load(erase_in + at + ours, mask=ours_there, other=1.0)
    little = tl.abs(beta) < LITTLE
    of_beta = noted / tl.where(little, 1.0, beta * beta)
    if tl.max(tl.max((little & ours_inside).to(tl.int32), axis=1), axis=0) > 0:
        v_base = first_of(values, row, head, first, v_b, v_t, v_h)
        q = features_at(looked_q, looked_q_t, others, inside, FEATURES, SIZE)
        k = features_at(looked_k, looked_k_t, others, inside, FEATURES, SIZE)
        since = one
        if KEEP == "heads":
            since = between_tokens(between_in, kept_in, remaining_in, at, ours, others, there, both, CHUNK)
        again = worth_of_gate(
            bands_at(looked_q, looked_q_t, ours, ours_inside, FEATURES, SIZE),
            bands_at(looked_k, looked_k_t, ours, ours_inside, FEATURES, SIZE), q, k, since, kept, remaining, notes_base, page_base, of_page_base, r_base, d_base, v_base, r_t, d_t, v_t,
            ours, others, ours_inside, inside, there, VALUES, SIZE, COLUMNS, SLICE, KEEP, FINE, ROUGH,
        )  # fmt: skip
        of_beta = tl.where(little, again, of_beta)
    of_beta *= slope_of(beta, LIMIT)
    tl.store(of_erase + token + ours * heads, of_beta.to(of_erase.dtype.element_ty), mask=ours_inside)
