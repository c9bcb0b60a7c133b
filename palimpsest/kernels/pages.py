"""The pages of a delta memory at every token, where nothing that is written depends on what is read.

What each token adds to its page (its note) is found for all chunks in parallel; inside a chunk the pages themselves
are then one rank-one step after another. Only who reads them has to go token by token.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .activations import ON_CHIP, Activation
from .chunked import carry, fold, overlap
from .scan import BackendRefused
from .trust import INTERPRETED, trusted, why_no_kernels

CHUNK = 16  # tokens whose pages are there at once
FORMS = ("plain", "fused")
WIDEST = 64  # a page that a fused form can keep on chip


class Written(NamedTuple):
    """Time comes first; rows and heads are one axis."""

    pages: Tensor  # n (b h) k v, as each chunk finds them
    keys: Tensor  # n c (b h) k
    notes: Tensor  # n c (b h) v


def write(keys: Tensor, values: Tensor, betas: Tensor, memory: Tensor) -> tuple[Written, Tensor]:
    """keys `b t h k`, values `b t h v`, betas `b t h`, memory `b h k v`; also the memory after the last token."""
    chunk = min(keys.shape[1], CHUNK)
    k, v, beta = (fold(x, chunk) for x in (keys, values, betas))
    erased = beta * k
    unsolved = torch.cat([beta * v, erased], dim=-1)
    system = overlap(erased, k, None)
    solved = torch.linalg.solve_triangular(system.mT, unsolved.mT, upper=True, left=False, unitriangular=True).mT
    fresh, recall = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    pages, notes, after = carry(fresh, recall, k, None, memory.flatten(0, 1))
    time_first = (x.permute(1, 2, 0, 3).contiguous() for x in (k, notes))
    return Written(pages.transpose(0, 1).contiguous(), *time_first), after.view_as(memory)


def replay(page: Tensor, keys: Tensor, notes: Tensor) -> list[Tensor]:
    """The page after each token of a chunk, given its keys and notes in shapes whose product is a page's."""
    pages = []
    for key, note in zip(keys.unbind(), notes.unbind(), strict=True):
        page = torch.addcmul(page, key, note)  # on a CPU many times faster than a product of matrices
        pages.append(page)
    return pages


def gradient_of_reading(written: Written, queries: Tensor, gradient: Tensor) -> Written:
    """Of all that was written, given the queries `t (b h) k` and the gradient `t (b h) v` of what they read."""
    chunk = written.keys.shape[1]
    queries, gradient = (by_chunk(x, chunk) for x in (queries, gradient))
    keys, notes = (x.transpose(1, 2) for x in written[1:])
    of_notes = (queries @ keys.mT).tril().mT @ gradient
    of_keys = (gradient @ notes.mT).tril().mT @ queries
    return Written(queries.mT @ gradient, of_keys.transpose(1, 2), of_notes.transpose(1, 2))


def by_chunk(x: Tensor, chunk: int) -> Tensor:
    """`t (b h) x` -> `n (b h) c x`, with tokens that read nothing after the last."""
    missing = -len(x) % chunk
    x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
    return x.unflatten(0, (-1, chunk)).transpose(1, 2)


def time_first(x: Tensor) -> Tensor:
    """`b t h …` -> `t (b h) …`"""
    return x.transpose(0, 1).flatten(1, 2)


def rows_first(x: Tensor, batch: int) -> Tensor:
    """`t (b h) …` -> `b t h …`"""
    return x.unflatten(1, (batch, -1)).transpose(0, 1)


def choose_form(kernel: str, backend: str | None, page: Tensor, dtype: torch.dtype, *activations: Activation) -> str:
    """The fused form of a recurrence where it runs and is right, unless one is asked for; dtype is the arithmetic's."""
    if backend not in (None, *FORMS):
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(FORMS)}")
    reason = why_not_fused(page, dtype, *activations)
    if backend == "fused" and reason is not None:
        raise BackendRefused(reason)
    if backend is None:
        possible = reason is None and page.is_cuda
        return "fused" if possible and trusted(kernel, page.device) else "plain"
    return backend


def why_not_fused(page: Tensor, dtype: torch.dtype, *activations: Activation) -> str | None:
    if missing := why_no_kernels():
        return missing
    if page.device.type != "cuda" and not (INTERPRETED and page.device.type == "cpu"):
        return f"the fused form is for CUDA tensors; found one on {page.device}"
    if dtype != torch.float32:
        return f"the fused form has float32 pages; found {dtype}"
    if page.shape[-1] > WIDEST:
        return f"the fused form has heads of up to {WIDEST} numbers; found {page.shape[-1]}"
    if unknown := [type(each).__name__ for each in activations if type(each) not in ON_CHIP]:
        return f"the fused form does not know {' and '.join(unknown)}"
    return None
