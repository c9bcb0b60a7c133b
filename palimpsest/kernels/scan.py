"""The doors to the memory scan, without and with a count of its keys.

memory ← keep · memory
memory ← memory + key ⊗ (write · value − erase · recall)        recall = keyᵀ memory
read   = queryᵀ memory
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from ..axes import Shape, check_shapes, once_each
from ..gates import Gates
from ..look import Look
from . import chunked, recurrent, reference
from .precision import full_precision, memory_dtype
from .trust import HAS_TRITON, VERDICTS, trusted, why_no_kernels


@once_each
def fused_form() -> ModuleType:
    from .fused import scan  # where there is no GPU there may be no triton

    return scan


def fused(*arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    return fused_form().scan(*arguments)


BACKENDS: dict[str, Callable[..., tuple]] = {
    "reference": reference.scan,
    "recurrent": recurrent.scan,
    "chunked": chunked.scan,
    "fused": fused,
}


class BackendRefused(ValueError):
    """The backend asked for cannot do this; the message says why."""


def memory_scan(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates = Gates(),  # noqa: B008 (immutable)
    memory: Tensor | None = None,
    *,
    look: Look | None = None,
    backend: str | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """queries, keys `b t h k`, values `b t h v`, memory `b h k v` -> reads `b t h v`, memory after the last token.

    With a `look` queries and keys come raw, `b t h w`, and k is the number of features it makes of them. The
    arithmetic is done in the type of the memory, at least float32, but for the products of the fused form, which
    are as exact as the type of the values lets them be seen; reads come back in the type of the values.
    """
    fused_for_sure = HAS_TRITON and (backend == "fused" or (backend is None and known_good(queries))) and chunk is None
    if fused_for_sure and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        found = fused_form().scan_again(queries, keys, values, gates, memory, look)
        if found is not None:
            return found
    reads, after, _, _ = scanned(queries, keys, values, gates, memory, None, look, backend, chunk)
    return reads, after


def known_good(queries: Tensor) -> bool:
    """Whether the fused form was found to be right where they are."""
    return queries.is_cuda and VERDICTS.get(("memory_scan", queries.device), False)


def counted_scan(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor | None,
    column: Tensor,
    *,
    look: Look | None = None,
    backend: str | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, and column `b h k 1`, the sum of all keys -> reads, memory, mass = queryᵀ column `b t h`, column.

    The column fades as the page fades, and a key counts for as much as is written under it. Where keys are also
    erased, they count in full: how much stays under a key then depends on what was there before. Mass comes in the
    type of the column.
    """
    reads, after, mass, column_after = scanned(queries, keys, values, gates, memory, column, look, backend, chunk)
    assert mass is not None
    assert column_after is not None
    return reads, after, mass, column_after


def scanned(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor | None,
    column: Tensor | None,
    look: Look | None,
    backend: str | None,
    chunk: int | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    if backend is not None and backend not in BACKENDS:
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if chunk is not None and backend != "chunked":
        raise BackendRefused(f"a chunk size means something to the chunked backend only, not to {backend!r}")
    if chunk is not None and chunk < 1:
        raise BackendRefused(f"a chunk holds at least one token; found a size of {chunk}")
    if look is not None and not look.on_chip(queries.shape[-1]):
        queries, keys, look = look.of(queries), look.of(keys), None
    if backend is None:
        backend = choose_backend(queries, keys, values, gates, memory, look)
    elif backend == "fused" and (refused := why_not_fused(queries, keys, values, memory, look)):
        raise BackendRefused(refused)
    if backend != "fused" and look is not None:
        queries, keys, look = look.of(queries), look.of(keys), None
    sizes = check(queries, keys, values, gates, memory, column, look)
    if backend == "fused" and column is None:
        reads, after, _ = fused(queries, keys, values, gates, memory, look, False)
        return reads, after, None, None
    dtype = memory_dtype(values.dtype if memory is None else torch.promote_types(memory.dtype, values.dtype))
    if memory is None:
        memory = values.new_zeros(sizes["b"], sizes["h"], sizes["k"], sizes["v"], dtype=dtype)
    if backend == "fused" and column is not None:
        reads, page, mass = fused(queries, keys, values, gates, torch.cat([memory, column], dim=-1), look, True)
        return reads, page[..., :-1], mass, page[..., -1:]
    form = BACKENDS[backend] if chunk is None else partial(BACKENDS[backend], chunk=chunk)
    q, k, v = (x.to(dtype) for x in (queries, keys, values))
    inputs = (q, k, v, gates.opened().to(dtype), memory.to(dtype))
    with full_precision(values.device.type):
        if column is None:
            (reads, after), mass = form(*inputs), None
        else:
            reads, after, mass, column = counted(form, *inputs, column.to(dtype))
    return reads.to(values.dtype), after, mass, column


def counted(
    form: Callable[..., tuple[Tensor, ...]],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor,
    column: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One more column of the page, in which every key writes a one; a page of its own where the others are erased."""
    ones = torch.ones_like(values[..., :1])
    if gates.erase is None:
        reads, memory = form(queries, keys, torch.cat([values, ones], -1), gates, torch.cat([memory, column], -1))
        return reads[..., :-1], memory[..., :-1], reads[..., -1], memory[..., -1:]
    reads, memory = form(queries, keys, values, gates, memory)
    mass, column = form(queries, keys, ones, Gates(gates.log_keep), column)
    return reads, memory, mass.squeeze(-1), column


def choose_backend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates = Gates(),  # noqa: B008 (immutable)
    memory: Tensor | None = None,
    look: Look | None = None,
) -> str:
    possible = queries.is_cuda and why_not_fused(queries, keys, values, memory, look) is None
    if possible:
        learns = torch.is_grad_enabled()
        asked = partial(there_and_back, queries, keys, values, gates, memory, look, learns)
        if trusted(fused_form().kernel_for(queries, keys, values, gates, memory), queries.device, asked):
            return "fused"
    return "recurrent" if queries.shape[1] == 1 else "chunked"


def there_and_back(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor | None,
    look: Look | None,
    learns: bool,
) -> None:
    """The fused form of this, with the gradients that somebody who learns could ask for."""
    tensors = [x for x in (queries, keys, values, *gates[:3], memory) if x is not None]
    given = {id(x): x.detach().requires_grad_(learns and x.requires_grad) for x in tensors}
    queries, keys, values = (given[id(x)] for x in (queries, keys, values))
    memory = None if memory is None else given[id(memory)]
    gates = gates.each(lambda gate: given[id(gate)])
    reads, _ = memory_scan(queries, keys, values, gates, memory, look=look, backend="fused")
    if leaves := [x for x in given.values() if x.requires_grad]:
        torch.autograd.grad(reads, leaves, reads.detach(), allow_unused=True)


def why_not_fused(
    queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor | None, look: Look | None
) -> str | None:
    if missing := why_no_kernels():
        return missing
    return fused_form().refusal(queries, keys, values, memory, look)


def check(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    gates: Gates,
    memory: Tensor | None,
    column: Tensor | None,
    look: Look | None,
) -> dict[str, int]:
    features = None if look is None else look.features(queries.shape[-1])
    tensors = (queries, keys, values, *gates[:3], memory, column)
    return sizes_of(features, *[None if x is None else x.shape for x in tensors])


@once_each
def sizes_of(
    features: int | None,
    queries: Shape,
    keys: Shape,
    values: Shape,
    log_keep: Shape | None,
    erase: Shape | None,
    write: Shape | None,
    memory: Shape | None,
    column: Shape | None,
) -> dict[str, int]:
    """A look makes so many features; None where there is no look."""
    per_feature = log_keep is not None and len(log_keep) == 4
    raw = "b t h k" if features is None else "b t h w"
    sizes = check_shapes(
        queries=(queries, raw),
        keys=(keys, raw),
        values=(values, "b t h v"),
        log_keep=(log_keep, "b t h k" if per_feature else "b t h"),
        erase=(erase, "b t h"),
        write=(write, "b t h"),
        memory=(memory, "b h k v"),
        column=(column, "b h k 1"),
    )
    if column is not None and sizes.pop("1") != 1:
        raise ValueError(f"column: expected the axes b h k 1, found the shape {tuple(column)}")
    if features is not None and sizes.setdefault("k", features) != features:
        raise ValueError(f"the look makes {features} features of {sizes['w']} numbers, but the memory has {sizes['k']}")
    if 0 in sizes.values():
        empty = " and ".join(axis for axis, size in sizes.items() if size == 0)
        raise ValueError(f"a segment has at least one row, one token and one number of each kind; found no {empty}")
    return sizes
