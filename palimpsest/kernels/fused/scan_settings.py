"""How the work of the memory scan is cut."""

from dataclasses import dataclass

import torch
import triton

from ...look import PRODUCTS
from . import bands
from .features import holding
from .launching import AMPLE, VAST
from .prepare_kernels import SHARE

BAND = bands.BAND.value  # columns


@dataclass(frozen=True)
class Settings:
    """How the work is cut: tokens of a chunk, columns of the page in a program, warps of each kernel."""

    chunk: int
    columns: int
    gradient_columns: int
    gradient_warps: int
    prepare_warps: int = 1
    carry_warps: int = 4
    back_warps: int = 4
    stages: int = 3
    gradient_stages: int = 2
    parts: int = 1  # of the sequence, which start at the same time


def many_made(map: str, features: int) -> bool:
    """Whether features are made by a product, and so many that it leaves little room for them."""
    return map in PRODUCTS and features >= 2 * SHARE.value


def settings_for(
    lines: int,
    length: int,
    features: int,
    values: int,
    keep: str,
    erases: bool,
    map: str,
    dtype: torch.dtype,
    processors: int,
    room: int,
) -> Settings:
    """Found by trying on an H200; elsewhere they are as right, if not as fast.

    There are so many processors, on which a program has so many bytes of shared memory.
    """
    if max(features, values) <= 16 and dtype != torch.float32:  # a second warp would multiply the same again
        return Settings(16, 16, 16, 1, carry_warps=1, back_warps=1, stages=4)
    if dtype != torch.bfloat16:  # whose products are long enough as they are
        warps = 8 if features >= 128 else 4
        return Settings(16, 16, 16, warps, warps, warps, warps, stages=1, gradient_stages=1)
    small, wide, size = max(features, values) <= 64, features > 128, holding(values)
    made, many = map in PRODUCTS, many_made(map, features)
    # before Hopper, what is kept of each of so many features does not fit into registers for 32 tokens
    chunk = 16 if many or (keep == "features" and (wide or (features > 64 and room < VAST))) else 32
    # a warp has a band by itself; but where there are too many features for one, or all make them by products, they
    # have one together
    columns = BAND if made or wide else min(size, 64)
    warps = 8 if made and wide else 4 if made or wide else columns // BAND
    parts = 1
    if lines * triton.cdiv(values, min(columns, 32)) < processors:
        # what a part does to a page is as much work again, so that parts pay only where processors would be idle
        programs = lines * triton.cdiv(values, columns)
        parts = max(1, min(16, 2 * processors // programs, length // (64 * chunk)))
    elif lines * triton.cdiv(values, columns) < processors and (keep == "features" or not erases):
        columns, warps = 32, 2
    if many:
        return Settings(chunk, columns, min(size, 32), 8, 4, warps, warps, stages=1, parts=parts)
    prepare_warps = 2 if wide or keep == "features" else 1
    if keep == "features":  # what is kept of them fills registers and shared memory
        cut = min(size, 64), 4 if small or size == 16 else 8
        return Settings(chunk, columns, *cut, prepare_warps, warps, warps, stages=2, parts=parts)
    thin = size == 16 and features < 128
    few = (thin or (small and keep == "all")) and not (made and erases)  # sums leave a warp room for all features
    cut = min(size, 32 if small or wide or keep == "heads" else 64), 8 if wide else 2 if few else 4
    stages = 2 if wide and room < AMPLE else 5 if small and room >= AMPLE else 3
    gradient_stages = 2 if wide or room < AMPLE else 3
    return Settings(chunk, columns, *cut, prepare_warps, warps, warps, stages, gradient_stages, parts)
