"""Exact scores: nats are added, tokens are counted, and one is divided by the other once, at the end.

Of n tokens the last n − 1 are targets. A protocol says from how much context each of them is predicted;
it is part of the score, because without it the number means nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import UserError
from ..serialise import to_json
from ..spec import Spec
from ..state import State, rows_of
from ..world import ALONE, World

Rows = TypeVar("Rows", list["Row"], np.ndarray)

TOKENS_AT_ONCE = 16384


class Reading(NamedTuple):
    """Targets of the text one after the other: where the first stands, their nats `t`, the context each had."""

    first: int
    nats: Tensor
    context: np.ndarray  # t, tokens


class Protocol(Spec):
    def read(self, reader: "Reader") -> Iterator[Reading]:
        """Every target that counts, once."""
        raise NotImplementedError

    def unscored(self, ids: np.ndarray) -> list[range]:
        """Which tokens of a text are never targets: of ours the first alone, which nothing foretells."""
        return [range(1)]


class Window(NamedTuple):
    """Targets start+1 … end of the text, read from a fresh state; the first `skip` of them do not count here."""

    start: int
    end: int
    skip: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Windows(Protocol):
    """Protocols that read windows of the text, each from a fresh state."""

    def windows(self, targets: int) -> Iterator[Window]:
        """Windows of one length, but for a few; each target counts in at most one."""
        raise NotImplementedError

    def read(self, reader: "Reader") -> Iterator[Reading]:
        return reader.windows(self.windows(reader.targets))


@dataclass(frozen=True)
class Segments(Windows):
    """The text is cut into segments; each is read from a fresh state, so early targets have little context."""

    length: int = 256

    def __post_init__(self):
        check_counts(length=self.length)

    def windows(self, targets: int) -> Iterator[Window]:
        return (Window(start, min(start + self.length, targets), 0) for start in range(0, targets, self.length))


@dataclass(frozen=True)
class SlidingWindow(Windows):
    """Every target but the first few is predicted from more than `context − stride` tokens."""

    context: int = 256
    stride: int = 32

    def __post_init__(self):
        if not 1 <= self.stride <= self.context:
            raise UserError(f"a stride lies between 1 and the context of {self.context}; found {self.stride}")

    def windows(self, targets: int) -> Iterator[Window]:
        end = min(self.context, targets)
        yield Window(0, end, 0)
        while end < targets:
            scored, end = end, min(end + self.stride, targets)
            yield Window(end - self.context, end, scored - (end - self.context))


class Row(NamedTuple):
    """Targets start+1 … end of the text, read in segments that hand on their state; those after `warm` count."""

    start: int
    end: int
    warm: int


@dataclass(frozen=True)
class CarriedState(Protocol):
    """The text is read from end to end, in segments that hand on their state: all the context there is."""

    segment: int = 512
    rows: int = 1  # parts of the text read side by side, each from a fresh state

    def __post_init__(self):
        check_counts(segment=self.segment, rows=self.rows)

    def read(self, reader: "Reader") -> Iterator[Reading]:
        return reader.rows(cut_rows(reader.targets, self.segment, self.rows, warm_up=0), self.segment)


@dataclass(frozen=True)
class CachedMemory(Protocol):
    """The text is read in segments that remember the tokens before them, as many as are asked for here."""

    segment: int = 128
    memory: int = 640  # tokens before the segment that each layer remembers
    same_length: bool = False  # each target sees as many tokens as the memory holds
    clamp: int | None = None  # distances beyond it look like it; None: as the model was built
    rows: int = 1  # parts of the text read side by side
    warm_up: bool = True  # each row first reads, unscored, all that a single row would remember there

    def __post_init__(self):
        check_counts(segment=self.segment, rows=self.rows, clamp=self.clamp)
        check_counts(0, memory=self.memory)

    def read(self, reader: "Reader") -> Iterator[Reading]:
        reach = reader.layers * (self.memory + self.segment)
        rows = cut_rows(reader.targets, self.segment, self.rows, warm_up=reach if self.warm_up else 0)
        for reading in reader.remembering(self.memory, self.same_length, self.clamp).rows(rows, self.segment):
            yield reading._replace(context=reading.context.clip(max=reach))


def check_counts(least: int = 1, **counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < least:
            raise UserError(f"{name.replace('_', ' ')} is at least {least}; found {count}")


def cut_rows(targets: int, segment: int, rows: int, warm_up: int) -> list[Row]:
    """Parts of whole segments, as even as can be; before its own a row reads the `warm_up` tokens, or a few more."""
    segments, before = ceil_div(targets, segment), segment * ceil_div(warm_up, segment)
    borders = [*(segment * (segments * row // rows) for row in range(rows)), targets]
    return [Row(max(0, start - before), end, start) for start, end in pairwise(borders) if start < end]


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True)
class Reader:
    """Reads a text with a model, in batches of no more tokens than `tokens_at_once` (but of one row at least)."""

    model: nn.Module
    ids: np.ndarray
    device: torch.device
    tokens_at_once: int
    documents: np.ndarray | None = None  # where each begins, and where the last one ends
    world: World = ALONE  # of which each process reads its share

    @property
    def targets(self) -> int:
        return len(self.ids) - 1

    @property
    def layers(self) -> int:
        return self.model.spec.layers  # pyright: ignore

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int = 0) -> "Reader":
        """The same model with another memory."""
        model = self.model.remembering(memory, same_length, clamp, extra)  # pyright: ignore[reportCallIssue]
        return replace(self, model=model.eval())

    def windows(self, windows: Iterator[Window]) -> Iterator[Reading]:
        for group in islice(self.batches(windows), self.world.rank, None, self.world.size):
            nats, _ = self.call([window.start for window in group], group[0].length)
            for row, window in zip(nats, group, strict=True):
                context = np.arange(window.skip + 1, window.length + 1)
                yield Reading(window.start + 1 + window.skip, row[window.skip :], context)

    def batches(self, windows: Iterator[Window]) -> Iterator[list[Window]]:
        """Windows of one length together, as many as fit."""
        group: list[Window] = []
        for window in windows:
            full = (len(group) + 1) * window.length > self.tokens_at_once
            if group and (full or window.length != group[0].length):
                yield group
                group = []
            group.append(window)
        yield group

    def rows(self, rows: list[Row], segment: int, extra: int = 0) -> Iterator[Reading]:
        """Rows side by side, as many as fit; each segment reads the `extra` tokens before it once more."""
        at_once, rows = max(1, self.tokens_at_once // (segment + extra)), self.own(rows)
        for first in range(0, len(rows), at_once):
            yield from self.side_by_side(rows[first : first + at_once], segment, extra)

    def own(self, rows: Rows) -> Rows:
        """Of rows that are read side by side, those of this process."""
        return rows[self.world.rank :: self.world.size]

    def side_by_side(self, rows: list[Row], segment: int, extra: int) -> Iterator[Reading]:
        """One call for each segment of all rows that have a whole one left; those that end sooner end by themselves."""
        state, read = None, 0
        while rows:
            again, going_on, next_state = min(extra, read), [], None
            lengths = [min(segment, row.end - row.start - read) for row in rows]
            for length in sorted({*lengths} - {0}):
                chosen = [place for place, found in enumerate(lengths) if found == length]
                group = [rows[place] for place in chosen]
                before = state if len(group) == len(rows) else rows_of(state, torch.tensor(chosen))
                nats, after = self.call([row.start + read - again for row in group], again + length, before)
                for line, row in zip(nats[:, again:], group, strict=True):
                    skip = min(max(row.warm - row.start - read, 0), length)
                    context = np.arange(read + skip + 1, read + length + 1)
                    yield Reading(row.start + read + skip + 1, line[skip:], context)
                if length == segment:
                    going_on, next_state = group, after
            rows, state, read = going_on, next_state, read + segment

    def call(self, starts: list[int], length: int, state: State = None) -> tuple[Tensor, State]:
        batch = Batch.cut(self.ids, starts, length, documents=self.documents)
        nats, state = self.model(batch.to(self.device), state)
        return nats.double().cpu(), state

    def within_documents(self, reading: Reading) -> Reading:
        """Without the first token of any document, which nothing foretells, and with no context from another."""
        if self.documents is None:
            return reading
        places = np.arange(reading.first, reading.first + len(reading.nats))
        inside = places - self.documents[np.searchsorted(self.documents, places, side="right") - 1]
        told = inside > 0
        return Reading(reading.first, reading.nats[torch.from_numpy(told)], np.minimum(reading.context, inside)[told])


class Tally:
    """Nats and tokens, in all and by place: how many tokens of context a target had, in powers of two."""

    def __init__(self) -> None:
        self.nats = np.zeros(64)
        self.tokens = np.zeros(64, dtype=np.int64)

    def add(self, reading: Reading) -> None:
        octaves = np.floor(np.log2(reading.context)).astype(int)
        np.add.at(self.nats, octaves, reading.nats.numpy())
        np.add.at(self.tokens, octaves, 1)

    def of_all(self, world: World) -> "Tally":
        """What all processes have read; in place."""
        for numbers in (self.nats, self.tokens):
            world.sum(torch.from_numpy(numbers))
        return self

    def by_context(self) -> list[dict[str, float]]:
        return [
            {"from": 2**i, "to": 2 ** (i + 1), "tokens": int(n), "nats_per_token": float(self.nats[i] / n)}
            for i, n in enumerate(self.tokens)
            if n
        ]


@dataclass(frozen=True)
class Score:
    """How well a text was predicted, and how that was measured."""

    protocol: Protocol
    nats: float
    tokens: int
    characters: int | None
    bytes: int
    by_position: list[dict[str, float]]

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    def to_json(self) -> dict[str, Any]:
        bits = self.nats / math.log(2)
        return {
            "protocol": to_json(self.protocol),
            "tokens": self.tokens,
            "characters": self.characters,
            "bytes": self.bytes,
            "nats": self.nats,
            "nats_per_token": self.nats_per_token,
            "perplexity": math.exp(min(self.nats_per_token, 700.0)),
            "bits_per_token": bits / self.tokens,
            "bits_per_character": bits / self.characters if self.characters else None,
            "bits_per_byte": bits / self.bytes,
            "by_position": self.by_position,
        }


def evaluate(
    model: nn.Module,
    ids: np.ndarray,
    protocol: Protocol,
    characters: int | None,
    bytes: int,
    world: World = ALONE,
    tokens_at_once: int = TOKENS_AT_ONCE,
    documents: np.ndarray | None = None,
) -> Score:
    """Score `ids`; `characters` and `bytes` are the size of the targets as text.

    What is read at once is invisible, and by how many processes.
    """
    if len(ids) < 2:
        raise UserError(f"a text of {len(ids)} tokens has nothing to predict: at least 2 are needed")
    was_training = model.training
    model.eval()
    tally = Tally()
    with torch.inference_mode():
        reader = Reader(model, ids, world.device, tokens_at_once, documents, world)
        for reading in protocol.read(reader):
            tally.add(reader.within_documents(reading))
    model.train(was_training)
    tally.of_all(world)
    if tally.tokens.sum() > len(ids) - 1:
        raise UserError(f"{type(protocol).__name__} counted targets twice: Reader.own tells each process what to read")
    return Score(protocol, float(tally.nats.sum()), int(tally.tokens.sum()), characters, bytes, tally.by_context())
