"""The door to the memory scan.

memory ← keep · memory
memory ← memory + key ⊗ (write · value − erase · recall)        recall = keyᵀ memory
read   = queryᵀ memory
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..axes import check_axes
from ..gates import Gates
from . import chunked, recurrent, reference

BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "reference": reference.scan,
    "recurrent": recurrent.scan,
    "chunked": chunked.scan,
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
    backend: str | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """queries, keys `b t h k`, values `b t h v`, memory `b h k v` -> reads `b t h v`, memory after the last token.

    The arithmetic is done in the type of the memory, at least float32; reads come back in the type of the values.
    """
    sizes = check(queries, keys, values, gates, memory)
    dtype = memory_dtype(values.dtype if memory is None else torch.promote_types(memory.dtype, values.dtype))
    if memory is None:
        memory = values.new_zeros(sizes["b"], sizes["h"], sizes["k"], sizes["v"], dtype=dtype)
    backend = choose_backend(sizes["t"]) if backend is None else backend
    if backend not in BACKENDS:
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if chunk is not None and backend != "chunked":
        raise BackendRefused(f"a chunk size means something to the chunked backend only, not to {backend!r}")
    if chunk is not None and chunk < 1:
        raise BackendRefused(f"a chunk holds at least one token; found a size of {chunk}")
    options = {} if chunk is None else {"chunk": chunk}
    inputs = (x.to(dtype) for x in (queries, keys, values))
    with full_precision(values.device.type):
        reads, after = BACKENDS[backend](*inputs, gates.to(dtype), memory.to(dtype), **options)
    return reads.to(values.dtype), after


def full_precision(device: str) -> AbstractContextManager:
    """Autocast would round the page at every product."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def choose_backend(length: int) -> str:
    return "recurrent" if length == 1 else "chunked"


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """A page is written thousands of times: half precision would lose what is added."""
    return torch.promote_types(dtype, torch.float32)


def check(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor | None) -> dict[str, int]:
    per_feature = gates.log_keep is not None and gates.log_keep.ndim == 4
    sizes = check_axes(
        queries=(queries, "b t h k"),
        keys=(keys, "b t h k"),
        values=(values, "b t h v"),
        log_keep=(gates.log_keep, "b t h k" if per_feature else "b t h"),
        erase=(gates.erase, "b t h"),
        write=(gates.write, "b t h"),
        memory=(memory, "b h k v"),
    )
    if 0 in sizes.values():
        empty = " and ".join(axis for axis, size in sizes.items() if size == 0)
        raise ValueError(f"a segment has at least one row, one token and one number of each kind; found no {empty}")
    return sizes
