"""Numbers held between bounds."""

import torch
from torch import Tensor


def bounded(x: Tensor, *, least: float | None = None, most: float | None = None) -> Tensor:
    """As torch's clamp; what stands at a bound has a gradient, for it may leave it, as a span of nothing has to.

    Torch's own had one there until 2.14, and has none since 2.15.
    """
    if least is not None:
        x = torch.where(x < least, least, x)
    return x if most is None else torch.where(x > most, most, x)
