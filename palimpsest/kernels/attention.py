"""The door to relative attention.

score  = query · key + place query · table[δ] + bias[δ]        δ: how many tokens the key lies before the query
weight = mask[δ] · exp(score) / the sum of that over all keys seen, those that belong to no token included
read   = Σ weight · value
"""

from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from ..axes import Shape, check_shapes, once_each
from ..relative import Relative
from . import attention_blocked, attention_plain, attention_reference
from .scan import BackendRefused
from .trust import trusted, why_no_kernels


@once_each
def fused_form() -> ModuleType:
    from .fused import attention  # where there is no GPU there may be no triton

    return attention


def fused(*arguments, **options) -> Tensor:
    return fused_form().attend(*arguments, **options)


ATTENTION_BACKENDS: dict[str, Callable[..., Tensor]] = {
    "reference": attention_reference.attend,
    "blocked": attention_blocked.attend,
    "plain": attention_plain.attend,
    "fused": fused,
}


def relative_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    relative: Relative | None = None,
    reach: int | None = None,
    mask: Tensor | None = None,
    persistent: tuple[Tensor, Tensor] | None = None,
    empty: Tensor | None = None,
    dropout: float = 0.0,
    backend: str | None = None,
    block: int | None = None,
) -> Tensor:
    """queries `b t h k`, keys `b s h k`, values `b s h v` -> reads `b t h v`; the last t keys are the queries' own.

    A query sees its own token and those before it, `reach` in all (None: every one), each weighted by the
    `mask` `h r` of its distance, and the `persistent` keys and values `h p k`, `h p v`. The first `empty` keys hold
    nothing for a query: `b t`, or `b` where that is so for all queries of a row. Tables and mask have a row for every
    distance that is seen.
    """
    sizes = check(queries, keys, values, relative, reach, mask, persistent, empty)
    plain = relative is None and mask is None and persistent is None
    backend = choose_backend(plain, queries, values) if backend is None else backend
    if backend not in ATTENTION_BACKENDS:
        raise BackendRefused(f"there is no backend {backend!r}; there are {', '.join(ATTENTION_BACKENDS)}")
    if backend == "plain" and not plain:
        raise BackendRefused("the plain backend knows products of queries and keys only: no tables, masks or vectors")
    if backend == "fused" and (refused := why_not_fused(queries, values)):
        raise BackendRefused(refused)
    if block is not None and (backend != "blocked" or block < 1):
        raise BackendRefused(f"a block is a number of queries for the blocked backend; found {block} for {backend!r}")
    seen = sizes["s"] if reach is None else min(reach, sizes["s"])
    options = {} if block is None else {"block": block}
    empty = empty[:, None].expand(-1, sizes["t"]) if empty is not None and empty.ndim == 1 else empty
    mask = mask if mask is None or mask.shape[1] == seen else mask[:, :seen]
    terms = (relative and relative.within(seen), mask, persistent)
    return ATTENTION_BACKENDS[backend](queries, keys, values, seen, *terms, empty, dropout, **options)


def choose_backend(plain: bool, queries: Tensor, values: Tensor) -> str:
    if plain:
        return "plain"
    possible = queries.is_cuda and why_not_fused(queries, values) is None
    return "fused" if possible and trusted("relative_attention", queries.device) else "blocked"


def skips_by_head(queries: Tensor) -> bool:
    """Whether the form for these compares each head with what its mask shows it, and with no more."""
    return choose_backend(False, queries, queries) == "fused"


def why_not_fused(queries: Tensor, values: Tensor) -> str | None:
    if missing := why_no_kernels():
        return missing
    return fused_form().refusal(queries, values)


def check(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    relative: Relative | None,
    reach: int | None,
    mask: Tensor | None,
    persistent: tuple[Tensor, Tensor] | None,
    empty: Tensor | None,
) -> dict[str, int]:
    tensors = (queries, keys, values, *(relative or (None,) * 3), mask, *(persistent or (None,) * 2), empty)
    return sizes_of(reach, *[None if x is None else x.shape for x in tensors])


@once_each
def sizes_of(
    reach: int | None,
    queries: Shape,
    keys: Shape,
    values: Shape,
    place_queries: Shape | None,
    table: Shape | None,
    bias: Shape | None,
    mask: Shape | None,
    vector_keys: Shape | None,
    vector_values: Shape | None,
    empty: Shape | None,
) -> dict[str, int]:
    sizes = check_shapes(
        queries=(queries, "b t h k"),
        keys=(keys, "b s h k"),
        values=(values, "b s h v"),
        place_queries=(place_queries, "b t h k"),
        table=(table, "r h k"),
        bias=(bias, "r h"),
        mask=(mask, "h m"),
        persistent_keys=(vector_keys, "h p k"),
        persistent_values=(vector_values, "h p v"),
        empty=(empty, "b" if empty is None or len(empty) == 1 else "b t"),
    )
    if 0 in (sizes[axis] for axis in "bthkv"):
        raise ValueError(f"nothing to attend with: queries {tuple(queries)}, values {tuple(values)}")
    if sizes["s"] < sizes["t"]:
        raise ValueError(f"the last {sizes['t']} keys are the queries' own, but there are {sizes['s']} in all")
    if reach is not None and reach < 1:
        raise ValueError(f"a query sees at least its own token; found a reach of {reach}")
    seen = sizes["s"] if reach is None else min(reach, sizes["s"])
    for name, rows in {"table": sizes.get("r"), "mask": sizes.get("m")}.items():
        if rows is not None and rows < seen:
            raise ValueError(f"{seen} distances are seen, but the {name} knows {rows}")
    return sizes
