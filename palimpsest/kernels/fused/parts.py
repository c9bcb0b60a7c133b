"""Parts of a sequence that start at once: from the page that each is handed alone to the one it really starts from."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
import triton
import triton.language as tl
from torch import Tensor

from .bands import BAND
from .features import holding
from .launching import Way
from .products import product

TILE = 4096  # numbers of P that are multiplied at once


@triton.jit
def parts_kernel(
    first, turning, pages, parts,
    FEATURES: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr, SHARE: tl.constexpr, REVERSED: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`pages` [lines, parts, k, v] hold what the part before makes of a bare page, or of `first` if it is the first.

    In their place goes the page that each part starts from, S ← own + P S, with `turning` [lines, parts - 1, k, k] for
    P; where there is none, parts add up. REVERSED, the last part is first, and P is turned. A program has a band of
    columns of a line's page, turned as in `carry`, which is multiplied with P a share of its features after the other.
    """
    SLICES: tl.constexpr = (PAGE + BAND - 1) // BAND
    SHARES: tl.constexpr = SIZE // SHARE
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
    page = tl.load(base + (begin + onward) * (FEATURES * PAGE) + on_page, mask=there, other=0.0)
    if turning is None:
        for step in tl.range(2, parts, num_stages=STAGES):
            at = base + (begin + onward * step) * (FEATURES * PAGE) + on_page
            page += tl.load(at, mask=there, other=0.0)
            tl.store(at, page, mask=there)
    else:
        turning += line.to(tl.int64) * (parts - 1) * (FEATURES * FEATURES)
        found = tl.zeros((BAND, SIZE), tl.float32)
        # one loop over parts and shares, so that what is multiplied next is always on its way
        for turn in tl.range((parts - 2) * SHARES, num_stages=STAGES):
            share, piece = turn % SHARES, begin + onward * (1 + turn // SHARES)
            asked = share * SHARE + tl.arange(0, SHARE)[:, None]
            on_tile = asked * FEATURES + feature if REVERSED else feature * FEATURES + asked
            tile = tl.load(
                turning + piece * (FEATURES * FEATURES) + on_tile,
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
