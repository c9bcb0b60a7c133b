"""The axis alphabet, one letter for one meaning, in every docstring and pattern of the package.

b  row of the batch     t  time               d  width of the model
h  head                 k  feature of a key   v  number of a value
n  chunk of time        c  time in a chunk    s  slot of a cache, token of a source
r  distance             p  persistent vector  w  write of a token
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Shape = tuple[int, ...]
Found = TypeVar("Found")


def check_axes(**named: tuple[Tensor | None, str]) -> dict[str, int]:
    """Hold tensors to their patterns, `check_axes(keys=(keys, "b t h k"))`; returns the sizes found."""
    return check_shapes(**{name: (None if x is None else x.shape, pattern) for name, (x, pattern) in named.items()})


def once_each(find: Callable[..., Found]) -> Callable[..., Found]:
    """What was found for some shapes is not looked for again; torch.compile sees it looked for, as it must."""
    known = lru_cache(maxsize=1024)(find)
    return lambda *about: (find if torch.compiler.is_compiling() else known)(*about)


def check_shapes(**named: tuple[Shape | None, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, (shape, pattern) in named.items():
        if shape is None:
            continue
        axes = pattern.split()
        agrees = len(shape) == len(axes) and all(
            sizes.setdefault(axis, size) == size for axis, size in zip(axes, shape, strict=True)
        )
        if not agrees:
            known = " ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise ValueError(f"{name}: expected the axes {known}, found the shape {tuple(shape)}")
    return sizes
