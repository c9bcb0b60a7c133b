"""The originals' own ways to score a text, target for target: where theirs leave tokens out, these do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..attention.spans import CachedSegments
from ..errors import UserError
from ..evaluation.perplexity import Protocol, Reader, Reading, Row, Series, Windows, ceil_div
from ..spec import Count, Size
from .streams import TransformerXLSentences


@dataclass(frozen=True)
class TransformerXLColumns(Protocol):
    """Transformer-XL's eval.py: columns side by side, in segments with the memory of those before, if there is any."""

    segment: Size = 5  # tgt_len
    memory: Count = 0  # mem_len; without one every segment is read from a fresh state
    extra: Count = 0  # ext_len: tokens before a segment that are read again with it
    same_length: bool = False  # switches it on, never off
    clamp: Size | None = None  # clamp_len; None: as the model was built
    rows: Size = 10  # batch_size

    def __post_init__(self):
        super().__post_init__()
        if self.same_length and not self.memory:
            raise UserError("same_length with a memory of 0 would see nothing at all: give a memory, or leave it out")

    def read(self, reader: Reader) -> Iterator[Reading]:
        columns = cut_columns(len(reader.ids), self.rows)
        reader = self.remembering(reader)
        if self.memory == 0:
            return reader.windows(self.windows(columns))
        return reader.rows(
            [Row(column.start, column.stop - 1, column.start) for column in columns], self.segment, self.extra
        )

    def remembering(self, reader: Reader) -> Reader:
        if self.memory == 0:
            return reader if self.clamp is None else reader.remembering(0, False, self.clamp)
        caches = [part.spec for part in reader.model.modules() if isinstance(part, CachedSegments)]
        same_length = self.same_length or any(cache.same_length for cache in caches)
        return reader.remembering(self.memory, same_length, self.clamp, self.extra)

    def windows(self, columns: list[range]) -> Iterator[Series]:
        """Whole segments with all their extra tokens column by column, the few others side by side."""
        column, targets = len(columns[0]), len(columns[0]) - 1
        whole = range(ceil_div(self.extra, self.segment) * self.segment, targets - self.segment + 1, self.segment)
        for first in (column.start - self.extra for column in columns):
            starts = range(first + whole.start, first + whole.stop, self.segment)
            yield Series(starts, self.extra + self.segment, skip=self.extra)
        for start in range(0, targets, self.segment):
            if start not in whole:
                again, length = min(self.extra, start), min(self.segment, targets - start)
                starts = range(start - again, start - again + column * len(columns), column)
                yield Series(starts, again + length, skip=again)

    def unscored(self, ids: np.ndarray) -> list[range]:
        columns = cut_columns(len(ids), self.rows)
        return [*(column[:1] for column in columns), range(columns[-1].stop, len(ids))]


@dataclass(frozen=True)
class TransformerXLSentenceRows(Protocol):
    """Transformer-XL's eval.py on One Billion Word: rows that take the next sentence when they have read one."""

    segment: Size = 32  # tgt_len
    memory: Count = 128  # mem_len
    same_length: bool = False
    clamp: Size | None = None  # clamp_len; None: as the model was built
    rows: Size = 10  # batch_size

    def read(self, reader: Reader) -> Iterator[Reading]:
        reader, state, before = reader.remembering(self.memory, self.same_length, self.clamp), None, 0
        for places in map(reader.own, self.places(reader.ids)):
            if not len(places):
                return
            there = torch.from_numpy(places).to(reader.device)
            nats, state = reader.call(there, state=state)
            yield Reading(there + 1, nats, before + reader.numbers(1, self.segment + 1))
            before += self.segment

    def places(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        """Where each batch of the text is read, `b t`."""
        stream = TransformerXLSentences().build(ids, self.rows, self.segment, seed=0)
        while (places := stream.read()) is not None:
            yield places

    def unscored(self, ids: np.ndarray) -> list[range]:
        scored = np.zeros(len(ids) + 1, bool)
        for places in self.places(ids):
            scored[places + 1] = True
        left = np.flatnonzero(~scored[:-1])
        runs = np.split(left, np.flatnonzero(np.diff(left) != 1) + 1)
        return [range(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]


@dataclass(frozen=True)
class LmtoolSlidingWindow(Windows):
    """lmtool's eval_sliding_window.py: columns side by side, a window for each target, the first one scored whole."""

    context: Size = 5  # tgt_len
    skip_first: bool = False  # of the first window, too, only the last target counts
    clamp: Size | None = None  # clamp_len; None: as the model was built
    rows: Size = 10  # batch_size

    def read(self, reader: Reader) -> Iterator[Reading]:
        windows = self.windows(reader.targets)
        return (reader if self.clamp is None else reader.remembering(0, False, self.clamp)).windows(windows)

    def windows(self, targets: int) -> Iterator[Series]:
        for column in cut_columns(targets + 1, self.rows, least=self.context + 1):
            starts = column[: -self.context]
            yield Series(starts[:1], self.context, self.context - 1 if self.skip_first else 0)
            yield Series(starts[1:], self.context, self.context - 1)

    def unscored(self, ids: np.ndarray) -> list[range]:
        columns = cut_columns(len(ids), self.rows, least=self.context + 1)
        skipped = self.context if self.skip_first else 1
        return [*(column[:skipped] for column in columns), range(columns[-1].stop, len(ids))]


@dataclass(frozen=True)
class AdaptiveSpanBlocks(Protocol):
    """adaptive-span's --full-eval-mode: rows side by side, in whole blocks that hand on the model's own state."""

    segment: Size = 512  # block-sz
    rows: Size = 8  # batch-sz

    def read(self, reader: Reader) -> Iterator[Reading]:
        rows = [Row(scored.start - 1, scored.stop - 1, scored.start - 1) for scored in self.scored(len(reader.ids))]
        return reader.rows(rows, self.segment)

    def scored(self, tokens: int) -> list[range]:
        """The targets of each row: those of its whole blocks."""
        rows = cut_columns(tokens, self.rows, least=self.segment + 1)
        return [row[1 : 1 + (len(row) - 1) // self.segment * self.segment] for row in rows]

    def unscored(self, ids: np.ndarray) -> list[range]:
        scored = self.scored(len(ids))
        ends = [0, *(targets.stop for targets in scored)]
        starts = [*(targets.start for targets in scored), len(ids)]
        return [range(end, start) for end, start in zip(ends, starts, strict=True)]


def cut_columns(tokens: int, rows: int, least: int = 2) -> list[range]:
    """Equally long parts of a text one after the other; what is left at its end is dropped."""
    length = tokens // rows
    if length < least:
        raise UserError(
            f"{rows} rows of {tokens:,} tokens have {length:,} each, and need at least {least:,}: ask for fewer rows"
        )
    return [range(row * length, (row + 1) * length) for row in range(rows)]
