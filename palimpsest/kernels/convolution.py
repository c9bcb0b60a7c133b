"""The door to short convolutions: every number becomes a weighted sum of the last few in its channel.

y[t] = Σ_back taps[size − 1 − back] · x[t − back]                  before the first token: what is remembered
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from ..axes import check_axes
from .precision import full_precision
from .scan import BackendRefused
from .trust import trusted, why_no_kernels


def fused(*arguments) -> Tensor:
    from .fused.convolution import convolved  # where there is no GPU there may be no triton

    return convolved(*arguments)


def short_convolution(x: Tensor, recent: Tensor, taps: Tensor, *, backend: str | None = None) -> Tensor:
    """x `b t channels`, recent `b size−1 channels`, taps `channels size` -> y `b t channels`, in the type of x.

    The last tap is for the present token; recent has the tokens before the first, the newest last.
    """
    sizes = check_axes(x=(x, "b t channels"), recent=(recent, "b before channels"), taps=(taps, "channels size"))
    if sizes["before"] != sizes["size"] - 1:
        raise ValueError(f"recent: expected {sizes['size'] - 1} tokens for {sizes['size']} taps, not {sizes['before']}")
    backend = choose_backend(x, recent, taps) if backend is None else backend
    if backend not in CONVOLUTION_BACKENDS:
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(CONVOLUTION_BACKENDS)}")
    if backend == "fused" and (refused := why_not_fused(x, recent, taps)):
        raise BackendRefused(refused)
    return CONVOLUTION_BACKENDS[backend](x, recent, taps)


def choose_backend(x: Tensor, recent: Tensor, taps: Tensor) -> str:
    possible = x.is_cuda and why_not_fused(x, recent, taps) is None
    return "fused" if possible and trusted("short_convolution", x.device) else "plain"


def why_not_fused(x: Tensor, recent: Tensor, taps: Tensor) -> str | None:
    if missing := why_no_kernels():
        return missing
    from .fused.convolution import refusal

    return refusal(x, recent, taps)


# ------------------------------------------------------------------------------------------------------- plain forms


def reference(x: Tensor, recent: Tensor, taps: Tensor) -> Tensor:
    return weighted(windows(joined(recent, x), taps.shape[1]), taps)


def plain(x: Tensor, recent: Tensor, taps: Tensor) -> Tensor:
    with full_precision(x.device.type):
        return conv1d(joined(recent, x).mT, taps.to(x.dtype)[:, None], groups=len(taps)).mT


def joined(recent: Tensor, x: Tensor) -> Tensor:
    return torch.cat([recent.to(x.dtype), x], dim=1)


def windows(seen: Tensor, size: int) -> list[Tensor]:
    """`b (t + size − 1) channels` -> `b t channels` for each tap, what it reads for each token"""
    length = seen.shape[1] - (size - 1)
    return [seen[:, first : first + length] for first in range(size)]


def weighted(heard: list[Tensor], taps: Tensor) -> Tensor:
    weights = taps.to(heard[0].dtype).unbind(1)
    return sum((tap * z for tap, z in zip(weights, heard, strict=True)), torch.zeros_like(heard[0]))


CONVOLUTION_BACKENDS: dict[str, Callable[..., Tensor]] = {"reference": reference, "plain": plain, "fused": fused}
