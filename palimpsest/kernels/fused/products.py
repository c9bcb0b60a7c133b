"""Products of tiles, as exact as they are asked to be."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Precision(NamedTuple):
    """Of products: of the triangular system, of what is carried, and of what is only read or handed back."""

    exact: str
    fine: str
    rough: str
    saved: torch.dtype  # pages, for backward, and gradients on their way


PRECISIONS = {
    torch.float32: Precision("ieee", "ieee", "ieee", torch.float32),
    torch.float16: Precision("tf32x3", "tf32x3", "tf32x3", torch.float32),
    torch.bfloat16: Precision("split", "split", "half", torch.bfloat16),
}


@triton.jit
def product(left, right, PRECISION: tl.constexpr, onto=None):
    """A float32 tile of two float32 or half tiles, added onto another if there is one.

    "half" rounds both to bfloat16; "split" takes what that loses as tiles of their own; "tf32" keeps 10 bits.
    """
    if PRECISION == "ieee" or PRECISION == "tf32" or PRECISION == "tf32x3":
        return tl.dot(left.to(tl.float32), right.to(tl.float32), acc=onto, input_precision=PRECISION)
    elif PRECISION == "half":
        return tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), acc=onto)
    else:
        tl.static_assert(PRECISION == "split")
        most_left, most_right = eight_bits(left), eight_bits(right)
        high_left, high_right = most_left.to(tl.bfloat16), most_right.to(tl.bfloat16)
        found = tl.dot(high_left, high_right, acc=onto)
        if right.dtype == tl.float32:
            found = tl.dot(high_left, (right - most_right).to(tl.bfloat16), acc=found)
        if left.dtype == tl.float32:
            found = tl.dot((left - most_left).to(tl.bfloat16), high_right, acc=found)
        return found


@triton.jit
def eight_bits(x):
    """As much of a float32 as bfloat16 holds, cut off: to round and see what that lost takes slow instructions."""
    if x.dtype == tl.float32:
        return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    else:
        return x
