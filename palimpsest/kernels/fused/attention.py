"""Fused relative attention as one torch operation, and its gradient as another: what is launched, and with what."""

# pyright: reportCallIssue=false, reportArgumentType=false
# A kernel is called with the arguments of its launch beside its own.

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...relative import Relative
from ..trust import INTERPRETED
from . import attention_kernels as kernels
from .features import holding
from .launching import AMPLE, Way, compiled_for, launch, layout_of, product_dtype, room_of
from .operation import Operation

WIDEST = 256  # of a head's keys and values
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Launch(NamedTuple):
    tile: int  # queries, and keys
    warps: int
    stages: int


class Settings(NamedTuple):
    forward: Launch
    queries: Launch  # of their gradients
    keys: Launch
    programs: int  # as many as keep the device busy

    def numbers(self) -> list[int]:
        return [*self.forward, *self.queries, *self.keys, self.programs]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Settings":
        return cls(Launch(*numbers[:3]), Launch(*numbers[3:6]), Launch(*numbers[6:9]), numbers[9])


def settings_for(width: int, dtype: torch.dtype, spans: bool, room: int = AMPLE) -> Settings:
    """For heads whose keys or values, whichever are wider, have this width, with spans of their own or not.

    A program has so many bytes of shared memory.
    """
    if dtype == torch.float32:
        launch = Launch(32 if width <= 64 else 16, 8, 1)
        return Settings(launch, launch, launch, programs=264)
    if width <= 64:
        return Settings(Launch(64, 4, 3), Launch(64, 4, 2), Launch(64, 4, 1 if spans else 2), programs=528)
    if width <= 128:
        launch = Launch(32, 4, 2)
        return Settings(Launch(64, 4, 2), launch, launch, programs=528)
    launch = Launch(32, 8, 2) if room >= AMPLE else Launch(16, 8, 1)
    return Settings(launch, launch, launch, programs=264)


def refusal(queries: Tensor, values: Tensor) -> str | None:
    """Why this cannot be done here, if it cannot."""
    if queries.device.type != "cuda" and not INTERPRETED:
        return f"the fused backend needs a CUDA device; found {queries.device}"
    if queries.dtype not in DTYPES:
        found = str(queries.dtype).removeprefix("torch.")
        return f"the fused backend knows queries of float32, bfloat16 or float16; found {found}"
    widest = WIDEST if room_of(queries.device) >= AMPLE or product_dtype(queries) != torch.float32 else WIDEST // 2
    if max(queries.shape[-1], values.shape[-1]) > widest:
        return f"the fused backend has heads of at most {widest} here; found {queries.shape[-1]} and {values.shape[-1]}"
    return None


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    reach: int,
    relative: Relative | None,
    mask: Tensor | None,
    persistent: tuple[Tensor, Tensor] | None,
    empty: Tensor | None,
    dropout: float,
    settings: Settings | None = None,
) -> Tensor:
    device, dtype = queries.device, product_dtype(queries)
    places, table, bias = (None, None, None) if relative is None else relative
    vectors = (None, None) if persistent is None else persistent
    if settings is None:
        width = max(queries.shape[-1], values.shape[-1])
        settings = settings_for(width, dtype, mask is not None, room_of(device))
    return relative_attention(
        *(None if x is None else multiplied(x, dtype) for x in (queries, keys, values, places, table)),
        *(None if x is None else x.float() for x in (bias, mask)),
        *(None if x is None else multiplied(x, dtype) for x in vectors),
        empty,
        torch.randint(2**31 - 1, (1,), device=device, dtype=torch.int32) if dropout > 0 else None,
        reach,
        dropout,
        settings.numbers(),
    )[0]


def multiplied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As the kernels take it: in the type of the products, with each vector in one piece."""
    x = x if x.dtype == dtype else x.to(dtype)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


# ------------------------------------------------------------------------------------------------------ launching


@lru_cache
def constants_for(key: int, value: int, tile: int, dtype: torch.dtype) -> dict[str, Any]:
    """In the order in which the kernels take them."""
    return {
        "KEY": key,
        "VALUE": value,
        "KEYS": holding(key),
        "VALUES": holding(value),
        "TILE": tile,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }


@lru_cache
def distance_constants_for(key: int, tile: int) -> dict[str, Any]:
    lanes = holding(key)
    parts = max(1, lanes * tile // 1024)
    return {"KEY": key, "KEYS": lanes, "TILE": tile, "PARTS": parts, "DEPTH": 8}


class Problem:
    """The inputs of both operations as the kernels take them: tensors with their steps, and sizes."""

    def __init__(self, inputs: Sequence, *others: Tensor):
        *tensors, self.reach, self.dropout, numbers = inputs
        queries, keys, values, places, table, bias, mask, vector_keys, vector_values, empty, seed = tensors
        self.compiled = compiled_for((layout_of((*tensors, *others)), self.reach, tuple(numbers)))
        self.settings = Settings.of(numbers)
        self.rows, self.length, self.heads, self.key = queries.shape
        self.slots, self.value, self.dtype = keys.shape[1], values.shape[-1], queries.dtype
        self.vectors = 0 if vector_keys is None else vector_keys.shape[1]
        self.lines = self.rows * self.heads
        self.tensors = dict(zip(NAMES, tensors, strict=True))
        self.seed, self.sizes = seed, (self.heads, self.length, self.slots)
        self.looks = None if mask is None else self.looks_of(mask)
        self.queries = tokens(queries)
        self.compared = (
            self.queries,
            tokens(keys),
            tokens(values),
            tokens(places),
            None if table is None else (table, 0, *table.stride()[:2]),
            None if bias is None else (bias, *bias.stride()),
            None if mask is None else (mask, mask.stride(1), mask.stride(0)),
            self.looks,
        )
        self.persistent = tuple(
            None if x is None else (x, 0, x.stride(1), x.stride(0)) for x in (vector_keys, vector_values)
        )
        self.chance = None if empty is None else (empty, *empty.stride()), seed

    def looks_of(self, mask: Tensor) -> Tensor:
        """How many distances each head `h` looks at."""
        looks = mask.new_empty(self.heads, dtype=torch.int32)
        arguments = ((mask, mask.stride(1), mask.stride(0)), looks, self.reach)
        self.launch("looks_kernel", (self.heads, 1, 1), arguments, {"TILE": 2048}, 8, 1)
        return looks

    def launch(
        self, name: str, grid: tuple[int, int, int], arguments: tuple, constants: dict, warps: int = 4, stages: int = 3
    ) -> None:
        way = partial(Way, grid, (), constants, warps, stages)
        launch(self.compiled, name, getattr(kernels, name), arguments, way)

    def launch_tiles(self, name: str, grid: tuple[int, int, int], arguments: tuple, work: Launch) -> None:
        tile, warps, stages = work
        constants = constants_for(self.key, self.value, tile, self.dtype)
        self.launch(name, grid, arguments, constants, warps, stages)

    def like(self, name: str) -> Tensor | None:
        """A place for the gradient of an input, in one piece."""
        x = self.tensors[name]
        return None if x is None else x.new_empty(x.shape)


def tokens(x: Tensor | None) -> tuple | None:
    return None if x is None else (x, *x.stride()[:3])


def tiles_of(tokens: int, launch: Launch) -> int:
    return -(-tokens // launch.tile)


# --------------------------------------------------------------------------------------------------- the operations

NAMES = (
    "queries", "keys", "values", "places", "table", "bias", "mask", "vector_keys", "vector_values", "empty", "seed"
)  # fmt: skip
LEARNED = 9  # the first of them
TENSORS = ", ".join(f"Tensor{'' if number < 3 else '?'} {name}" for number, name in enumerate(NAMES))
INPUTS = f"{TENSORS}, int reach, float dropout, int[] settings"


def forward(*inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Reads `b t h v`; the logarithm to base two of each query's sum of weights, and its largest score, `b h t`."""
    reads, lse, largest = results(*inputs)
    with torch.cuda.device_of(reads):
        p = Problem(inputs)
        launch = p.settings.forward
        arguments = (
            *p.compared, *p.persistent, *p.chance, tokens(reads), lse, largest, *p.sizes, p.reach, p.vectors, p.dropout
        )  # fmt: skip
        p.launch_tiles("forward_kernel", (p.lines, tiles_of(p.length, launch), 1), arguments, launch)
    return reads, lse, largest


def results(queries: Tensor, keys: Tensor, values: Tensor, *_) -> tuple[Tensor, Tensor, Tensor]:
    rows, length, heads, _ = queries.shape
    reads = queries.new_empty(rows, length, heads, values.shape[-1])
    lse = queries.new_empty(rows, heads, length, dtype=torch.float32)
    return reads, lse, torch.empty_like(lse)


def backward(grads: list[Tensor], kept: list[Tensor], *inputs) -> list[Tensor]:
    """The gradients of the first nine inputs, of those that there are."""
    grad, (reads, lse, largest) = multiplied(grads[0], grads[0].dtype), kept
    with torch.cuda.device_of(grad):
        p = Problem(inputs, grad, reads)
        dots = torch.empty_like(lse)
        of_queries, of_places, sums = gradient_of_queries(p, grad, reads, lse, largest, dots)
        of_keys, of_values = gradient_of_keys(p, grad, lse, largest, dots)
        of_vectors = gradient_of_vectors(p, grad, lse, dots)
        of_distances = gradient_of_distances(p, *sums)
    found = (of_queries, of_keys, of_values, of_places, *of_distances, *of_vectors)
    return [x for x in found if x is not None]


def groups_of(p: Problem) -> int:
    """How many programs share the query tiles of a row and head; each has sums for all distances of its own."""
    tiles = tiles_of(p.length, p.settings.queries)
    alone = p.tensors["table"] is None and p.tensors["mask"] is None
    return tiles if alone else min(tiles, max(1, p.settings.programs // p.lines))


def gradient_of_queries(p: Problem, grad: Tensor, reads: Tensor, lse: Tensor, largest: Tensor, dots: Tensor):
    launch, groups = p.settings.queries, groups_of(p)
    shape = (p.rows, groups, p.heads, (tiles_of(p.reach, launch) + 1) * launch.tile)
    of_queries, of_places = p.like("queries"), p.like("places")
    sums = tuple(
        None if p.tensors[name] is None else lse.new_empty(*shape, *width)
        for name, width in (("table", (holding(p.key),)), ("bias", ()), ("mask", ()))
    )
    arguments = (
        *p.compared, *p.persistent, *p.chance, tokens(reads), tokens(grad), lse, largest, dots,
        tokens(of_queries), tokens(of_places), *sums, *p.sizes, p.reach, p.vectors, p.dropout,
    )  # fmt: skip
    p.launch_tiles("queries_kernel", (p.lines, groups, 1), arguments, launch)
    return of_queries, of_places, sums


def gradient_of_keys(p: Problem, grad: Tensor, lse: Tensor, largest: Tensor, dots: Tensor):
    launch = p.settings.keys
    of_keys, of_values = p.like("keys"), p.like("values")
    arguments = (
        *p.compared, *p.chance, tokens(grad), lse, largest, dots, tokens(of_keys), tokens(of_values),
        *p.sizes, p.reach, p.dropout,
    )  # fmt: skip
    tiles = tiles_of(p.slots - p.length, launch) + tiles_of(p.length, launch)
    p.launch_tiles("keys_kernel", (p.lines * tiles, 1, 1), arguments, launch)
    return of_keys, of_values


def gradient_of_distances(p: Problem, *sums: Tensor | None):
    """Of table, bias and mask."""
    found = p.like("table"), p.like("bias"), p.like("mask")
    if any(x is not None for x in found):
        constants = distance_constants_for(p.key, p.settings.queries.tile)
        arguments = (*sums, p.looks, *found, p.rows, *p.sizes, p.reach, groups_of(p))
        programs = tiles_of(p.reach, p.settings.queries) * constants["PARTS"]
        p.launch("distances_kernel", (programs, p.heads, 1), arguments, constants)
    return found


def gradient_of_vectors(p: Problem, grad: Tensor, lse: Tensor, dots: Tensor):
    if not p.vectors:
        return p.like("vector_keys"), p.like("vector_values")
    launch = p.settings.keys
    tiles = tiles_of(p.vectors, launch)
    parts = min(p.rows * tiles_of(p.length, launch), max(1, p.settings.programs // (p.heads * tiles)))
    sums = [lse.new_empty(parts, p.heads, p.vectors, width) for width in (p.key, p.value)]
    arguments = (
        p.queries, *p.persistent, p.seed, tokens(grad), lse, dots,
        *((x, x.stride(0), x.stride(2), x.stride(1)) for x in sums),
        p.rows, *p.sizes, p.vectors, p.dropout,
    )  # fmt: skip
    p.launch_tiles("vectors_kernel", (p.heads, tiles, parts), arguments, launch)
    return [x.sum(0).to(grad.dtype) for x in sums]


relative_attention = Operation("relative_attention", INPUTS, forward, backward, results, learned=LEARNED, kept_from=0)
