"""The memory scan as a sum, all of which is kept, as one torch operation; its gradient is three sums more."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import sum_kernels as kernels
from .features import holding
from .habits import Repeatable
from .launching import Way, in_line, known_of, launch, layout_of, once, processors_of, same, strides
from .operation import Operation
from .parts import way_between
from .products import PRECISIONS, Precision
from .repeating import RECORDING, Recording, repeated
from .tuned import tuned

TENSORS = 4  # that the operation is given
WHOLE = 64  # a part has some of these tokens, whatever chunks it is read in


class Cut(NamedTuple):
    """Tokens of a chunk, columns of the page in a program, its warps, and how far ahead it loads."""

    chunk: int
    columns: int
    warps: int  # which have an equal share of the columns
    stages: int


class Settings(NamedTuple):
    forward: Cut
    back: Cut
    parts: int  # of the sequence, which start at the same time


def settings_for(lines: int, length: int, features: int, values: int, dtype: torch.dtype, processors: int) -> Settings:
    """Found by trying on an H200; elsewhere they are as right, if not as fast."""
    size, parts = holding(max(features, values)), 1
    if (programs := lines * triton.cdiv(values, 32)) < processors:
        # parts are read twice, so that they pay only where processors would be idle
        parts = max(1, min(16, 8 * processors // programs, length // 2048))
    if size == 16 or size > 128 or dtype != torch.bfloat16:
        return Settings(Cut(16, 16, 1, 4), Cut(16, 16, 1, 3), parts)
    if size <= 64:
        return Settings(Cut(32, 32, 2, 4), Cut(16, size, size // 32, 5), parts)
    back = Cut(16, 64, 2, 4)
    return Settings(Cut(32, 64, 4, 3) if parts == 1 else back, back, parts)


class Problem(NamedTuple):
    """All that the kernels are told beside the tensors."""

    rows: int
    length: int
    heads: int
    features: int
    values: int
    settings: Settings
    precision: Precision
    known: dict  # what was found out about tensors of this layout

    @property
    def lines(self) -> int:
        return self.rows * self.heads

    def way(self, cut: Cut, programs: int, steps: list[int], **constants: object) -> Way:
        """With so many programs for a line."""
        chunk, columns, warps, stages = cut
        together = -(-self.length // (self.settings.parts * WHOLE)) * WHOLE  # tokens of a part
        numbers = *steps, self.length, self.heads, -(-self.length // chunk), self.settings.parts, together // chunk
        constants |= {"FEATURES": self.features, "SIZE": holding(self.features), "VALUES": self.values}
        constants |= {"COLUMNS": columns, "BAND": columns // warps, "CHUNK": chunk}
        constants |= {"STAGES": stages, "FINE": self.precision.fine, "ROUGH": self.precision.rough}
        return Way((self.lines * programs, 1, 1), numbers, constants, warps, stages)


def problem(known: dict, queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor | None) -> Problem:
    rows, length, heads, features = queries.shape
    about = rows * heads, length, features, values.shape[-1], queries.dtype, processors_of(queries.device)
    settings = tuned("memory_sum", (queries, keys, values, memory), settings_for(*about))
    return Problem(rows, length, heads, features, values.shape[-1], settings, PRECISIONS[queries.dtype], known)


def known_about(tensors: Sequence[Tensor | None]) -> dict:
    """What was found out for tensors of a layout."""
    return known_of(("memory_sum", layout_of(tensors)))


def known_problem(*given: Tensor | None) -> Problem:
    known = known_about(given)
    return once(known, "problem", lambda: problem(known, *given[:TENSORS]))


def add_up(p: Problem, purpose: str, queries, keys, values, start, reads, last) -> None:
    """Reads, and the page after all; where nothing is read, those after all parts but the last, each by itself."""

    def way() -> Way:
        cut, parts = p.settings.forward, p.settings.parts - (reads is None)
        steps = strides(queries, keys, values)
        return p.way(cut, parts * -(-p.values // cut.columns), steps, REVERSED=purpose == "ends")

    launch(p.known, purpose, kernels.sum_kernel, (queries, keys, values, start, reads, last), way)


def pages_between(p: Problem, purpose: str, keys: Tensor, values: Tensor, first: Tensor | None) -> Tensor | None:
    """The page that each part starts from, `(b h) parts k v`, in the order in which they come."""
    if p.settings.parts == 1:
        return first
    pages = keys.new_empty(p.lines, p.settings.parts, p.features, p.values, dtype=torch.float32)
    add_up(p, purpose, None, keys, values, first, None, pages)
    between = (first, None, pages)
    launch(p.known, f"between {purpose}", kernels.parts_kernel, between, lambda: way_between(pages, p.precision.fine))
    return pages


def made_for(queries: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    rows, length, heads, features = queries.shape
    reads = values.new_empty(rows, length, heads, values.shape[-1])
    return reads, values.new_empty(rows, heads, features, values.shape[-1], dtype=torch.float32)


def forward(queries, keys, values, memory) -> list[Tensor | None]:
    """Reads, the last page and, where the sequence has several parts, the pages they start from."""
    p, (reads, last) = known_problem(queries, keys, values, memory), made_for(queries, values)
    starts = pages_between(p, "starts", keys, values, memory)
    add_up(p, "sum", queries, keys, values, starts, reads, last)
    return [reads, last, None if starts is memory else starts]


def backward(queries, keys, values, memory, of_reads, of_last, starts) -> list[Tensor | None]:
    """Gradients and, where the sequence has several parts, those of the pages they end with."""
    p = known_problem(queries, keys, values, memory, of_reads, of_last)
    found = [x.new_empty(*x.shape) for x in (queries, keys, values)]
    of_memory = None if memory is None else memory.new_empty(*memory.shape)
    ends = pages_between(p, "ends", queries, of_reads, of_last)

    def way() -> Way:
        cut, steps = p.settings.back, strides(queries, keys, values, of_reads)
        slices = 2 * -(-p.features // cut.columns) - (-p.values // cut.columns)
        return p.way(cut, p.settings.parts * slices, steps, WIDE=holding(p.values))

    start = memory if starts is None else starts
    arguments = (queries, keys, values, of_reads, start, ends, *found, of_memory)
    launch(p.known, "back", kernels.sum_back_kernel, arguments, way)
    return [*found, of_memory, None if ends is of_last else ends]


def sum_op(*inputs) -> Sequence[Tensor | None]:
    return repeated(known_about(inputs), inputs, forward)


def sum_back_op(grads, kept, *inputs) -> Sequence[Tensor | None]:
    given = *inputs, *arriving(inputs[2], *grads)
    return repeated(known_about(given), given, backward, kept)[:-1]


def arriving(values: Tensor, of_reads: Tensor | None, of_last: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gradients as the kernels take them."""
    of_reads = torch.zeros_like(values) if of_reads is None else in_line(of_reads)
    return of_reads, None if of_last is None else of_last.contiguous()


def shapes(queries, keys, values, memory) -> list[Tensor | None]:
    p = problem({}, queries, keys, values, memory)
    starts = queries.new_empty(p.lines, p.settings.parts, p.features, p.values, dtype=torch.float32)
    return [*made_for(queries, values), starts if p.settings.parts > 1 else None]


INPUTS = "Tensor queries, Tensor keys, Tensor values, Tensor? memory"
memory_sum = Operation("memory_sum", INPUTS, sum_op, sum_back_op, shapes, learned=4, results=2, kept_from=2)


def recorded(*inputs) -> Recording | None:
    return known_about(inputs).get(RECORDING)


def recorded_back(grads, kept, *inputs) -> Recording | None:
    arrived = arriving(inputs[2], *grads)
    return known_about((*inputs, *arrived)).get(RECORDING) if same(arrived, grads) else None


REPEATABLE = Repeatable(memory_sum, recorded, recorded_back)
