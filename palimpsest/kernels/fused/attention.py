"""Fused relative attention as one torch operation, and its gradient as another: what is launched, and with what."""

# A kernel is called with the arguments of its launch beside its own.

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...relative import Relative
from ..trust import INTERPRETED
from . import attention_kernels as kernels
from .buffer import Buffer, tensors_in
from .features import holding
from .habits import Habit, Repeatable, accustom, again
from .launching import AMPLE, FAR, VAST, Way, in_line, known_of, launch, layout_of, once, product_dtype, room_of
from .operation import Operation, watched
from .repeating import RECORDING, Recording, Some, repeated, there
from .tuned import tuned

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


def settings_for(width: int, dtype: torch.dtype, room: int = VAST) -> Settings:
    """For heads whose keys or values, whichever are wider, have this width; programs have so much shared memory."""
    if dtype == torch.float32:
        launch = Launch(32 if width <= 64 else 16, 8, 1)
        return Settings(launch, launch, launch, programs=264)
    if width <= 64:
        return Settings(Launch(64, 4, 3), Launch(64, 4, 2), Launch(64, 4, 2), programs=528)
    if width <= 128:
        launch = Launch(32, 4, 2)
        return Settings(Launch(64, 4, 2), launch, launch, programs=528)
    launch = Launch(32, 8, 2) if room >= VAST else Launch(16, 8, 1)
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
    numbers = max(queries.shape[1], values.shape[1]) * queries.shape[2] * max(queries.shape[-1], values.shape[-1])
    if numbers >= FAR:
        return f"the fused backend has rows of less than {FAR:,} numbers; found {numbers:,}"
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
    tensors = (queries, keys, values, places, table, bias, mask, *vectors, empty)
    given, habits = there(tensors), None
    if torch.is_grad_enabled() and not watched():
        habits = habits_of(tensors, dtype, reach, dropout, settings)
        if found := again(habits, given):
            return found[0]
    if settings is None:
        width = max(queries.shape[-1], values.shape[-1])
        settings = settings_for(width, dtype, room_of(device))
    inputs = (
        *(None if x is None else multiplied(x, dtype) for x in tensors[:5]),
        *(None if x is None else x.float() for x in (bias, mask)),
        *(None if x is None else multiplied(x, dtype) for x in vectors),
        empty,
        torch.randint(2**31 - 1, (1,), device=device, dtype=torch.int32) if dropout > 0 else None,
        reach,
        dropout,
        settings.numbers(),
    )
    (reads,) = relative_attention(*inputs)
    if habits is not None:
        accustom(habits, REPEATABLE, given, inputs)
    return reads


def habits_of(tensors: Some, *about) -> list[Habit]:
    """Of passes with gradients, by all that is said beside tensors."""
    return known_of(("habits", *[x is None for x in tensors[3:]], *about)).setdefault("habits", [])


def multiplied(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As the kernels take it: in the type of the products, with each vector in one piece."""
    return in_line(x if x.dtype == dtype else x.to(dtype))


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
    """Each program adds up 256 numbers, of 32 others' sums at a time."""
    lanes = holding(key)
    parts = max(1, lanes * tile // 256)
    return {"KEY": key, "KEYS": lanes, "TILE": tile, "PARTS": parts, "DEPTH": 32}


class Problem:
    """All that the kernels are told beside the tensors: steps, sizes, and how the work is cut."""

    def __init__(self, known: dict, *inputs):
        queries, keys, values, places, table, bias, mask, vector_keys, vector_values, empty, _, *about = inputs
        self.known, (self.reach, self.dropout, numbers) = known, about
        self.settings = tuned("relative_attention", inputs, Settings.of(numbers))
        rows, self.length, heads, self.key = queries.shape
        self.slots, self.value, self.dtype = keys.shape[1], values.shape[-1], queries.dtype
        self.vectors = 0 if vector_keys is None else vector_keys.shape[1]
        self.rows, self.lines, self.sizes = rows, rows * heads, (heads, self.length, self.slots)
        self.steps = (
            *(None if x is None else x.stride()[:3] for x in (queries, keys, values, places)),
            None if table is None else (0, *table.stride()[:2]),
            None if bias is None else bias.stride(),
            None if mask is None else (mask.stride(1), mask.stride(0)),
            *(None if x is None else (0, x.stride(1), x.stride(0)) for x in (vector_keys, vector_values)),
            None if empty is None else empty.stride(),
            None,
        )
        work, alone = self.settings.queries, table is None and mask is None
        tiles, beyond = tiles_of(self.length, work), (tiles_of(self.reach, work) + 1) * work.tile
        # programs that share the query tiles of a row and head; each has sums for all distances of its own
        self.groups = tiles if alone else min(tiles, max(1, self.settings.programs // self.lines))
        summed = (rows, self.groups, heads, beyond)
        self.summed = (*summed, holding(self.key)), summed, summed  # of table, bias and mask

    def launch(
        self, name: str, grid: tuple[int, int, int], arguments: tuple, constants: dict, warps: int = 4, stages: int = 3
    ) -> None:
        way = partial(Way, grid, (), constants, warps, stages)
        launch(self.known, name, getattr(kernels, name), arguments, way)

    def launch_tiles(self, name: str, grid: tuple[int, int, int], arguments: tuple, work: Launch) -> None:
        tile, warps, stages = work
        constants = constants_for(self.key, self.value, tile, self.dtype)
        self.launch(name, grid, arguments, constants, warps, stages)


class Given(NamedTuple):
    """Tensors as the kernels take them, with their steps."""

    compared: tuple  # queries, keys, values, places, table, bias, mask, and how far each head looks
    persistent: tuple
    chance: tuple  # what is empty, and the seed


def given_to(p: Problem, tensors: Sequence[Tensor | None], looks: Tensor | None) -> Given:
    stepped = [x if steps is None else (x, *steps) for x, steps in zip(tensors, p.steps, strict=True)]
    return Given((*stepped[:7], looks), tuple(stepped[7:9]), tuple(stepped[9:]))


class Kept(NamedTuple):
    """What backward needs beside inputs and reads: rooms in a buffer, or the tensors there."""

    lse: Tensor  # b h t, the logarithm to base two of each query's sum of weights
    largest: Tensor  # b h t, its largest score
    looks: Tensor | None  # h 2, how many distances each head looks at, and how many of them have a whole share

    def of(self, buffer: Tensor) -> "Kept":
        return Kept(*tensors_in(buffer, self))


def rooms_for(queries: Tensor, mask: Tensor | None) -> tuple[Buffer, Kept]:
    rows, length, heads, _ = queries.shape
    buffer = Buffer()
    lse, largest = (buffer.room(rows, heads, length) for _ in range(2))
    return buffer, Kept(lse, largest, None if mask is None else buffer.room(heads, 2, dtype=torch.int32))


def tokens(x: Tensor | None) -> tuple | None:
    return None if x is None else (x, *x.stride()[:3])


def like(x: Tensor | None) -> Tensor | None:
    """A place for the gradient of an input, in one piece."""
    return None if x is None else x.new_empty(*x.shape)


def tiles_of(tokens: int, launch: Launch) -> int:
    return -(-tokens // launch.tile)


# --------------------------------------------------------------------------------------------------- the operations

NAMES = (
    "queries", "keys", "values", "places", "table", "bias", "mask", "vector_keys", "vector_values", "empty", "seed"
)  # fmt: skip
LEARNED = 9  # the first of them
TENSORS = ", ".join(f"Tensor{'' if number < 3 else '?'} {name}" for number, name in enumerate(NAMES))
INPUTS = f"{TENSORS}, int reach, float dropout, int[] settings"


def known_about(tensors: Some, about: Sequence) -> dict:
    """What was found out for tensors of a layout."""
    return known_of((layout_of(tensors), *about[:2], tuple(about[2])))


def forward(*inputs) -> Some:
    """Reads `b t h v`, and all that backward needs."""
    tensors, about = inputs[: len(NAMES)], inputs[len(NAMES) :]
    known = known_about(tensors, about)
    return repeated(known, tensors, lambda *given: read(known, given, about))


def read(known: dict, tensors: Some, about: Sequence) -> Some:
    p = once(known, "problem", lambda: Problem(known, *tensors, *about))
    reads, buffer = results(*tensors)
    lse, largest, looks = rooms_for(tensors[0], tensors[6])[1].of(buffer)
    given, work = given_to(p, tensors, looks), p.settings.forward
    if looks is not None:
        arguments = (given.compared[6], looks, p.reach)
        p.launch("looks_kernel", (len(looks), 1, 1), arguments, {"TILE": 2048}, 8, 1)
    arguments = (
        *given.compared, *given.persistent, *given.chance, tokens(reads), lse, largest,
        *p.sizes, p.reach, p.vectors, p.dropout,
    )  # fmt: skip
    p.launch_tiles("forward_kernel", (p.lines, tiles_of(p.length, work), 1), arguments, work)
    return reads, buffer


def results(*inputs) -> tuple[Tensor, Tensor]:
    queries, values, mask = inputs[0], inputs[2], inputs[6]
    return queries.new_empty(*queries.shape[:3], values.shape[-1]), rooms_for(queries, mask)[0].made_like(queries)


def backward(grads: Sequence[Tensor], kept: Sequence[Tensor], *inputs) -> Some:
    """The gradients of the first nine inputs."""
    tensors, about = inputs[: len(NAMES)], inputs[len(NAMES) :]
    reads, buffer = kept
    given = (*tensors, multiplied(grads[0], grads[0].dtype), reads)
    known = known_about(given, about)
    *found, _ = repeated(known, given, lambda *arrived: gradients(known, arrived, about), (buffer,))
    if tensors[7] is None or not tensors[7].shape[1]:
        return found
    return *found[:7], *(x.sum(0).to(grads[0].dtype) for x in found[7:] if x is not None)


def gradients(known: dict, arrived: Some, about: Sequence) -> Some:
    """And a buffer. Those of persistent vectors are in several parts, whose sum they are."""
    *tensors, grad, reads, buffer = arrived
    p = once(known, "problem", lambda: Problem(known, *tensors, *about))
    lse, largest, looks = rooms_for(tensors[0], tensors[6])[1].of(buffer)
    given, coming, found = given_to(p, tensors, looks), tokens(grad), [like(x) for x in tensors[:7]]
    own = Buffer()
    rooms = [own.room(*lse.shape)]
    rooms += [None if x is None else own.room(*shape) for x, shape in zip(found[4:], p.summed, strict=True)]
    made = own.made_like(lse)
    dots, *sums = tensors_in(made, rooms)
    gradient_of_queries(p, given, coming, reads, lse, largest, dots, sums, found)
    gradient_of_keys(p, given, coming, lse, largest, dots, found)
    gradient_of_distances(p, given, sums, found)
    of_vectors = gradient_of_vectors(p, given, coming, lse, dots) if p.vectors else map(like, tensors[7:9])
    return *found, *of_vectors, made


def gradient_of_queries(p: Problem, given: Given, coming: tuple, reads, lse, largest, dots, sums, found) -> None:
    """And of places, and what each program adds to table, bias and mask."""
    of_queries, _, _, of_places, *_ = found
    arguments = (
        *given.compared, *given.persistent, *given.chance, tokens(reads), coming, lse, largest, dots,
        tokens(of_queries), tokens(of_places), *sums, *p.sizes, p.reach, p.vectors, p.dropout,
    )  # fmt: skip
    p.launch_tiles("queries_kernel", (p.lines, p.groups, 1), arguments, p.settings.queries)


def gradient_of_keys(p: Problem, given: Given, coming: tuple, lse, largest, dots, found) -> None:
    """And of values."""
    work, (_, of_keys, of_values, *_) = p.settings.keys, found
    arguments = (
        *given.compared, *given.chance, coming, lse, largest, dots, tokens(of_keys), tokens(of_values),
        *p.sizes, p.reach, p.dropout,
    )  # fmt: skip
    tiles = tiles_of(p.slots - p.length, work) + tiles_of(p.length, work)
    p.launch_tiles("keys_kernel", (p.lines * tiles, 1, 1), arguments, work)


def gradient_of_distances(p: Problem, given: Given, sums: list, found) -> None:
    """Of table, bias and mask."""
    of_distances = found[4:7]
    if all(x is None for x in of_distances):
        return
    constants = distance_constants_for(p.key, p.settings.queries.tile)
    arguments = (*sums, given.compared[7], *of_distances, p.rows, *p.sizes, p.reach, p.groups)
    programs = tiles_of(p.reach, p.settings.queries) * constants["PARTS"]
    p.launch("distances_kernel", (programs, p.sizes[0], 1), arguments, constants)


def gradient_of_vectors(p: Problem, given: Given, coming: tuple, lse: Tensor, dots: Tensor) -> list[Tensor]:
    work, heads = p.settings.keys, p.sizes[0]
    tiles = tiles_of(p.vectors, work)
    parts = min(p.rows * tiles_of(p.length, work), max(1, p.settings.programs // (heads * tiles)))
    sums = [lse.new_empty(parts, heads, p.vectors, width) for width in (p.key, p.value)]
    arguments = (
        given.compared[0], *given.persistent, given.chance[1], coming, lse, dots,
        *((x, x.stride(0), x.stride(2), x.stride(1)) for x in sums),
        p.rows, *p.sizes, p.vectors, p.dropout,
    )  # fmt: skip
    p.launch_tiles("vectors_kernel", (heads, tiles, parts), arguments, work)
    return sums


relative_attention = Operation("relative_attention", INPUTS, forward, backward, results, learned=LEARNED, kept_from=0)


def recorded(*inputs) -> Recording | None:
    return known_about(inputs[: len(NAMES)], inputs[len(NAMES) :]).get(RECORDING)


def recorded_back(grads, kept, *inputs) -> Recording | None:
    """None, too, where the gradient does not come as the kernels take it, or those of vectors have to be added up."""
    tensors, about, (grad,) = inputs[: len(NAMES)], inputs[len(NAMES) :], grads
    arrived = multiplied(grad, grad.dtype)
    usual = tensors[7] is None and arrived is grad
    return known_about((*tensors, grad, kept[0]), about).get(RECORDING) if usual else None


REPEATABLE = Repeatable(relative_attention, recorded, recorded_back)
