"""Products of tiles, as exact as they are asked to be."""

import triton
import triton.language as tl


@triton.jit
def product(left, right, PRECISION: tl.constexpr):
    """A float32 tile of two float32 or half tiles.

    "half" rounds both to bfloat16; "split" takes what that loses as tiles of their own; "tf32" keeps 10 bits.
    """
    if PRECISION == "ieee" or PRECISION == "tf32" or PRECISION == "tf32x3":
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision=PRECISION)
    elif PRECISION == "half":
        return tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    else:
        tl.static_assert(PRECISION == "split")
        high_left = left.to(tl.bfloat16)
        high_right = right.to(tl.bfloat16)
        found = tl.dot(high_left, high_right)
        if right.dtype == tl.float32:
            low = (right - high_right.to(tl.float32)).to(tl.bfloat16)
            found = tl.dot(high_left, low, acc=found)
        if left.dtype == tl.float32:
            low = (left - high_left.to(tl.float32)).to(tl.bfloat16)
            found = tl.dot(low, high_right, acc=found)
        return found
