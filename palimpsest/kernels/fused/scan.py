"""The fused memory scan as one torch operation: which kernels are launched, with what, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

# pyright: reportCallIssue=false, reportArgumentType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false
import torch
import triton
from torch import Tensor

from ...gates import Gates
from ...look import PRODUCTS, Look
from ..trust import INTERPRETED
from . import bands, block_kernels, sums
from . import scan_kernels as kernels
from .buffer import Buffer, tensors_in
from .decode import decode, short
from .features import holding
from .habits import Habit, Repeatable, accustom, again, same
from .launching import AMPLE, Way, known_of, launch, layout_of, once, processors_of, room_of, strides
from .operation import Operation, watched
from .parts import cut_back, way_between
from .products import PRECISIONS, Precision
from .repeating import RECORDING, Recording, repeated
from .tuned import tuned

MOST = 256  # features, values
BAND = bands.BAND.value  # columns
WOVEN = bands.WOVEN.value  # tokens of a chunk whose notes are saved as they were multiplied
AT_ONCE = block_kernels.AT_ONCE.value  # blocks
ROUND = 32  # chunks, after which it is looked whether anything is left of a page


@dataclass(frozen=True)
class Settings:
    """How the work is cut: tokens of a chunk, columns of the page in a program, warps of each kernel."""

    chunk: int
    columns: int
    gradient_columns: int
    gradient_warps: int
    prepare_warps: int = 1
    carry_warps: int = 4
    back_warps: int = 4
    stages: int = 3
    gradient_stages: int = 2
    parts: int = 1  # of the sequence, which start at the same time


def many_made(map: str, features: int) -> bool:
    """Whether features are made by a product, and so many that it leaves little room for them."""
    return map in PRODUCTS and features >= 2 * kernels.SHARE.value


@lru_cache(maxsize=1024)
def settings_for(
    lines: int,
    length: int,
    features: int,
    values: int,
    keep: str,
    erases: bool,
    map: str,
    dtype: torch.dtype,
    processors: int,
    room: int,
) -> Settings:
    """Found by trying on an H200; elsewhere they are as right, if not as fast.

    There are so many processors, on which a program has so many bytes of shared memory.
    """
    if max(features, values) <= 16 and dtype != torch.float32:  # a second warp would multiply the same again
        return Settings(16, 16, 16, 1, carry_warps=1, back_warps=1, stages=4)
    if dtype != torch.bfloat16:  # whose products are long enough as they are
        warps = 8 if features >= 128 else 4
        return Settings(16, 16, 16, warps, warps, warps, warps, stages=1, gradient_stages=1)
    small, wide, size = max(features, values) <= 64, features > 128, holding(values)
    made, many = map in PRODUCTS, many_made(map, features)
    chunk = 16 if many or (keep == "features" and wide) else 32
    # a warp has a band by itself; but where there are too many features for one, or all make them by products, they
    # have one together
    columns = BAND if made or wide else min(size, 64)
    warps = 8 if made and wide else 4 if made or wide else columns // BAND
    parts = 1
    if lines * triton.cdiv(values, min(columns, 32)) < processors:
        # what a part does to a page is as much work again, so that parts pay only where processors would be idle
        programs = lines * triton.cdiv(values, columns)
        parts = max(1, min(16, 2 * processors // programs, length // (64 * chunk)))
    elif lines * triton.cdiv(values, columns) < processors and (keep == "features" or not erases):
        columns, warps = 32, 2
    if many:
        return Settings(chunk, columns, min(size, 32), 8, 4, warps, warps, stages=1, parts=parts)
    prepare_warps = 2 if wide or keep == "features" else 1
    if keep == "features":  # what is kept of them fills registers and shared memory
        cut = min(size, 64), 4 if small or size == 16 else 8
        return Settings(chunk, columns, *cut, prepare_warps, warps, warps, stages=2, parts=parts)
    thin = size == 16 and features < 128
    few = (thin or (small and keep == "all")) and not (made and erases)  # sums leave a warp room for all features
    cut = min(size, 32 if small or wide or keep == "heads" else 64), 8 if wide else 2 if few else 4
    stages = 2 if wide and room < AMPLE else 5 if small and room >= AMPLE else 3
    gradient_stages = 2 if wide or room < AMPLE else 3
    return Settings(chunk, columns, *cut, prepare_warps, warps, warps, stages, gradient_stages, parts)


class Shape(NamedTuple):
    rows: int
    length: int
    heads: int
    width: int
    features: int
    values: int
    counts: bool  # whether the page has one more column, in which every key writes a one

    @property
    def page(self) -> int:
        return self.values + self.counts


class Saved(NamedTuple):
    """What backward needs beside the inputs, and T; laid out anew, or as it was multiplied."""

    notes: Tensor | None = None  # b t h v, or in two halves, with the other sign: as they are added up in backward
    pages: Tensor | None = None  # (b h) n v k, at the start of each chunk, or of each block


class Problem(NamedTuple):
    """All that the kernels are told beside the tensors."""

    shape: Shape
    look: tuple
    keep: str
    limit: float  # of erase and write, which then come as logits; 0: they come as they are
    shared: bool  # whether erase is also write
    settings: Settings
    precision: Precision
    known: dict  # what was found out about tensors of this layout

    @property
    def opened(self) -> bool:
        """Whether the gradient of values, as it is handed back, tells that of what T is given: with a gate for both."""
        return self.shared and self.precision.fine == "split"

    @property
    def weaves(self) -> bool:
        """Whether notes and pages are saved as they were multiplied: of wide heads, whose features are ready."""
        usual = self.opened and self.keep != "features" and self.look[0] not in PRODUCTS and not self.shape.counts
        return usual and 64 < self.shape.features <= 128 and self.settings.chunk == WOVEN <= self.settings.columns

    @property
    def together(self) -> int:
        """Chunks of a block, before which a page is saved as it was multiplied; 0 where none is."""
        return 0 if not self.weaves else 2 if self.keep == "all" else 1

    @property
    def blocks(self) -> int:
        """How often a page is saved."""
        return -(-self.chunks // max(1, self.together))

    @property
    def chunks(self) -> int:
        return -(-self.shape.length // self.settings.chunk)

    @property
    def parted(self) -> tuple[int, int, int]:
        """Chunks, the parts they are in, and how many are in one: whole blocks."""
        return self.chunks, self.settings.parts, -(-self.blocks // self.settings.parts) * max(1, self.together)

    @property
    def tokens(self) -> int:
        """Of a part."""
        return self.parted[2] * self.settings.chunk

    @property
    def looks_ahead(self) -> bool:
        """Whether features are made once and for all: no wider than what they are made of, and for several programs.

        Those of a product are wider, or leave no room beside them; those that fade by themselves lie ready as it is.
        """
        several = self.shape.page > self.settings.columns or self.weaves
        return several and self.keep != "features" and self.look[:2] != BARE[:2] and self.look[0] not in PRODUCTS

    def alone(self, warps: int) -> bool:
        """Whether all of so many warps have one band to carry, and share its products."""
        return warps > 1 and self.settings.columns == BAND

    @property
    def levels(self) -> int:
        """How often a chunk can be halved."""
        return self.settings.chunk.bit_length() - 1

    @property
    def lines(self) -> int:
        return self.shape.rows * self.shape.heads

    def common(self, *without: str) -> dict[str, object]:
        found = {
            "LOOK": self.look,
            "WIDTH": self.shape.width,
            "FEATURES": self.shape.features,
            "SIZE": holding(self.shape.features),
            "CHUNK": self.settings.chunk,
            "KEEP": self.keep,
            "LIMIT": self.limit,
            "FINE": self.precision.fine,
            "ROUGH": self.precision.rough,
        }
        return {name: value for name, value in found.items() if name not in without}


PLAIN = Look()
BARE = ("Identity", "Unscaled", 1, 0.0, 0.0, 1.0, False)  # a look that changes nothing


class Ready(NamedTuple):
    """What the programs of a head would otherwise each make for themselves; (b h) n …, in two halves where split."""

    queries: Tensor | None = None  # b t h k, their features
    keys: Tensor | None = None  # … and those of keys
    solved: Tensor | None = None  # c c, T
    erase: Tensor | None = None  # c, opened
    write: Tensor | None = None  # c, opened; None where there is none, or erase is also write
    seen: Tensor | None = None  # c c, how much of each note each read sees
    logs: Tensor | None = None  # 2 c, sums of log keep since the chunk's start: what float32 keeps of them, and loses
    kept: Tensor | None = None  # c, since the chunk's start; or k, of each feature from start to end
    remaining: Tensor | None = None  # c, until its end
    dimmed: Tensor | None = None  # 3 c k, features of queries and keys since the start, and of keys until the end


class Hidden(NamedTuple):
    """All that only kernels see of a forward pass: rooms in one buffer, or the tensors there."""

    saved: Saved | None
    ready: Ready
    starts: Tensor | None  # (b h) parts k v, of the parts that a sequence has
    turning: Tensor | None  # (b h) (parts - 1) k k, what all but the first do to a page, where somebody asks
    asked: Tensor | None  # b t h k, what queries ask of the page their part starts from; or (b h) n k c, as multiplied
    stops: Tensor | None  # (b h) (parts - 1) slices, int32, for how many chunks they do

    def of(self, buffer: Tensor) -> "Hidden":
        saved = None if self.saved is None else Saved(*tensors_in(buffer, self.saved))
        return Hidden(saved, Ready(*tensors_in(buffer, self.ready)), *tensors_in(buffer, self[2:]))


def rooms_for(p: Problem, x: "Inputs") -> tuple[Buffer, Hidden]:
    """Where in a buffer all that goes."""
    rows, length, heads, _, features, count, _ = p.shape
    chunk, parts, page = p.settings.chunk, p.settings.parts, p.shape.page
    buffer, chunks = Buffer(), (p.lines, p.chunks)
    halves, kind = ((2,), torch.bfloat16) if p.precision.fine == "split" else ((), torch.float32)
    saved, queries, keys, solved, opened, into, seen, logs, kept, remaining, dimmed = (None,) * 11
    if x.saves and p.weaves:
        pages = buffer.room(p.lines, p.blocks, holding(count), holding(features), dtype=p.precision.saved)
        saved = Saved(buffer.room(*chunks, *halves, holding(count), chunk, dtype=kind), pages)
    elif x.saves:
        pages = buffer.room(*chunks, page, features, dtype=p.precision.saved)
        notes = None if x.erase is None else buffer.room(rows, length, heads, *halves, count, dtype=kind)
        saved = Saved(notes, pages)
    if x.erase is not None or p.keep != "all":
        seen = buffer.room(*chunks, *halves, chunk, chunk, dtype=kind)
        if x.erase is not None:
            solved, opened = buffer.room(*chunks, *halves, chunk, chunk, dtype=kind), buffer.room(*chunks, chunk)
            into = None if x.write is None else buffer.room(*chunks, chunk)
        if p.looks_ahead:
            queries, keys = (buffer.room(rows, length, heads, features, dtype=x.values.dtype) for _ in range(2))
    if p.keep == "heads":
        logs = buffer.room(*chunks, 2, chunk)
        kept, remaining = (buffer.room(*chunks, chunk) for _ in range(2))
    if p.keep == "features":
        kept = buffer.room(*chunks, features)
        dimmed = buffer.room(*chunks, 3, *halves, chunk, features, dtype=kind)
    starts = buffer.room(p.lines, parts, features, page) if parts > 1 else None
    turning = asked = stops = None
    turned = parts - 1 if x.saves else parts - 2  # what the last does to a page is for backward alone
    if turned > 0 and not (x.erase is None and p.keep == "all"):
        turning = buffer.room(p.lines, parts - 1, features, features)
        across = (*chunks, holding(features), chunk) if p.weaves else (rows, length, heads, features)
        if x.saves:
            asked = buffer.room(*across, dtype=p.precision.saved)
            stops = buffer.room(p.lines, parts - 1, -(-features // p.settings.columns), dtype=torch.int32)
    ready = Ready(queries, keys, solved, opened, into, seen, logs, kept, remaining, dimmed)
    return buffer, Hidden(saved, ready, starts, turning, asked, stops)


class Results(NamedTuple):
    """All that forward makes."""

    reads: Tensor  # b t h v
    last: Tensor  # b h k v, or one more where keys are counted, as all pages have then
    mass: Tensor | None  # b t h, float32, what queries read of that column
    buffer: Tensor


def results(p: Problem, values: Tensor, buffer: Buffer) -> Results:
    """Not filled yet."""
    rows, length, heads, _, features, count, counts = p.shape
    reads = values.new_empty(rows, length, heads, count)
    last = values.new_empty(rows, heads, features, p.shape.page, dtype=torch.float32)
    mass = last.new_empty(rows, length, heads) if counts else None
    return Results(reads, last, mass, buffer.made_like(values))


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


def forward(x: "Inputs") -> Results:
    p, tensors = known_problem(x), x.tensors
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


def backward(x: "Inputs", of_reads: Tensor, of_last: Tensor | None, of_mass: Tensor | None, kept: Tensor) -> tuple:
    """Gradients, of the page each part starts with too if one was given, and a buffer for what only kernels see."""
    p, tensors = known_problem(x, of_reads, of_last, of_mass), x.tensors
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


INPUTS = (
    "Tensor queries, Tensor keys, Tensor values, Tensor? log_keep, Tensor? erase, Tensor? write, Tensor? memory, "
    "Tensor? matrix, str map, str scale, int nu, float floor, float epsilon, float factor, float limit, bool shared, "
    "bool counts, bool saves"
)


TENSORS = 8  # the first of them


class Inputs(NamedTuple):
    """Of the operation, in this order."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    log_keep: Tensor | None
    erase: Tensor | None
    write: Tensor | None
    memory: Tensor | None
    matrix: Tensor | None
    map: str
    scale: str
    nu: int
    floor: float
    epsilon: float
    factor: float
    limit: float
    shared: bool
    counts: bool
    saves: bool

    @property
    def tensors(self) -> tuple:
        """Those that kernels are given."""
        write = self.erase if self.shared else self.write
        return self.queries, self.keys, self.values, self.log_keep, self.erase, write, self.matrix


def problem(known: dict, x: Inputs) -> Problem:
    rows, length, heads, width = x.queries.shape
    features = Look(matrix=x.matrix, map=x.map, nu=x.nu).features(width)
    shape = Shape(rows, length, heads, width, features, x.values.shape[-1], x.counts)
    keep = "all" if x.log_keep is None else "heads" if x.log_keep.ndim == 3 else "features"
    look = (x.map, x.scale, x.nu, x.floor, x.epsilon, x.factor, x.queries.dtype != torch.bfloat16)
    settings = settings_for(
        rows * heads,
        length,
        shape.features,
        shape.values,
        keep,
        x.erase is not None,
        x.map,
        x.queries.dtype,
        processors_of(x.queries.device),
        room_of(x.queries.device),
    )
    if x.counts and x.erase is not None:  # what a part does to a page that is erased it does not do to the sum of keys
        settings = replace(settings, parts=1)
    settings = tuned("memory_scan", x, settings)
    return Problem(shape, look, keep, x.limit, x.shared, settings, PRECISIONS[x.queries.dtype], known)


def known_about(tensors: Sequence[Tensor | None], about: Sequence) -> dict:
    """What was found out for tensors of a layout."""
    return known_of((layout_of(tensors), about))


def known_problem(x: Inputs, *others: Tensor | None) -> Problem:
    known = known_about((*x[:TENSORS], *others), x[TENSORS:])
    return once(known, "problem", lambda: problem(known, x))


def scan_op(*inputs) -> Sequence[Tensor | None]:
    """Reads, the last page, what was read of the sum of keys and, if asked to, all that backward needs."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]
    made = repeated(known_about(tensors, about), tensors, lambda *given: forward(Inputs(*given, *about)))
    return handed_on(made, about[-1])


def scan_back_op(grads, kept, *inputs) -> Sequence[Tensor | None]:
    """Gradients of all but the matrix."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]
    given = *tensors, *arriving(tensors[2], about[-2], *grads)
    known = known_about(given, about)

    def work(*given):
        return backward(Inputs(*given[:TENSORS], *about), *given[TENSORS:])

    *most, of_memory, _ = repeated(known, given, work, kept)
    return *most, None if of_memory is None else of_memory[:, 0].view(tensors[6].shape)


def arriving(values: Tensor, counts: bool, of_reads: Tensor | None, of_last: Tensor | None, of_mass: Tensor | None):
    """Gradients as the kernels take them."""
    of_reads = torch.zeros_like(values) if of_reads is None else in_line(of_reads)
    of_last = None if of_last is None else of_last.contiguous()
    if counts:
        tokens = values.shape[:-1]
        of_mass = values.new_zeros(tokens, dtype=torch.float32) if of_mass is None else of_mass.contiguous()
    return of_reads, of_last, of_mass


def handed_on(made: Sequence[Tensor | None], saves: bool) -> Sequence[Tensor | None]:
    """Without what only backward needs, if nothing is saved for it."""
    return made if saves else made[:-1]


def shapes(*inputs) -> Sequence[Tensor | None]:
    x = Inputs(*inputs)
    p = problem({}, x)
    return handed_on(results(p, x.values, rooms_for(p, x)[0]), x.saves)


memory_scan = Operation("memory_scan", INPUTS, scan_op, scan_back_op, shapes, learned=7, results=3, kept_from=3)


def recorded(*inputs) -> Recording | None:
    return known_about(inputs[:TENSORS], inputs[TENSORS:]).get(RECORDING)


def recorded_back(grads, kept, *inputs) -> Recording | None:
    """None, too, where gradients do not come as the kernels take them, or that of a memory has to be found."""
    tensors, about = inputs[:TENSORS], inputs[TENSORS:]
    arrived = arriving(tensors[2], about[-2], *grads)
    usual = tensors[6] is None and same(arrived, grads)
    return known_about((*tensors, *arrived), about).get(RECORDING) if usual else None


REPEATABLE = Repeatable(memory_scan, recorded, recorded_back)


def habits_of(gates: Gates, memory: Tensor | None, look: Look | None) -> list[Habit]:
    """Of passes with gradients, by all that is said beside tensors."""
    log_keep, erase, write, limit = gates
    there = log_keep is None, erase is None, write is None, write is erase, memory is None
    return known_of(("habits", look and (look.matrix is None, look[2:]), limit, there)).setdefault("habits", [])


def given_to(queries, keys, values, gates, memory, look) -> list[Tensor]:
    """Without what is None, or there twice."""
    log_keep, erase, write, _ = gates
    write, matrix = None if write is erase else write, look and look.matrix
    return [x for x in (queries, keys, values, log_keep, erase, write, memory, matrix) if x is not None]


def scan_again(queries, keys, values, gates, memory, look) -> tuple[Tensor, ...] | None:
    """Reads and the last page, where the same was done before with tensors of the same layout; with gradients only."""
    habits = habits_of(gates, memory, look)
    return again(habits, given_to(queries, keys, values, gates, memory, look)) if habits else None


def scan(
    queries, keys, values, gates, memory: Tensor | None, look: Look | None = None, counts: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As the plain forms, but for raw queries and keys where a look says what becomes of them; no memory is a bare one.

    Where keys are counted, the last column of the memory is their sum, and the last result what queries read of it;
    elsewhere that means nothing.
    """
    log_keep, erase, write, limit = gates
    first = queries, keys, values, gates, memory, look
    shared = erase is not None and erase is write
    queries, keys, values = in_line(queries), in_line(keys), in_line(values)
    if log_keep is not None and log_keep.ndim == 4:
        log_keep = in_line(log_keep)
    about = look or PLAIN
    matrix = None if about.matrix is None else about.matrix.float().contiguous()
    memory = None if memory is None else memory.float().contiguous()
    saves = wants_gradients(queries, keys, values, gates, memory)
    if not saves and short(queries):
        if memory is None:
            features = about.features(queries.shape[-1])
            memory = values.new_zeros(len(values), values.shape[2], features, values.shape[-1], dtype=torch.float32)
        return decode(queries, keys, values, log_keep, erase, write, memory, matrix, *about[2:], limit or 0.0, counts)
    repeatable, inputs = sums.REPEATABLE, (queries, keys, values, memory)
    if not sums_up(gates, about, counts):
        tensors = queries, keys, values, log_keep, erase, None if shared else write, memory, matrix
        repeatable, inputs = REPEATABLE, (*tensors, *about[2:], limit or 0.0, shared, counts, saves)
    reads, last, *mass = repeatable.operation(*inputs)
    if saves and not counts and not watched():
        accustom(habits_of(*first[3:]), repeatable, given_to(*first), inputs)
    return reads, last, mass[0] if mass else None


def in_line(x: Tensor) -> Tensor:
    """With the numbers of its last axis one behind the other."""
    return x if x.stride()[-1] == 1 else x.contiguous()  # torch takes longer to tell one stride than all


def sums_up(gates: Gates, look: Look, counts: bool) -> bool:
    """Whether nothing is done but to add up values under keys as they are."""
    bare = (look.map, look.scale) == BARE[:2] and not counts
    return bare and all(gate is None for gate in gates[:3])


def wants_gradients(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    if queries.requires_grad or keys.requires_grad or values.requires_grad:  # as nearly always
        return True
    return any(x is not None and x.requires_grad for x in (*gates[:3], memory))


def kernel_for(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor | None) -> str:
    """The one that `scan` would launch, by the name that it is trusted by."""
    decodes = short(queries) and not wants_gradients(queries, keys, values, gates, memory)
    return "memory_decode" if decodes else "memory_scan"


def refusal(queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor | None, look: Look | None) -> str | None:
    """Why this cannot be done here, if it cannot."""
    if not queries.is_cuda and not INTERPRETED:
        return f"the fused backend needs a CUDA device; found {queries.device}"
    same = queries.dtype == keys.dtype == values.dtype and queries.dtype in PRECISIONS
    if not same or (memory is not None and memory.dtype == torch.float64):
        found = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in (queries, keys, values)}))
        return f"the fused backend knows queries, keys and values all of float32, bfloat16 or float16; found {found}"
    features = (look or PLAIN).features(queries.shape[-1])
    if max(features, values.shape[-1]) > MOST:
        return f"the fused backend holds at most {MOST} features and values; found {features} and {values.shape[-1]}"
    return None
