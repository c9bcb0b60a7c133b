"""Which kernels of the memory scan are launched, with what, and in which order."""

from torch import Tensor

from . import block_kernels
from . import scan_kernels as kernels
from .buffer import Buffer, tensors_in
from .features import holding
from .launching import Way, launch, strides
from .parts import cut_back, way_between
from .scan_problem import BARE, WOVEN, Inputs, Problem, Ready, Results, Saved, results, rooms_for
from .scan_settings import BAND, many_made

AT_ONCE = block_kernels.AT_ONCE.value  # blocks
ROUND = 32  # chunks, after which it is looked whether anything is left of a page


def prepare(p: Problem, tensors, ready: Ready) -> None:
    queries, keys, _, log_keep, erase, write, matrix = tensors
    if ready.seen is None:
        return

    def way() -> Way:
        numbers = (*strides(queries, keys, log_keep, erase, write), p.shape.length, p.shape.heads, p.chunks)
        constants = {"LEVELS": p.levels, "ERASE": erase is not None, "LOOKED": ready.queries is not None}
        constants |= {"SHARES": many_made(p.look[0], p.shape.features), "EXACT": p.precision.exact}
        grid = (p.lines * p.chunks, 1, 1)
        return Way(grid, numbers, p.common("ROUGH") | constants, p.settings.prepare_warps, p.settings.stages)

    launch(p.known, "prepare", kernels.prepare_kernel, (queries, keys, log_keep, erase, write, matrix, *ready), way)


def carry(
    p: Problem, purpose: str, tensors, ready: Ready, start, reads, mass, last, saved: Saved | None = None, stops=None
) -> None:
    queries, keys, values, _, erase, write, matrix = tensors

    def way() -> Way:
        columns = p.settings.columns
        count, page = (p.shape.features,) * 2 if values is None else (p.shape.values, p.shape.page)
        pieces = p.settings.parts - (reads is None) - (values is None)
        numbers = (*strides(queries, keys, values, write), p.shape.length, p.shape.heads, *p.parted)
        constants = {"ERASE": erase is not None, "WRITE": write is not None, "READY": ready.seen is not None}
        constants |= {"STARTED": start is not None, "READS": reads is not None, "SAVES": saved is not None}
        constants |= {"VALUES": count, "PAGE": page, "COLUMNS": columns, "TOGETHER": p.together}
        constants |= {"STAGES": p.settings.stages, "ALONE": p.alone(p.settings.carry_warps)}
        constants["ROUND"] = ROUND if values is None else 0
        grid = (p.lines * pieces * -(-page // columns), 1, 1)
        return Way(grid, numbers, p.common() | constants, p.settings.carry_warps, p.settings.stages)

    arguments = (
        queries, keys, values, write, matrix,
        ready.solved, ready.erase, ready.write, ready.seen, ready.kept, ready.remaining, ready.dimmed,
        start, reads, mass, *(saved or Saved()), last, stops,
    )  # fmt: skip
    launch(p.known, purpose, kernels.carry_kernel, arguments, way)


def carry_back(
    p: Problem, tensors, ready: Ready, of_reads, of_mass, of_last, of_start, of_fresh, of_values, of_pages
) -> None:
    queries, keys, _, _, erase, write, matrix = tensors

    def way() -> Way:
        columns = p.settings.columns
        numbers = (*strides(queries, keys, of_reads), p.shape.length, p.shape.heads, *p.parted)
        constants = {"ERASE": erase is not None, "WRITE": write is not None, "ENDED": of_last is not None}
        constants |= {"VALUES": p.shape.values, "PAGE": p.shape.page, "COLUMNS": columns, "TOGETHER": p.together}
        constants |= {"STAGES": p.settings.stages, "ALONE": p.alone(p.settings.back_warps)}
        grid = (p.lines * p.settings.parts * -(-p.shape.page // columns), 1, 1)
        constants = p.common("LIMIT", "ROUGH") | constants
        return Way(grid, numbers, constants, p.settings.back_warps, p.settings.stages)

    arguments = (
        queries, keys, matrix,
        ready.solved, ready.erase, ready.write, ready.seen, ready.kept, ready.remaining, ready.dimmed,
        of_reads, of_mass, of_last, of_fresh, of_values, of_pages, of_start,
    )  # fmt: skip
    launch(p.known, "back", kernels.carry_back_kernel, arguments, way)


def read_back(
    p: Problem, queries: Tensor, asked: Tensor | None, stops: Tensor | None, matrix, of_reads, of_mass, ends
) -> None:
    """What the reads of each part say of the page it starts from, as what the part before ends with."""
    look = p.look if asked is None else BARE
    queries = queries if asked is None else asked

    def way() -> Way:
        numbers = (*strides(queries, of_reads), p.shape.length, p.shape.heads, p.settings.parts, p.tokens)
        lies_ready = look[:2] == BARE[:2] and p.precision.fine == "split" and not p.shape.counts
        size, page = holding(p.shape.features), p.shape.page
        columns, tokens, warps, stages = cut_back(page, size, p.settings.chunk, lies_ready)
        constants = p.common("KEEP", "LIMIT", "FINE", "ROUGH") | {"LOOK": look, "PRECISION": p.precision.fine}
        constants |= {"VALUES": p.shape.values, "PAGE": page, "COLUMNS": columns, "TOKENS": tokens}
        constants |= {"SLICE": p.settings.columns, "WEAVES": p.weaves, "STAGES": stages}
        return Way((p.lines * (p.settings.parts - 1) * -(-page // columns), 1, 1), numbers, constants, warps, stages)

    launch(p.known, "read back", kernels.read_back_kernel, (queries, stops, matrix, of_reads, of_mass, ends), way)


def gradients(p: Problem, tensors, ready: Ready, saved: Saved, of_reads, of_mass, of_fresh, of_values, of_pages):
    queries, keys, values, log_keep, erase, write, matrix = tensors
    rows, length, heads, width, _, count, _ = p.shape
    of_queries, of_keys = (x.new_empty(rows, length, heads, width) for x in (queries, keys))
    of_log_keep, of_erase = (None if x is None else x.new_empty(*x.shape) for x in (log_keep, erase))
    of_write = None if write is None or p.shared else write.new_empty(*write.shape)
    if p.together == 2:
        block_gradients(p, tensors, ready, saved, of_reads, of_pages, (of_values, of_queries, of_keys, of_erase))
        return of_queries, of_keys, of_values, of_log_keep, of_erase, of_write

    def way() -> Way:
        numbers = (*strides(queries, keys, values, log_keep, erase, write, of_reads), length, heads, p.chunks)
        sizes = {"WIDE": holding(width), "VALUES": count, "PAGE": p.shape.page, "COLUMNS": p.settings.gradient_columns}
        gates = {"ERASE": erase is not None, "WRITE": write is not None, "SHARED": p.shared}
        there = {"LOOKED": ready.queries is not None, "READY": ready.seen is not None}
        constants = p.common() | sizes | gates | there
        constants |= {"LEVELS": p.levels, "STAGES": p.settings.gradient_stages}
        constants["SLICE"] = 0
        if p.weaves:  # pages end with a slice
            constants |= {"SLICE": p.settings.columns, "COLUMNS": min(p.settings.columns, p.settings.gradient_columns)}
        grid = (p.lines * p.chunks, 1, 1)
        return Way(grid, numbers, constants, p.settings.gradient_warps, p.settings.gradient_stages)

    arguments = (
        queries, keys, values, log_keep, erase, write, matrix,
        ready.queries, ready.keys, ready.solved, ready.seen, ready.logs, ready.kept, ready.remaining, *saved,
        of_reads, of_mass, of_fresh, of_pages,
        of_queries, of_keys, of_values, of_log_keep, of_erase, of_write,
    )  # fmt: skip
    launch(p.known, "gradients", kernels.gradients_kernel, arguments, way)
    return of_queries, of_keys, of_values, of_log_keep, of_erase, of_write


def block_gradients(p: Problem, tensors, ready: Ready, saved: Saved, of_reads, of_pages, found: tuple) -> None:
    """The same for blocks of two chunks."""
    queries, keys, *_, matrix = tensors

    def way() -> Way:
        numbers = (*strides(queries, keys, of_reads), p.shape.length, p.shape.heads, p.chunks)
        constants = p.common("KEEP") | {"WIDE": holding(p.shape.width), "VALUES": p.shape.values}
        columns = min(p.settings.columns, p.settings.gradient_columns, WOVEN)  # more leave no room for another program
        constants |= {"COLUMNS": columns, "SLICE": p.settings.columns}
        constants |= {"LOOKED": ready.queries is not None, "STAGES": p.settings.gradient_stages}
        grid = (p.lines * p.blocks, 1, 1)
        return Way(grid, numbers, constants, p.settings.gradient_warps, p.settings.gradient_stages)

    given = queries, keys, matrix, ready.queries, ready.keys, ready.erase, *saved
    launch(p.known, "gradients", kernels.block_gradients_kernel, (*given, of_reads, of_pages, *found), way)


def little_gates(p: Problem, tensors, ready: Ready, saved: Saved, of_reads, of_pages, of_values, of_erase) -> None:
    """The gradients of gates next to zero, where `gradients` leaves them out."""
    queries, keys, values, *_ = tensors

    def way() -> Way:
        numbers = (*strides(queries, keys, values, of_reads), p.shape.length, p.shape.heads, p.chunks, p.lines)
        constants = p.common("LOOK", "WIDTH") | {"VALUES": p.shape.values, "COLUMNS": BAND}
        constants |= {"SLICE": p.settings.columns, "TOGETHER": p.together}
        grid = (-(-p.lines * p.blocks // AT_ONCE), 1, 1)
        return Way(grid, numbers, constants, warps=2, stages=1)  # four would be a group, and products wrong

    given = queries, keys, values, ready.erase, ready.logs, ready.kept, ready.remaining, *saved
    launch(p.known, "little gates", kernels.little_gates_kernel, (*given, of_reads, of_pages, of_values, of_erase), way)


def looked(p: Problem, tensors, ready: Ready):
    """The problem and the tensors as they are once `prepare` has made features of queries and keys, if it has."""
    if ready.queries is None:
        return p, tensors
    return p._replace(look=BARE), (ready.queries, ready.keys, *tensors[2:])


def forward(p: Problem, x: Inputs) -> Results:
    tensors = x.tensors
    buffer, hidden = rooms_for(p, x)
    made = results(p, x.values, buffer)
    saved, ready, starts, turning, asked, stops = hidden.of(made.buffer)
    prepare(p, tensors, ready)
    p, tensors = looked(p, tensors, ready)
    start = x.memory
    if starts is not None:
        carry(p, "own", tensors, ready, x.memory, None, None, starts)
        if turning is not None:
            carry(p, "turning", (*tensors[:2], None, *tensors[3:]), ready, None, asked, None, turning, stops=stops)
        start = put_together(p, "starts", x.memory, turning, starts)
    carry(p, "carry", tensors, ready, start, made.reads, made.mass, made.last, saved)
    return made


def put_together(p: Problem, purpose: str, first: Tensor | None, turning: Tensor | None, pages: Tensor) -> Tensor:
    """The page that each part begins with, in place of what the one before it makes by itself."""

    def way() -> Way:
        return way_between(pages, p.precision.fine, reversed=purpose == "ends")

    launch(p.known, purpose, kernels.parts_kernel, (first, turning, pages), way)
    return pages


def backward(
    p: Problem, x: Inputs, of_reads: Tensor, of_last: Tensor | None, of_mass: Tensor | None, kept: Tensor
) -> tuple:
    """Gradients, of the page each part starts with too if one was given, and a buffer for what only kernels see."""
    tensors = x.tensors
    saved, ready, _, turning, asked, stops = rooms_for(p, x)[1].of(kept)
    buffer, fresh, ends = Buffer(), None, None
    pages = buffer.room(*saved.pages.shape, dtype=saved.pages.dtype)
    if saved.notes is not None and not p.opened:
        fresh = buffer.room(*saved.notes.shape, dtype=saved.notes.dtype)
    starts = p.lines, p.settings.parts, p.shape.features, p.shape.page
    of_memory = None if x.memory is None else x.memory.new_empty(*starts)
    unasked = buffer.room(*starts) if of_memory is None else None
    if p.settings.parts > 1:
        ends = buffer.room(*starts)
    own = buffer.made_like(x.values)
    of_pages, of_fresh, of_ends, of_starts = tensors_in(own, (pages, fresh, ends, unasked))
    of_starts = of_starts if of_memory is None else of_memory
    of_values = x.values.new_empty(*x.values.shape)
    seen = looked(p, tensors, ready)
    if of_ends is not None:
        read_back(p, x.queries, asked, stops, x.matrix, of_reads, of_mass, of_ends)
        of_last = put_together(p, "ends", of_last, turning, of_ends)
    carry_back(*seen, ready, of_reads, of_mass, of_last, of_starts, of_fresh, of_values, of_pages)
    found = gradients(p, tensors, ready, saved, of_reads, of_mass, of_fresh, of_values, of_pages)
    if p.weaves:
        little_gates(*seen, ready, saved, of_reads, of_pages, of_values, of_erase=found[4])
    return *found, of_memory, own
