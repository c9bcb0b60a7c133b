"""Exponentials and what is made of them, in as few instructions as a GPU has for them.

What Triton makes of `tl.exp` and of a division also minds numbers below 1e-38, which takes longer than all the rest.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def exp(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def one_by(x):
    """Of a positive number: the square of what there is an instruction for."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def sigmoid(x):
    return one_by(1.0 + exp(-x))


@triton.jit
def tanh(x):
    ebb = exp(-2 * tl.abs(x))
    y = (1.0 - ebb) * one_by(1.0 + ebb)
    return tl.where(x < 0, -y, y)
