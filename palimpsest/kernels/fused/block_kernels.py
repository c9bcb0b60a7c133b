"""The gradients of queries, keys and gates for two chunks at a time, a block: `gradients` of wide heads.

The formulas know nothing of chunks. With S the page before a block, dS its gradient after it, n the notes, o the
gradient of reads and dv that of values (which is β times the gradient of what T was given):

    of q_i = o_i S + Σ_{j ≤ i} (o_i · n_j) k_j
    of k_j = n_j dS − dv_j S + Σ_{i ≥ j} (o_i · n_j) q_i − Σ_{i > j} (dv_i · n_j) k_i − Σ_{i < j} (dv_j · n_i) k_i
    of β_j = (dv_j · n_j) / β_j²

So pages need not be saved before every chunk. A block is two tiles of tokens nevertheless, `a` and the later `b`: tiles
have fewer than 64 rows (scan_kernels.py). This is for pages that keep all, one gate that erases and writes, bfloat16,
and features that are ready; everything else is for `gradients`. Notes and pages lie as `carry` and `carry_back` multiplied them, and notes
have the other sign: tokens and features are in woven order here (bands.py), until they are stored.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from .bands import WOVEN, weave, where_multiplied, woven
from .features import holding, raw_gradient
from .products import product
from .tiles import LITTLE, first_of, slope_of


@triton.jit
def page_at(base, start, SIZE: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """Some columns of a page, [COLUMNS, SIZE]."""
    column, feature = start + tl.arange(0, COLUMNS)[:, None], tl.arange(0, SIZE)[None, :]
    return tl.load(base + where_multiplied(column, feature, feature % WOVEN, SLICE, SLICE * SIZE, SLICE * WOVEN))


@triton.jit
def notes_at(base, start, there, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr):
    """Some columns of a chunk's notes, [COLUMNS, CHUNK], and what bfloat16 lost of them; none of one not there."""
    column, token = start + tl.arange(0, COLUMNS)[:, None], tl.arange(0, WOVEN)[None, :]
    at = base + where_multiplied(column, token, token, SLICE, SLICE * WOVEN, 0)
    return tl.load(at, mask=there, other=0.0), tl.load(at + WOVEN * holding(VALUES), mask=there, other=0.0)


@triton.jit
def tokens_at(base, step, start, token, inside, VALUES: tl.constexpr, COLUMNS: tl.constexpr):
    """Some columns of tokens, [CHUNK, COLUMNS]."""
    column = start + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < VALUES)[None, :]
    return tl.load(base + (token[:, None] * step + column[None, :]), mask=mask, other=0.0)


@triton.jit
def features_at(base, step, token, inside, FEATURES: tl.constexpr, SIZE: tl.constexpr):
    """Of tokens, woven, [CHUNK, SIZE]."""
    feature = woven(tl.arange(0, SIZE))
    mask = inside[:, None] & (feature < FEATURES)[None, :]
    return tl.load(base + (token[:, None] * step + feature[None, :]), mask=mask, other=0.0)


@triton.jit
def split_product(left, right, lost, onto, PRECISION: tl.constexpr):
    """With a tile and what bfloat16 lost of it."""
    return product(left, lost, PRECISION, product(left, right, PRECISION, onto))


@triton.jit
def save_gradient(
    out, found, base, step, first, heads, token, inside, matrix, LOOK: tl.constexpr, WIDTH: tl.constexpr,
    FEATURES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of raw queries or keys, from that of their features."""
    SIZE: tl.constexpr = found.shape[1]
    wide = tl.arange(0, WIDE)
    rows = base + token * step
    found = raw_gradient(weave(found), rows, inside, 1, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, True)
    at = out + first * WIDTH + (token[:, None] * (heads * WIDTH) + wide[None, :])
    tl.store(at, found.to(out.dtype.element_ty), mask=inside[:, None] & (wide < WIDTH)[None, :])


@triton.jit
def lower(x, token, ALSO: tl.constexpr):
    """Of a tile of later and earlier tokens, those that are; and the same tokens also, if wanted."""
    if ALSO:
        return tl.where(token[:, None] >= token[None, :], x, 0.0)
    else:
        return tl.where(token[:, None] > token[None, :], x, 0.0)


@triton.jit
def own(x, token):
    """The diagonal."""
    return tl.sum(tl.where(token[:, None] == token[None, :], x, 0.0), axis=1)


@triton.jit
def store_gate(out, found, slope, first, heads, token, inside):
    tl.store(out + first + token * heads, (found * slope).to(out.dtype.element_ty), mask=inside)


@triton.jit
def block_gradients_kernel(
    queries, keys, values, matrix, queries_in, keys_in, erase_in, notes_in, pages, of_reads, of_pages, of_values,
    of_queries, of_keys, of_erase,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, r_b, r_t, r_h,
    length, heads, chunks,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr, CHUNK: tl.constexpr, LIMIT: tl.constexpr,
    LOOKED: tl.constexpr, STAGES: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """Gradients are written as contiguous tensors of the shape of what they are of; `of_values` is given."""
    tl.static_assert(CHUNK == WOVEN)
    program, blocks = tl.program_id(0), (chunks + 1) // 2
    block, head, row = program % blocks, (program // blocks) % heads, program // (blocks * heads)
    first, both = block * (2 * CHUNK), 2 * block + 1 < chunks
    a = woven(tl.arange(0, CHUNK))
    b = a + CHUNK
    inside_a, inside_b = a < length - first, b < length - first
    at = ((program // blocks) * chunks + 2 * block).to(tl.int64) * CHUNK  # of all that `prepare` has for each token
    token = (row * length + first).to(tl.int64) * heads + head
    q_base = first_of(queries, row, head, first, q_b, q_t, q_h)
    k_base = first_of(keys, row, head, first, k_b, k_t, k_h)
    look_q, look_q_t, look_k, look_k_t = q_base, q_t, k_base, k_t
    if LOOKED:
        look_q, look_q_t = queries_in + token * FEATURES, heads * FEATURES
        look_k, look_k_t = keys_in + token * FEATURES, heads * FEATURES
    r_base = first_of(of_reads, row, head, first, r_b, r_t, r_h)
    d_base, d_t = of_values + token * VALUES, heads * VALUES
    NOTES: tl.constexpr = 2 * holding(VALUES)
    notes_base = notes_in + at * NOTES
    page_base = pages + program.to(tl.int64) * (holding(VALUES) * SIZE)
    of_page_base = of_pages + program.to(tl.int64) * (holding(VALUES) * SIZE)

    asking_a = tl.zeros((CHUNK, SIZE), tl.float32)
    asking_b = tl.zeros((CHUNK, SIZE), tl.float32)
    taking_a = tl.zeros((CHUNK, SIZE), tl.float32)  # from keys, as notes have the other sign
    taking_b = tl.zeros((CHUNK, SIZE), tl.float32)
    seen_a = tl.zeros((CHUNK, CHUNK), tl.float32)  # the gradient of how much reads of a see of its notes
    seen_b = tl.zeros((CHUNK, CHUNK), tl.float32)
    seen_ba = tl.zeros((CHUNK, CHUNK), tl.float32)  # … reads of b of notes of a
    system_a = tl.zeros((CHUNK, CHUNK), tl.float32)  # … of the system
    system_b = tl.zeros((CHUNK, CHUNK), tl.float32)
    system_ba = tl.zeros((CHUNK, CHUNK), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=STAGES):
        page = page_at(page_base, start, SIZE, COLUMNS, SLICE)
        notes_a, lost_a = notes_at(notes_base, start, True, VALUES, COLUMNS, SLICE)
        notes_b, lost_b = notes_at(notes_base + NOTES * CHUNK, start, both, VALUES, COLUMNS, SLICE)
        coming_a = tokens_at(r_base, r_t, start, a, inside_a, VALUES, COLUMNS)
        coming_b = tokens_at(r_base, r_t, start, b, inside_b, VALUES, COLUMNS)
        value_a = tokens_at(d_base, d_t, start, a, inside_a, VALUES, COLUMNS)
        value_b = tokens_at(d_base, d_t, start, b, inside_b, VALUES, COLUMNS)
        asking_a, asking_b = product(coming_a, page, ROUGH, asking_a), product(coming_b, page, ROUGH, asking_b)
        taking_a, taking_b = product(value_a, page, ROUGH, taking_a), product(value_b, page, ROUGH, taking_b)
        seen_a = split_product(coming_a, notes_a, lost_a, seen_a, FINE)
        seen_b = split_product(coming_b, notes_b, lost_b, seen_b, FINE)
        seen_ba = split_product(coming_b, notes_a, lost_a, seen_ba, FINE)
        system_a = split_product(value_a, notes_a, lost_a, system_a, FINE)
        system_b = split_product(value_b, notes_b, lost_b, system_b, FINE)
        system_ba = split_product(value_b, notes_a, lost_a, system_ba, FINE)
        of_page = page_at(of_page_base, start, SIZE, COLUMNS, SLICE)
        taking_a = product(tl.trans(notes_a), of_page, ROUGH, taking_a)
        taking_b = product(tl.trans(notes_b), of_page, ROUGH, taking_b)

    noted_a, noted_b = -own(system_a, a), -own(system_b, a)
    seen_a, seen_b, seen_ba = lower(-seen_a, a, True), lower(-seen_b, a, True), -seen_ba
    system_a, system_b = lower(system_a, a, False), lower(system_b, a, False)
    k_a = features_at(look_k, look_k_t, a, inside_a, FEATURES, SIZE)
    k_b = features_at(look_k, look_k_t, b, inside_b, FEATURES, SIZE)
    of_q = product(seen_a, k_a, ROUGH, asking_a)
    save_gradient(
        of_queries, of_q, q_base, q_t, token, heads, a, inside_a, matrix, LOOK, WIDTH, FEATURES, WIDE
    )  # fmt: skip
    of_q = product(seen_ba, k_a, ROUGH, product(seen_b, k_b, ROUGH, asking_b))
    save_gradient(
        of_queries, of_q, q_base, q_t, token, heads, b, inside_b, matrix, LOOK, WIDTH, FEATURES, WIDE
    )  # fmt: skip

    q_a = features_at(look_q, look_q_t, a, inside_a, FEATURES, SIZE)
    q_b = features_at(look_q, look_q_t, b, inside_b, FEATURES, SIZE)
    of_k_a = product(system_a + tl.trans(system_a), k_a, ROUGH, product(tl.trans(system_ba), k_b, ROUGH, -taking_a))
    of_k_a = product(tl.trans(seen_a), q_a, FINE, product(tl.trans(seen_ba), q_b, FINE, of_k_a))
    save_gradient(
        of_keys, of_k_a, k_base, k_t, token, heads, a, inside_a, matrix, LOOK, WIDTH, FEATURES, WIDE
    )  # fmt: skip
    of_k_b = product(system_b + tl.trans(system_b), k_b, ROUGH, product(system_ba, k_a, ROUGH, -taking_b))
    of_k_b = product(tl.trans(seen_b), q_b, FINE, of_k_b)
    save_gradient(
        of_keys, of_k_b, k_base, k_t, token, heads, b, inside_b, matrix, LOOK, WIDTH, FEATURES, WIDE
    )  # fmt: skip

    beta_a = tl.load(erase_in + at + a)
    beta_b = tl.load(erase_in + at + b, mask=inside_b, other=1.0)
    little_a, little_b = tl.abs(beta_a) < LITTLE, tl.abs(beta_b) < LITTLE
    of_beta_a = noted_a / tl.where(little_a, 1.0, beta_a * beta_a)
    of_beta_b = noted_b / tl.where(little_b, 1.0, beta_b * beta_b)
    if tl.max(((little_a & inside_a) | (little_b & inside_b)).to(tl.int32), axis=0) > 0:
        again_a, again_b = worth_of_gates(
            look_q, look_k, look_q_t, look_k_t, notes_base, page_base, of_page_base,
            r_base, d_base, first_of(values, row, head, first, v_b, v_t, v_h), r_t, d_t, v_t, a, b,
            inside_a, inside_b, both, FEATURES, SIZE, VALUES, COLUMNS, SLICE, CHUNK, FINE, ROUGH,
        )  # fmt: skip
        of_beta_a, of_beta_b = tl.where(little_a, again_a, of_beta_a), tl.where(little_b, again_b, of_beta_b)
    store_gate(of_erase, of_beta_a, slope_of(beta_a, LIMIT), token, heads, a, inside_a)
    store_gate(of_erase, of_beta_b, slope_of(beta_b, LIMIT), token, heads, b, inside_b)


@triton.jit
def worth_of_gates(
    look_q, look_k, look_q_t, look_k_t, notes, pages, of_pages,
    of_reads, of_values, values, r_t, d_t, v_t, a, b, inside_a, inside_b, both,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, SLICE: tl.constexpr,
    CHUNK: tl.constexpr, FINE: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """What gates that erase and write are worth, of both chunks, [CHUNK] each.

    That is the overlap of value − recall with the gradient of what T was given, both found again:

        of what T was given, at j:  k_j dS + Σ_{i ≥ j} (q_i · k_j) o_i − Σ_{i > j} (k_i · k_j) dv_i
    """
    q_a = features_at(look_q, look_q_t, a, inside_a, FEATURES, SIZE)
    q_b = features_at(look_q, look_q_t, b, inside_b, FEATURES, SIZE)
    k_a = features_at(look_k, look_k_t, a, inside_a, FEATURES, SIZE)
    k_b = features_at(look_k, look_k_t, b, inside_b, FEATURES, SIZE)
    seen_a = lower(product(q_a, tl.trans(k_a), FINE), a, True)
    seen_b = lower(product(q_b, tl.trans(k_b), FINE), a, True)
    seen_ba = product(q_b, tl.trans(k_a), FINE)
    recalled_a = lower(product(k_a, tl.trans(k_a), FINE), a, False)
    recalled_b = lower(product(k_b, tl.trans(k_b), FINE), a, False)
    recalled_ba = product(k_b, tl.trans(k_a), FINE)
    found_a = tl.zeros((CHUNK,), tl.float32)
    found_b = tl.zeros((CHUNK,), tl.float32)
    for start in tl.range(0, VALUES, COLUMNS, num_stages=1):
        page = tl.trans(page_at(pages, start, SIZE, COLUMNS, SLICE))
        of_page = tl.trans(page_at(of_pages, start, SIZE, COLUMNS, SLICE))
        notes_a, lost_a = notes_at(notes, start, True, VALUES, COLUMNS, SLICE)
        notes_b, lost_b = notes_at(notes + 2 * holding(VALUES) * CHUNK, start, both, VALUES, COLUMNS, SLICE)
        coming_a = tokens_at(of_reads, r_t, start, a, inside_a, VALUES, COLUMNS)
        coming_b = tokens_at(of_reads, r_t, start, b, inside_b, VALUES, COLUMNS)
        value_a = tokens_at(of_values, d_t, start, a, inside_a, VALUES, COLUMNS)
        value_b = tokens_at(of_values, d_t, start, b, inside_b, VALUES, COLUMNS)
        left_a = tokens_at(values, v_t, start, a, inside_a, VALUES, COLUMNS).to(tl.float32)
        left_b = tokens_at(values, v_t, start, b, inside_b, VALUES, COLUMNS).to(tl.float32)
        left_a -= product(k_a, page, ROUGH)
        left_b -= product(k_b, page, ROUGH)
        left_a = split_product(recalled_a, tl.trans(notes_a), tl.trans(lost_a), left_a, FINE)
        left_b = split_product(recalled_b, tl.trans(notes_b), tl.trans(lost_b), left_b, FINE)
        left_b = split_product(recalled_ba, tl.trans(notes_a), tl.trans(lost_a), left_b, FINE)
        fresh_a = product(k_a, of_page, ROUGH)
        fresh_b = product(k_b, of_page, ROUGH)
        fresh_a = product(tl.trans(seen_a), coming_a, FINE, product(tl.trans(seen_ba), coming_b, FINE, fresh_a))
        fresh_b = product(tl.trans(seen_b), coming_b, FINE, fresh_b)
        fresh_a = product(-tl.trans(recalled_a), value_a, FINE, fresh_a)
        fresh_a = product(-tl.trans(recalled_ba), value_b, FINE, fresh_a)
        fresh_b = product(-tl.trans(recalled_b), value_b, FINE, fresh_b)
        found_a += tl.sum(fresh_a * left_a, axis=1)
        found_b += tl.sum(fresh_b * left_b, axis=1)
    return found_a, found_b
