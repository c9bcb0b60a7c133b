"""The axis alphabet, one letter for one meaning, in every docstring and pattern of the package.

b  row of the batch     t  time               d  width of the model
h  head                 k  feature of a key   v  number of a value
n  chunk of time        c  time in a chunk    s  slot of a cache, token of a source
r  distance             p  persistent vector  w  write of a token
"""

from torch import Tensor


def check_axes(**named: tuple[Tensor | None, str]) -> dict[str, int]:
    """Hold tensors to their patterns, `check_axes(keys=(keys, "b t h k"))`; returns the sizes found."""
    sizes: dict[str, int] = {}
    for name, (tensor, pattern) in named.items():
        if tensor is None:
            continue
        axes = pattern.split()
        agrees = tensor.ndim == len(axes) and all(
            sizes.setdefault(axis, size) == size for axis, size in zip(axes, tensor.shape, strict=True)
        )
        if not agrees:
            known = " ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
            raise ValueError(f"{name}: expected the axes {known}, found the shape {tuple(tensor.shape)}")
    return sizes
