"""Parts of a sequence that start at once: from the page that each is handed alone to the one it really starts from.

Back, what each part hands to the one before is found without going through it again.
"""

import triton
import triton.language as tl
from torch import Tensor

from .bands import BAND, WOVEN, where_multiplied, woven
from .features import holding
from .launching import Way
from .products import product
from .tiles import first_in_line, first_of, look, tile_at

TILE = 4096  # numbers of P that are multiplied at once


@triton.jit
def parts_kernel(
    first, turning, pages, parts,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, SHARE: tl.constexpr, REVERSED: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`pages` [lines, parts, k, v] hold what the part before makes of a bare page, or of `first` if it is the first.

    In their place goes the page that each part starts from, S ← own + P S, with `turning` [lines, parts - 1, k, k] for
    P of all but the first; where there is none, parts add up. REVERSED, the last part is first, P is turned, and all
    that a part makes it makes of a bare page. A program has a band of columns of a line's page, turned as in `carry`,
    which is multiplied with P a share of its features after the other.
    """
    SLICES: tl.constexpr = (PAGE + BAND - 1) // BAND
    SHARES: tl.constexpr = SIZE // SHARE
    READY: tl.constexpr = 1 if first is None or not REVERSED else 0  # pages that need nothing of the one before
    program = tl.program_id(0)
    slice, line = program % SLICES, program // SLICES
    feature, column = tl.arange(0, SIZE)[None, :], slice * BAND + tl.arange(0, BAND)[:, None]
    there = (feature < FEATURES) & (column < PAGE)
    on_page = feature * PAGE + column
    begin, onward = (parts - 1, -1) if REVERSED else (0, 1)
    base = pages + line.to(tl.int64) * parts * (FEATURES * PAGE)
    page = tl.zeros((BAND, SIZE), tl.float32)
    if first is not None:
        page += tl.load(first + line.to(tl.int64) * (FEATURES * PAGE) + on_page, mask=there, other=0.0)
    tl.store(base + begin * (FEATURES * PAGE) + on_page, page, mask=there)
    if READY:
        page = tl.load(base + (begin + onward) * (FEATURES * PAGE) + on_page, mask=there, other=0.0)
    if turning is None:
        for step in tl.range(1 + READY, parts, num_stages=STAGES):
            at = base + (begin + onward * step) * (FEATURES * PAGE) + on_page
            page += tl.load(at, mask=there, other=0.0)
            tl.store(at, page, mask=there)
    else:
        turning += line.to(tl.int64) * (parts - 1) * (FEATURES * FEATURES)
        found = tl.zeros((BAND, SIZE), tl.float32)
        # one loop over parts and shares, so that what is multiplied next is always on its way
        for turn in tl.range((parts - 1 - READY) * SHARES, num_stages=STAGES):
            share, piece = turn % SHARES, begin + onward * (READY + turn // SHARES)
            asked = share * SHARE + tl.arange(0, SHARE)[:, None]
            on_tile = asked * FEATURES + feature if REVERSED else feature * FEATURES + asked
            tile = tl.load(
                turning + (piece - 1) * (FEATURES * FEATURES) + on_tile,
                mask=(feature < FEATURES) & (asked < FEATURES), other=0.0,
            )  # fmt: skip
            at = base + (piece + onward) * (FEATURES * PAGE) + on_page
            own = tl.load(at, mask=there & (share == 0), other=0.0)
            found = own + tl.where(share == 0, 0.0, found)
            found = product(share_of(page, share, SHARES), tile, PRECISION, found)
            if share == SHARES - 1:
                page = found
                tl.store(at, page, mask=there)


@triton.jit
def share_of(page, share, SHARES: tl.constexpr):
    """[BAND, SIZE] -> [BAND, SHARE]"""
    if SHARES == 1:
        return page
    else:
        shares = tl.reshape(page, (page.shape[0], SHARES, page.shape[1] // SHARES))
        return tl.sum(tl.where(tl.arange(0, SHARES)[None, :, None] == share, shares, 0.0), axis=1)


def way_between(pages: Tensor, precision: str, reversed: bool = False) -> Way:
    """How `parts_kernel` is launched: a warp for as many features as leave it registers."""
    lines, parts, features, page = pages.shape
    size = holding(features)
    stages = 3 if size > 128 else 4  # as far ahead as fits into the shared memory of any GPU
    constants = {"FEATURES": features, "SIZE": size, "PAGE": page, "SHARE": min(size, TILE // size)}
    constants |= {"REVERSED": reversed, "STAGES": stages, "PRECISION": precision}
    grid = (lines * triton.cdiv(page, BAND.value), 1, 1)
    return Way(grid, (parts,), constants, max(1, size // 32), stages)


@triton.jit
def read_back_kernel(
    queries, stops, matrix, of_reads, of_mass, ends,
    q_b, q_t, q_h, r_b, r_t, r_h,
    length, heads, parts, share,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr,
    VALUES: tl.constexpr, PAGE: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
    CHUNK: tl.constexpr, SLICE: tl.constexpr, WEAVES: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of the page that a part of `share` tokens starts from, of its own reads alone.

    They ask that page for `queries`, and so it is Σ query ⊗ gradient of read: no token waits for another. That of each
    part but the first goes to `ends` [rows · heads, parts, k, v] as of what the one before it ends with. A program has
    some columns of the page, turned as in `carry`. Where queries are what `carry` asks, each SLICE of their features
    is there for so many chunks as `stops` [rows · heads, parts - 1, slices] tells, and nothing after that. Where they
    lie as they were multiplied, tokens are taken in that order.
    """
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, piece, line = program % SLICES, (program // SLICES) % (parts - 1) + 1, program // (SLICES * (parts - 1))
    row, head = line // heads, line % heads
    number, column, feature = tl.arange(0, TOKENS), slice * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SIZE)
    place = woven(number) if WEAVES else number
    page = tl.zeros((COLUMNS, SIZE), tl.float32)
    begin, end = piece * share, tl.minimum(piece * share + share, length)
    if stops is not None:
        stops += (line * (parts - 1) + piece - 1) * tl.cdiv(FEATURES, SLICE)
        stop = tl.load(stops + feature // SLICE, mask=feature < FEATURES, other=0) * CHUNK
        end = tl.minimum(begin + tl.max(stop), end)
    for step in tl.range((end - begin + TOKENS - 1) // TOKENS, num_stages=STAGES):
        first = begin + step * TOKENS
        inside = place < end - first
        if stops is None:
            base = first_of(queries, row, head, first, q_b, q_t, q_h)
            asked = look(base, q_t, inside, matrix, LOOK, WIDTH, FEATURES, SIZE, TOKENS)
        elif WEAVES:
            base = queries + (line * tl.cdiv(length, WOVEN) + first // WOVEN).to(tl.int64) * (WOVEN * SIZE)
            at = where_multiplied(feature[:, None], number[None, :], SLICE, SLICE * WOVEN, WOVEN * SIZE)
            there = number[None, :] < (stop - step * TOKENS)[:, None]
            asked = tl.trans(tl.load(base + at, mask=there, other=0.0))
        else:
            base = first_of(queries, row, head, first, q_b, q_t, q_h)
            there = inside[:, None] & (place[:, None] < (stop - step * TOKENS)[None, :])
            asked = tl.load(base + (place[:, None] * q_t + feature[None, :]), mask=there, other=0.0)
        coming = tile_at(first_of(of_reads, row, head, first, r_b, r_t, r_h), r_t, place, column, inside, VALUES)
        if PAGE > VALUES:
            mass = first_in_line(of_mass, row, head, first, length, heads, 1) + place * heads
            mass = tl.load(mass, mask=inside, other=0.0)[:, None]
            coming = tl.where((column == VALUES)[None, :], mass, coming.to(tl.float32))
        page = product(tl.trans(coming), asked, PRECISION, page)
    base = ends + (line * parts + piece - 1).to(tl.int64) * (FEATURES * PAGE)
    there = (column < PAGE)[:, None] & (feature < FEATURES)[None, :]
    tl.store(base + (feature[None, :] * PAGE + column[:, None]), page, mask=there)


def cut_back(page: int, size: int, chunk: int, ready: bool) -> tuple[int, int, int, int]:
    """Columns of the page in a program of `read_back_kernel`, tokens at a time, warps, and how far ahead they are read.

    Of numbers that are ready in bfloat16 so many that groups of warps multiply them: in a loop with one product, whose
    sides nothing else is done with, Triton has these right.
    """
    if not ready:
        return BAND.value, chunk, max(1, size // 32), 2
    columns = min(64 if size > 128 else 128, holding(page))
    return columns, 64, max(1, min(8, columns * size // 1024)), 2 if size > 128 else 3
