"""Sums in Triton: the memory scan where all is kept, nothing erased, and queries and keys are features already.

    read_i = Σ_{j ≤ i} (q_i · k_j) v_j

is three vectors of which any two address the third, and so are its gradients, with o the gradient of what is read:

    of q_i = Σ_{j ≤ i} (o_i · v_j) k_j
    of k_j = Σ_{i ≥ j} (v_j · o_i) q_i
    of v_j = Σ_{i ≥ j} (k_j · q_i) o_i

Backward is three more sums, two of them from the end, which run beside each other in one launch. Nothing is saved for
it: the pages of a sum cost less to make again than to write down. As in `carry`, pages are turned and cut into bands,
one for each warp, which asks nothing of the others.
"""

import triton
import triton.language as tl

from .parts import parts_kernel
from .products import product
from .tiles import first_of

__all__ = ["parts_kernel", "sum_back_kernel", "sum_kernel"]


@triton.jit
def shared_tile(
    tensor, row, head, first, length, s_b, s_t, s_h, count, SIZE: tl.constexpr, BANDS: tl.constexpr, CHUNK: tl.constexpr
):
    """The numbers of a chunk's tokens, once for all bands: [BANDS, CHUNK, SIZE]."""
    place, number = tl.arange(0, CHUNK)[None, :, None], tl.arange(0, SIZE)[None, None, :]
    base = first_of(tensor, row, head, first, s_b, s_t, s_h)
    found = tl.load(base + (place * s_t + number), mask=(place < length - first) & (number < count), other=0.0)
    return tl.broadcast_to(found, (BANDS, CHUNK, SIZE))


@triton.jit
def summed(
    queries, keys, values, start, reads, last,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    row, head, line, piece, slice, length, heads, chunks, parts, share,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr,
    CHUNK: tl.constexpr, TURNED: tl.constexpr, REVERSED: tl.constexpr, STAGES: tl.constexpr,
    FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Some columns of one sum over a piece of `share` chunks, which starts from a page of its own if there is one.

    Pages lie in memory as [lines, parts, …], in the order in which pieces come: REVERSED, the last one is first.
    TURNED, columns come before features there. Where nothing is read, only the first piece starts from a page, and
    where one ends goes to `last` as what the next one starts from; elsewhere `last` is where the last one ends.
    """
    BANDS: tl.constexpr = COLUMNS // BAND
    place, feature = tl.arange(0, CHUNK), tl.arange(0, SIZE)[None, None, :]
    column = (slice * COLUMNS + tl.arange(0, BANDS)[:, None] * BAND + tl.arange(0, BAND)[None, :])[:, :, None]
    there = (feature < FEATURES) & (column < VALUES)
    turn = parts - 1 - piece if REVERSED else piece
    at = (line * parts + turn).to(tl.int64) * (FEATURES * VALUES)
    whole = line.to(tl.int64) * (FEATURES * VALUES)
    on_page = column * FEATURES + feature if TURNED else feature * VALUES + column
    page = tl.zeros((BANDS, BAND, SIZE), tl.float32)
    if start is not None:
        if reads is None:
            page += tl.load(start + whole + on_page, mask=there & (turn == 0), other=0.0)
        else:
            page += tl.load(start + at + on_page, mask=there, other=0.0)
    begin, end = piece * share, tl.minimum(piece * share + share, chunks)
    for step in tl.range(end - begin, num_stages=STAGES):
        first = (end - 1 - step if REVERSED else begin + step) * CHUNK
        here = (place < length - first)[None, None, :] & (column < VALUES)
        k = shared_tile(keys, row, head, first, length, k_b, k_t, k_h, FEATURES, SIZE, BANDS, CHUNK)
        base = first_of(values, row, head, first, v_b, v_t, v_h)
        v = tl.load(base + (place[None, None, :] * v_t + column), mask=here, other=0.0)
        if reads is not None:
            q = shared_tile(queries, row, head, first, length, q_b, q_t, q_h, FEATURES, SIZE, BANDS, CHUNK)
            q = tl.trans(q)
            seen = place[:, None] >= place[None, :] if REVERSED else place[:, None] <= place[None, :]
            seen = tl.where(seen[None, :, :], product(k, q, FINE), 0.0)
            found = product(v, seen, ROUGH, product(page, q, ROUGH))
            base = reads + ((row * length + first).to(tl.int64) * heads + head) * VALUES
            offsets = place[None, None, :] * (heads * VALUES) + column
            tl.store(base + offsets, found.to(reads.dtype.element_ty), mask=here)
        page = product(v, k, FINE, page)
    if last is not None:
        if reads is None:
            tl.store(last + at + FEATURES * VALUES + on_page, page, mask=there)
        elif turn == parts - 1:
            tl.store(last + whole + on_page, page, mask=there)


@triton.jit
def sum_kernel(
    queries, keys, values, start, reads, last,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    length, heads, chunks, parts, share,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr,
    CHUNK: tl.constexpr, REVERSED: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    SLICES: tl.constexpr = (VALUES + COLUMNS - 1) // COLUMNS
    program, pieces = tl.program_id(0), parts - 1 if reads is None else parts
    slice, piece, line = program % SLICES, (program // SLICES) % pieces, program // (SLICES * pieces)
    if REVERSED:
        piece += parts - pieces
    summed(
        queries, keys, values, start, reads, last,
        q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
        line // heads, line % heads, line, piece, slice, length, heads, chunks, parts, share,
        FEATURES, SIZE, VALUES, COLUMNS, BAND, CHUNK, False, REVERSED, STAGES, FINE, ROUGH,
    )  # fmt: skip


@triton.jit
def sum_back_kernel(
    queries, keys, values, of_reads, start, of_last, of_queries, of_keys, of_values, of_start,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, r_b, r_t, r_h,
    length, heads, chunks, parts, share,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr,
    BAND: tl.constexpr, CHUNK: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are contiguous tensors. The programs of a line are neighbours, as they read the same."""
    OF_FEATURES: tl.constexpr = (FEATURES + COLUMNS - 1) // COLUMNS
    SLICES: tl.constexpr = 2 * OF_FEATURES + (VALUES + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, piece, line = program % SLICES, (program // SLICES) % parts, program // (SLICES * parts)
    row, head = line // heads, line % heads
    if slice < OF_FEATURES:
        summed(
            values, of_reads, queries, of_last, of_keys, None,
            v_b, v_t, v_h, r_b, r_t, r_h, q_b, q_t, q_h,
            row, head, line, piece, slice, length, heads, chunks, parts, share,
            VALUES, WIDE, FEATURES, COLUMNS, BAND, CHUNK, True, True, STAGES, FINE, ROUGH,
        )  # fmt: skip
    elif slice < SLICES - OF_FEATURES:
        summed(
            keys, queries, of_reads, of_last, of_values, of_start,
            k_b, k_t, k_h, q_b, q_t, q_h, r_b, r_t, r_h,
            row, head, line, piece, slice - OF_FEATURES, length, heads, chunks, parts, share,
            FEATURES, SIZE, VALUES, COLUMNS, BAND, CHUNK, False, True, STAGES, FINE, ROUGH,
        )  # fmt: skip
    else:
        summed(
            of_reads, values, keys, start, of_queries, None,
            r_b, r_t, r_h, v_b, v_t, v_h, k_b, k_t, k_h,
            row, head, line, piece, slice - (SLICES - OF_FEATURES), length, heads, chunks, parts, share,
            VALUES, WIDE, FEATURES, COLUMNS, BAND, CHUNK, True, False, STAGES, FINE, ROUGH,
        )  # fmt: skip
