"""The gradients of queries, keys and gates for two chunks at a time, a block: `gradients` of wide heads that keep all.

With S the page before a block, dS its gradient after it, n the notes, o the gradient of reads and dv that of values,
which is β times the gradient of what T was given:

    of q_i = o_i S + Σ_{j ≤ i} (o_i · n_j) k_j
    of k_j = n_j dS − dv_j S + Σ_{i ≥ j} (o_i · n_j) q_i − Σ_{i > j} (dv_i · n_j) k_i − Σ_{i < j} (dv_j · n_i) k_i
    of β_j = (dv_j · n_j) / β_j²

There is no T and no chunk in that, so that pages need be saved only before every block. It is for one gate that erases
and writes, for bfloat16, and for features that are not made by products; everything else is for `gradients`
(gradient_kernels.py). Notes and pages lie as `carry` and `carry_back` multiplied them, and notes have the other sign:
tokens and features are in woven order here (bands.py), until they are stored.

Tiles have 64 rows, which on Hopper groups of warps multiply without a register for what they read: only so there is
room for the sums of two chunks. Triton gets such products wrong in other loops (scan_kernels.py), in this one it does
not; whether it does is tried on a device before the kernel is trusted.
"""

import triton
import triton.language as tl

from .bands import WOVEN, weave, where_multiplied, woven
from .chunk import between_at, diagonal
from .features import holding
from .products import product
from .tiles import NOTHING, back, first_of, slope_of, tile_at

AT_ONCE = tl.constexpr(16)  # blocks whose gates a program of `little_gates` looks through


@triton.jit
def woven_page(pages, start, SIZE: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """Some columns of a page that was saved as it was multiplied, [COLUMNS, SIZE]; its features are woven."""
    column, feature = start + tl.arange(0, COLUMNS)[:, None], tl.arange(0, SIZE)[None, :]
    return tl.load(pages + where_multiplied(column, feature, SLICE, SLICE * SIZE, SLICE * WOVEN))


@triton.jit
def on_notes(column, number, VALUES: tl.constexpr, SLICE: tl.constexpr):
    """Where among the notes of a block lies what bfloat16 keeps of a token's column, by its woven place."""
    return where_multiplied(column, number, SLICE, SLICE * WOVEN, 2 * WOVEN * holding(VALUES))


@triton.jit
def notes_at(notes, start, there, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """Some columns of notes, [BLOCK, COLUMNS].

    A tile for both sides of products would not be loaded ahead, so that `turned_at` loads them again.
    """
    column, number = start + tl.arange(0, COLUMNS)[None, :], tl.arange(0, there.shape[0])[:, None]
    return tl.load(notes + on_notes(column, number, VALUES, SLICE), mask=there[:, None], other=0.0)


@triton.jit
def turned_at(notes, start, there, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """The same, [COLUMNS, BLOCK], and what bfloat16 lost of them."""
    column, number = start + tl.arange(0, COLUMNS)[:, None], tl.arange(0, there.shape[0])[None, :]
    at = notes + on_notes(column, number, VALUES, SLICE)
    found = tl.load(at, mask=there[None, :], other=0.0)
    return found, tl.load(at + WOVEN * holding(VALUES), mask=there[None, :], other=0.0)


@triton.jit
def features_at(base, step, place, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr):
    """Of tokens, [BLOCK, SIZE], woven once they are read: woven in memory they would be read in small pieces."""
    return weave(tile_at(base, step, place, tl.arange(0, SIZE), inside, FEATURES))


@triton.jit
def split_product(left, right, lost, onto, PRECISION: tl.constexpr):
    """With a tile and what bfloat16 lost of it."""
    return product(left, lost, PRECISION, product(left, right, PRECISION, onto))


@triton.jit
def lower(x, place):
    """Of a tile of later and earlier tokens, those that are."""
    return tl.where(place[:, None] > place[None, :], x, 0.0)


@triton.jit
def block_gradients_kernel(
    queries, keys, matrix, queries_in, keys_in, erase_in, notes_in, pages, of_reads, of_pages, of_values,
    of_queries, of_keys, of_erase,
    q_b, q_t, q_h, k_b, k_t, k_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, CHUNK: tl.constexpr, LIMIT: tl.constexpr,
    LOOKED: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of; `of_values` is given.

    Those of gates next to zero are left to `little_gates`: it is rare, but its code alone would fill registers here.
    """
    BLOCK: tl.constexpr = 2 * CHUNK
    program, blocks = tl.program_id(0), (chunks + 1) // 2
    block, line = program % blocks, program // blocks
    row, head, first = line // heads, line % heads, block * BLOCK
    number = tl.arange(0, BLOCK)
    place = woven(number)
    inside, there = place < length - first, number < (chunks - 2 * block) * CHUNK
    at = (line * chunks + 2 * block).to(tl.int64) * CHUNK  # of all that is saved for each token of a chunk
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    look_q, look_q_t, look_k, look_k_t = q_base, q_t, k_base, k_t
    if LOOKED:
        look_q, look_q_t = queries_in + token * FEATURES, heads * FEATURES
        look_k, look_k_t = keys_in + token * FEATURES, heads * FEATURES
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    d_base, d_t = of_values + token * VALUES, heads * VALUES
    notes = notes_in + at * (2 * holding(VALUES))
    page_base = pages + program.to(tl.int64) * (holding(VALUES) * SIZE)
    of_page_base = of_pages + program.to(tl.int64) * (holding(VALUES) * SIZE)

    asking = tl.zeros((BLOCK, SIZE), tl.float32)
    taking = tl.zeros((BLOCK, SIZE), tl.float32)  # from keys, as notes have the other sign
    of_seen = tl.zeros((BLOCK, BLOCK), tl.float32)
    of_system = tl.zeros((BLOCK, BLOCK), tl.float32)  # its diagonal: what notes are worth
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        column = start + tl.arange(0, COLUMNS)
        page = woven_page(page_base, start, SIZE, COLUMNS, SLICE)
        of_page = woven_page(of_page_base, start, SIZE, COLUMNS, SLICE)
        coming = tile_at(r_base, r_t, place, column, inside, VALUES)
        fresh = tile_at(d_base, d_t, place, column, inside, VALUES)
        turned, lost = turned_at(notes, start, there, VALUES, COLUMNS, SLICE)
        of_system = split_product(fresh, turned, lost, of_system, FINE)
        of_seen = split_product(coming, turned, lost, of_seen, FINE)
        taking = product(fresh, page, ROUGH, taking)
        taking = product(notes_at(notes, start, there, VALUES, COLUMNS, SLICE), of_page, ROUGH, taking)
        asking = product(coming, page, ROUGH, asking)

    noted = -diagonal(of_system)
    of_seen = tl.where(place[:, None] >= place[None, :], -of_seen, 0.0)
    of_system = lower(of_system, place)
    wide = tl.arange(0, WIDE)
    on_raw = token * WIDTH + (place[:, None] * (heads * WIDTH) + wide[None, :])
    exist = inside[:, None] & (wide < WIDTH)[None, :]
    k = features_at(look_k, look_k_t, place, inside, FEATURES, SIZE)
    of_q = weave(product(of_seen, k, ROUGH, asking))
    of_q = back(of_q, q_base, q_t, place, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, True)
    tl.store(of_queries + on_raw, of_q.to(of_queries.dtype.element_ty), mask=exist)
    of_k = product(of_system + tl.trans(of_system), k, ROUGH, -taking)
    q = features_at(look_q, look_q_t, place, inside, FEATURES, SIZE)
    of_k = weave(product(tl.trans(of_seen), q, FINE, of_k))
    of_k = back(of_k, k_base, k_t, place, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, True)
    tl.store(of_keys + on_raw, of_k.to(of_keys.dtype.element_ty), mask=exist)

    beta = tl.load(erase_in + at + place, mask=inside, other=1.0)
    of_beta = noted / tl.where(tl.abs(beta) < NOTHING, 1.0, beta * beta)
    of_beta *= slope_of(beta, LIMIT)
    tl.store(of_erase + token + place * heads, of_beta.to(of_erase.dtype.element_ty), mask=inside)


@triton.jit
def little_gates_kernel(
    queries, keys, values, erase_in, logs_in, kept_in, remaining_in, notes_in, pages,
    of_reads, of_pages, of_values, of_erase,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, r_b, r_t, r_h,
    length, heads, chunks, lines,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
    CHUNK: tl.constexpr, TOGETHER: tl.constexpr, KEEP: tl.constexpr, LIMIT: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """The gradients of gates next to zero, in blocks that have any; queries and keys are features.

    That there are any is rare, so that a program looks through the gates of AT_ONCE blocks. It must not have the four
    warps of a group: Triton 3.6 loses track of addresses in loops like these (scan_kernels.py).
    """
    BLOCK: tl.constexpr = TOGETHER * CHUNK
    blocks, before = (chunks + TOGETHER - 1) // TOGETHER, tl.program_id(0) * AT_ONCE
    each = before + tl.arange(0, AT_ONCE)
    token = (each % blocks * BLOCK)[:, None] + tl.arange(0, BLOCK)[None, :]
    gates = erase_in + (each // blocks).to(tl.int64)[:, None] * (chunks * CHUNK) + token
    gates = tl.load(gates, mask=(each < lines * blocks)[:, None] & (token < length), other=1.0)
    if tl.min(tl.min(tl.abs(gates), axis=1), axis=0) < NOTHING:
        for one in range(tl.minimum(AT_ONCE, lines * blocks - before)):
            little_gates(
                before + one, queries, keys, values, erase_in, logs_in, kept_in, remaining_in, notes_in, pages,
                of_reads, of_pages, of_values, of_erase,
                q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, r_b, r_t, r_h,
                length, heads, chunks, blocks,
                FEATURES, SIZE, VALUES, COLUMNS, SLICE, CHUNK, TOGETHER, KEEP, LIMIT, FINE, ROUGH,
            )  # fmt: skip


@triton.jit
def little_gates(
    program, queries, keys, values, erase_in, logs_in, kept_in, remaining_in, notes_in, pages,
    of_reads, of_pages, of_values, of_erase,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, r_b, r_t, r_h,
    length, heads, chunks, blocks,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
    CHUNK: tl.constexpr, TOGETHER: tl.constexpr, KEEP: tl.constexpr, LIMIT: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """The same of one block, if it has any.

    Such a gate is worth the overlap of value − recall with the gradient of what T was given, both found again:

        of what T was given, at j:  k_j dS + Σ_{i ≥ j} (q_i · k_j) o_i − Σ_{i > j} (k_i · k_j) dv_i
    """
    BLOCK: tl.constexpr = TOGETHER * CHUNK
    block, line = program % blocks, program // blocks
    row, head, first = line // heads, line % heads, block * BLOCK
    number = tl.arange(0, BLOCK)
    place = woven(number)
    inside, there = place < length - first, number < (chunks - TOGETHER * block) * CHUNK
    at = (line * chunks + TOGETHER * block).to(tl.int64) * CHUNK
    beta = tl.load(erase_in + at + place, mask=inside, other=1.0)
    little = tl.abs(beta) < NOTHING
    if tl.max(little.to(tl.int32), axis=0) > 0:
        token = (row * length + first).to(tl.int64) * heads + head
        v_base = first_of(values, row, head, first, v_b, v_t, v_h)
        r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
        d_base, d_t = of_values + token * VALUES, heads * VALUES
        notes = notes_in + at * (2 * holding(VALUES))
        page_base = program.to(tl.int64) * (holding(VALUES) * SIZE)
        q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
        k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
        q = features_at(q_base, q_t, place, inside, FEATURES, SIZE)
        k = features_at(k_base, k_t, place, inside, FEATURES, SIZE)
        seen = tl.where(place[:, None] >= place[None, :], product(q, tl.trans(k), FINE), 0.0)
        recalled = lower(product(k, tl.trans(k), FINE), place)
        if KEEP == "heads":
            tl.static_assert(TOGETHER == 1)
            since = between_at(logs_in, line * chunks + block, place, CHUNK)
            seen, recalled = seen * since, recalled * since
            kept, remaining = tl.load(kept_in + at + place), tl.load(remaining_in + at + place)
        found = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, VALUES, COLUMNS, num_stages=1):
            column = start + tl.arange(0, COLUMNS)
            recall = product(k, tl.trans(woven_page(pages + page_base, start, SIZE, COLUMNS, SLICE)), ROUGH)
            fresh = product(k, tl.trans(woven_page(of_pages + page_base, start, SIZE, COLUMNS, SLICE)), ROUGH)
            if KEEP == "heads":
                recall, fresh = recall * kept[:, None], fresh * remaining[:, None]
            turned, lost = turned_at(notes, start, there, VALUES, COLUMNS, SLICE)
            left = tile_at(v_base, v_t, place, column, inside, VALUES).to(tl.float32) - recall
            left = split_product(recalled, tl.trans(turned), tl.trans(lost), left, FINE)
            fresh = product(tl.trans(seen), tile_at(r_base, r_t, place, column, inside, VALUES), FINE, fresh)
            fresh = product(-tl.trans(recalled), tile_at(d_base, d_t, place, column, inside, VALUES), FINE, fresh)
            found += tl.sum(fresh * left, axis=1)
        found *= slope_of(beta, LIMIT)
        tl.store(of_erase + token + place * heads, found.to(of_erase.dtype.element_ty), mask=little & inside)
