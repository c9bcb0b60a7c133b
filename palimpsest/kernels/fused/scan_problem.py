"""What the kernels of the memory scan are told, what they make, and where what only they see is kept."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...look import PRODUCTS
from . import bands
from .buffer import Buffer, tensors_in
from .features import holding
from .products import Precision
from .scan_settings import BAND, Settings

WOVEN = bands.WOVEN.value  # tokens of a chunk whose notes are saved as they were multiplied
BARE = ("Identity", "Unscaled", 1, 0.0, 0.0, 1.0, False)  # a look that changes nothing
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
