"""The door to what a softmax over a vocabulary costs, without ever having all of its logits.

logits    = weight · hidden + bias
partition = log Σ exp logits
nats      = partition − the target's logit
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from ..axes import check_axes
from .scan import BackendRefused
from .trust import trusted, why_no_kernels

FEW = 1024  # tokens whose logits are so few that nothing is gained by not having them
NO_TARGET = torch.iinfo(torch.int64).min  # for torch, which else takes -100 for none
WIDE = 256  # hidden states for which making logits again costs more than having them


def fused(*arguments, **options) -> Tensor:
    from .fused.cross_entropy import nats_of  # where there is no GPU there may be no triton

    return nats_of(*arguments, **options)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    counted: Tensor | None = None,
    z_loss: float = 0.0,
    smoothing: float = 0.0,
    chunk: int | None = None,
    backend: str | None = None,
) -> Tensor:
    """hidden `rows d`, weight `tokens d`, bias `tokens`, targets `rows` -> nats `rows`, at least float32.

    Their gradient is that of (1 − smoothing) · nats + smoothing · the mean of all tokens' + z_loss · partition². Rows
    that are not `counted` cost nothing and learn nothing, whatever their targets are; the target of every other is a
    token, as there is no number, such as -100, that means none. No more than `chunk` logits are held at once where any
    are: by default 2**22, on a GPU 2**28.
    """
    sizes = check_axes(
        hidden=(hidden, "rows d"),
        weight=(weight, "tokens d"),
        bias=(bias, "tokens"),
        targets=(targets, "rows"),
        counted=(counted, "rows"),
    )
    backend = choose_backend(hidden, weight, counted) if backend is None else backend
    if backend not in CROSS_ENTROPY_BACKENDS:
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(CROSS_ENTROPY_BACKENDS)}")
    if backend == "fused" and (refused := why_not_fused(hidden, weight)):
        raise BackendRefused(refused)
    given = (hidden, weight, bias, targets, counted, z_loss, smoothing)
    if backend != "pieces":
        return CROSS_ENTROPY_BACKENDS[backend](*given)
    chunk = (2**28 if hidden.is_cuda else 2**22) if chunk is None else chunk
    return pieces(*given, rows=max(1, chunk // max(1, sizes["tokens"])))


def choose_backend(hidden: Tensor, weight: Tensor, counted: Tensor | None) -> str:
    faster = len(weight) >= FEW and hidden.shape[1] <= WIDE
    wanted = faster or counted is not None  # to pick rows in another way is to wait for their number
    possible = hidden.is_cuda and wanted and why_not_fused(hidden, weight) is None
    return "fused" if possible and trusted("linear_cross_entropy", hidden.device) else "pieces"


def why_not_fused(hidden: Tensor, weight: Tensor) -> str | None:
    if missing := why_no_kernels():
        return missing
    from .fused.cross_entropy import refusal

    return refusal(hidden, weight)


# ------------------------------------------------------------------------------------------------------- plain forms


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """At least float32."""
    logits = linear(hidden, weight, bias)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def at_once(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, z_loss: float, smoothing: float
) -> Tensor:
    logits = logits_of(hidden, weight, bias)
    nats = cross_entropy(logits, targets, reduction="none", ignore_index=NO_TARGET)
    if not (z_loss or smoothing):
        return nats
    partition = logits.logsumexp(-1)
    unseen = z_loss * partition.square() + smoothing * (partition - logits.mean(-1) - nats)
    return nats + (unseen - unseen.detach())  # a zero, so that who masks, adds and divides nats does it to both


def reference(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    counted: Tensor | None,
    z_loss: float,
    smoothing: float,
) -> Tensor:
    if counted is None:
        return at_once(hidden, weight, bias, targets, z_loss, smoothing)
    return at_once(hidden, weight, bias, targets.where(counted, 0), z_loss, smoothing).where(counted, 0.0)


def pieces(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    counted: Tensor | None,
    z_loss: float,
    smoothing: float,
    rows: int,
) -> Tensor:
    """So many rows at once; if there are more of them, their logits are made again in the backward pass."""

    def nats(hidden: Tensor, targets: Tensor) -> Tensor:
        return at_once(hidden, weight, bias, targets, z_loss, smoothing)

    def in_pieces(hidden: Tensor, targets: Tensor) -> Tensor:
        if len(targets) <= rows:
            return nats(hidden, targets)
        split = zip(hidden.split(rows), targets.split(rows), strict=True)
        return torch.cat([checkpoint(nats, *piece, use_reentrant=False) for piece in split])

    if counted is None:
        return in_pieces(hidden, targets)
    if shapes_are_fixed(hidden):
        return in_pieces(hidden, targets.where(counted, 0)).where(counted, 0.0)
    picked = counted.nonzero().squeeze(1)
    found = in_pieces(hidden.index_select(0, picked), targets.index_select(0, picked))
    return found.new_zeros(len(targets)).index_copy(0, picked, found)


def shapes_are_fixed(hidden: Tensor) -> bool:
    """Whether torch.compile looks on or a CUDA graph is recorded: then the host cannot ask how many rows count."""
    return torch.compiler.is_compiling() or (hidden.is_cuda and torch.cuda.is_current_stream_capturing())


CROSS_ENTROPY_BACKENDS: dict[str, Callable[..., Tensor]] = {"reference": reference, "pieces": pieces, "fused": fused}
