"""A token of the memory scan where nobody asks for gradients, as in generation: the page is read and written once.

One launch, a program for some columns of one head's page. All arithmetic is in float32, and there are no products of
tiles: a page is worth as much time as its way from memory and back.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .elementary import exp, sigmoid
from .features import features_of_one, holding
from .launching import Way, known_of, launch, layout_of, processors_of, strides
from .operation import DEVICES, LIBRARY, watched

TOKENS = 4  # at most: a token may write several times, and each of them is one here
LIBRARY.define(
    "memory_decode(Tensor queries, Tensor keys, Tensor values, Tensor? log_keep, Tensor? erase, Tensor? write, "
    "Tensor memory, Tensor? matrix, str map, str scale, int nu, float floor, float epsilon, float factor, "
    "float limit, bool counts) -> (Tensor, Tensor, Tensor)"
)


class Settings(NamedTuple):
    """How the work is cut: columns of the page in a program, and its warps."""

    columns: int
    warps: int


@lru_cache(maxsize=1024)
def settings_for(lines: int, features: int, page: int, processors: int) -> Settings:
    """Narrow slices where there are few pages; a thread has 32 numbers of one, as far as that goes."""
    columns = min(triton.next_power_of_2(page), 32)
    if lines * triton.cdiv(page, columns) < processors:
        columns = min(columns, 16)
    return Settings(columns, max(1, min(8, holding(features) * columns // 1024)))


@triton.jit
def decode_kernel(
    queries, keys, values, log_keep, erase, write, memory, matrix, reads, last, mass,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    keep_b, keep_t, keep_h, erase_b, erase_t, erase_h, write_b, write_t, write_h,
    heads,
    LOOK: tl.constexpr, WIDTH: tl.constexpr, FEATURES: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    PAGE: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr, KEEP: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Where a page has one more column than there are values, every key writes a one in it."""
    SLICES: tl.constexpr = (PAGE + COLUMNS - 1) // COLUMNS
    program = tl.program_id(0)
    slice, line = program % SLICES, program // SLICES
    row, head = (line // heads).to(tl.int64), line % heads
    feature, column = tl.arange(0, SIZE), tl.arange(0, COLUMNS)
    here = column < VALUES - slice * COLUMNS
    counting = column == VALUES - slice * COLUMNS
    there = (feature[:, None] < FEATURES) & (column < PAGE - slice * COLUMNS)[None, :]
    on_page = feature[:, None] * PAGE + column[None, :]
    at = line.to(tl.int64) * (FEATURES * PAGE) + slice * COLUMNS
    page = tl.load(memory + at + on_page, mask=there, other=0.0)
    queries += row * q_b + head * q_h
    keys += row * k_b + head * k_h
    values += row * v_b + head * v_h + slice * COLUMNS
    reads += (row * (TOKENS * heads) + head) * VALUES + slice * COLUMNS
    mass += row * (TOKENS * heads) + head
    for token in tl.static_range(TOKENS):
        note = tl.load(values + column, mask=here, other=0.0).to(tl.float32)
        if PAGE > VALUES:
            note = tl.where(counting, 1.0, note)
        q = features_of_one(queries, matrix, LOOK, WIDTH, FEATURES, SIZE)
        k = features_of_one(keys, matrix, LOOK, WIDTH, FEATURES, SIZE)
        if KEEP == "features":
            kept = log_keep + row * keep_b + head * keep_h + token * keep_t
            page *= exp(tl.load(kept + feature, mask=feature < FEATURES, other=0.0).to(tl.float32))[:, None]
        elif KEEP == "heads":
            page *= exp(tl.load(log_keep + row * keep_b + head * keep_h + token * keep_t).to(tl.float32))
        if write is not None:
            note *= gate_of_one(write + row * write_b + head * write_h + token * write_t, LIMIT)
        if erase is not None:
            recall = tl.sum(page * k[:, None], axis=0)
            note -= gate_of_one(erase + row * erase_b + head * erase_h + token * erase_t, LIMIT) * recall
            if PAGE > VALUES:
                note = tl.where(counting, 1.0, note)  # in full, as nothing of it is erased
        page += k[:, None] * note[None, :]
        read = tl.sum(page * q[:, None], axis=0)
        tl.store(reads + column, read.to(reads.dtype.element_ty), mask=here)
        if PAGE > VALUES:
            overlap = tl.sum(tl.where(counting, read, 0.0), axis=0)
            tl.store(mass + token * heads, overlap, mask=slice == SLICES - 1)
        queries += q_t
        keys += k_t
        values += v_t
        reads += heads * VALUES
    tl.store(last + at + on_page, page, mask=there)


@triton.jit
def gate_of_one(gate, LIMIT: tl.constexpr):
    """With a limit it comes as a logit."""
    found = tl.load(gate).to(tl.float32)
    if LIMIT > 0:
        found = LIMIT * sigmoid(found)
    return found


def room_for(values: Tensor, memory: Tensor, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Reads, the page after them, and mass; not filled yet."""
    mass = memory.new_empty(values.shape[:-1] if counts else 0)
    return values.new_empty(values.shape), torch.empty_like(memory), mass


def decode_op(queries, keys, values, log_keep, erase, write, memory, matrix, *about) -> tuple[Tensor, Tensor, Tensor]:
    rows, length, heads, width = queries.shape
    features, page = memory.shape[-2:]
    settings = settings_for(rows * heads, features, page, processors_of(queries.device))
    made = room_for(values, memory, about[-1])
    tensors = (queries, keys, values, log_keep, erase, write, memory, matrix)

    def way() -> Way:
        constants = {
            "LOOK": about[:-2],
            "WIDTH": width,
            "FEATURES": features,
            "SIZE": holding(features),
            "VALUES": values.shape[-1],
            "PAGE": page,
            "COLUMNS": settings.columns,
            "TOKENS": length,
            "KEEP": "all" if log_keep is None else "heads" if log_keep.ndim == 3 else "features",
            "LIMIT": about[-2],
        }
        grid = (rows * heads * -(-page // settings.columns), 1, 1)
        return Way(grid, (*strides(*tensors[:6]), heads), constants, settings.warps, 1)

    known = known_of((layout_of(tensors), about, settings))
    with torch.cuda.device_of(queries):
        launch(known, "decode", decode_kernel, (*tensors, *made), way)
    return made


for device in DEVICES:
    LIBRARY.impl("memory_decode", decode_op, device)


@torch.library.register_fake("palimpsest::memory_decode", lib=LIBRARY)
def _(queries, keys, values, log_keep, erase, write, memory, matrix, *about):
    return room_for(values, memory, about[-1])


def short(queries: Tensor) -> bool:
    return queries.shape[1] <= TOKENS


def decode(*arguments) -> tuple[Tensor, Tensor, Tensor]:
    """As `scan`, of tensors that are as it made them; no gradient comes back."""
    return torch.ops.palimpsest.memory_decode(*arguments) if watched() else decode_op(*arguments)
