"""What Triton's interpreter has to learn.

It holds bfloat16 as bits, cuts numbers off to get there, and multiplies the bits. And it takes the outcome of a
comparison for whole numbers once that is spread over a tile, which since 3.8 is no mask to it. And at every call of a
function it puts itself in the place of Triton's language once more, which takes half of its time.
"""

from types import SimpleNamespace

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def teach_patience() -> None:
    """From here on it does so once a launch: with all of the language, as of functions called in it."""
    patch, everything = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    nothing, in_place = SimpleNamespace(restore=lambda: None), False

    def _patch_lang(function):
        nonlocal in_place
        if in_place:
            return nothing
        scope, in_place = patch(everything), True

        def restore():
            nonlocal in_place
            scope.restore()
            in_place = False

        return SimpleNamespace(restore=restore)

    interpreter._patch_lang = _patch_lang


def teach_bfloat16() -> None:
    """From here on the interpreter rounds to bfloat16 as a GPU does, and computes with what the bits mean."""
    cast, multiply, combine = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot, InterpreterBuilder.binary_op

    def cast_impl(self, x, kind):
        if is_bfloat16(x.dtype) == is_bfloat16(kind):
            return cast(self, x, kind)
        return rounded(x) if is_bfloat16(kind) else cast(self, meant(x), kind)

    def create_dot(self, left, right, added, *how):
        return multiply(self, meant(left), meant(right), added, *how)

    def binary_op(self, left, right, operation):
        if not is_bfloat16(left.dtype):
            return combine(self, left, right, operation)
        found = combine(self, meant(left), meant(right), operation)
        return rounded(found) if found.data.dtype == np.float32 else found

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.binary_op = binary_op


def teach_masks() -> None:
    """From here on whole numbers are masks too."""
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def create_masked_load(self, pointers, mask, *rest):
        return load(self, pointers, as_mask(mask), *rest)

    def create_masked_store(self, pointers, values, mask, *rest):
        return store(self, pointers, values, as_mask(mask), *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


def as_mask(mask: TensorHandle) -> TensorHandle:
    return TensorHandle(mask.data.astype(np.bool_), tl.int1)


def is_bfloat16(kind) -> bool:
    return kind.scalar == tl.bfloat16


def meant(x: TensorHandle) -> TensorHandle:
    """The same as float32, if it is bfloat16."""
    if not is_bfloat16(x.dtype):
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def rounded(x: TensorHandle) -> TensorHandle:
    nearest = torch.from_numpy(np.ascontiguousarray(x.data, dtype=np.float32)).bfloat16()
    return TensorHandle(nearest.view(torch.uint16).numpy(), tl.bfloat16)
