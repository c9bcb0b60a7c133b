"""Exact scores: nats are added, tokens are counted, and one is divided by the other once, at the end.

Of n tokens the last n − 1 are targets. A protocol says from how much context each of them is predicted;
it is part of the score, because without it the number means nothing.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import UserError
from ..serialise import to_json
from ..spec import Count, Size, Spec
from ..state import State, rows_of
from ..world import ALONE, World
from .rest import at_rest

Rows = TypeVar("Rows", list["Row"], range, np.ndarray)

TOKENS_AT_ONCE = 2**12  # what a layer makes of them stays in the cache of a CPU
BYTES_FOR_EACH = 2**19  # of the memory of a GPU, which is the faster the more it reads at once


class Reading(NamedTuple):
    """Targets of a batch, on its device: where each stands in the text (0: it does not count), its nats and context."""

    places: Tensor  # b t
    nats: Tensor  # b t
    context: Tensor  # b t, or t, tokens


class Protocol(Spec):
    def read(self, reader: "Reader") -> Iterator[Reading]:
        """Every target that counts, once."""
        raise NotImplementedError

    def unscored(self, ids: np.ndarray) -> list[range]:
        """Which tokens of a text are never targets: of ours the first alone, which nothing foretells."""
        return [range(1)]


class Series(NamedTuple):
    """Windows of one length that begin after `starts` tokens; the first `skip` targets of each do not count here."""

    starts: range
    length: int
    skip: int


class Windows(Protocol):
    """Protocols that read windows of the text, each from a fresh state."""

    def windows(self, targets: int) -> Iterator[Series]:
        """Each target counts in at most one."""
        raise NotImplementedError

    def read(self, reader: "Reader") -> Iterator[Reading]:
        return reader.windows(self.windows(reader.targets))


@dataclass(frozen=True)
class Segments(Windows):
    """The text is cut into segments; each is read from a fresh state, so early targets have little context."""

    length: Size = 256

    def windows(self, targets: int) -> Iterator[Series]:
        rest = targets % self.length
        yield Series(range(0, targets - rest, self.length), self.length, skip=0)
        if rest:
            yield Series(range(targets - rest, targets, rest), rest, skip=0)


@dataclass(frozen=True)
class SlidingWindow(Windows):
    """Every target but the first few is predicted from more than `context − stride` tokens."""

    context: Size = 256
    stride: int = 32

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.stride <= self.context:
            raise UserError(f"a stride lies between 1 and the context of {self.context}; found {self.stride}")

    def windows(self, targets: int) -> Iterator[Series]:
        first, last = min(self.context, targets), targets - self.context
        yield Series(range(1), first, skip=0)
        yield Series(range(self.stride, last + 1, self.stride), self.context, self.context - self.stride)
        if rest := (targets - first) % self.stride:
            yield Series(range(last, last + 1), self.context, self.context - rest)


class Row(NamedTuple):
    """Targets start+1 … end of the text, read in segments that hand on their state; those after `warm` count."""

    start: int
    end: int
    warm: int


@dataclass(frozen=True)
class CarriedState(Protocol):
    """The text is read from end to end, in segments that hand on their state: all the context there is."""

    segment: Size = 512
    rows: Size = 1  # parts of the text read side by side, each from a fresh state

    def read(self, reader: "Reader") -> Iterator[Reading]:
        return reader.rows(cut_rows(reader.targets, self.segment, self.rows, warm_up=0), self.segment)


@dataclass(frozen=True)
class CachedMemory(Protocol):
    """The text is read in segments that remember the tokens before them, as many as are asked for here."""

    segment: Size = 128
    memory: Count = 640  # tokens before the segment that each layer remembers
    same_length: bool = False  # each target sees as many tokens as the memory holds
    clamp: Size | None = None  # distances beyond it look like it; None: as the model was built
    rows: Size = 1  # parts of the text read side by side
    warm_up: bool = True  # each row first reads, unscored, all that a single row would remember there

    def read(self, reader: "Reader") -> Iterator[Reading]:
        reach = reader.layers * (self.memory + self.segment)
        rows = cut_rows(reader.targets, self.segment, self.rows, warm_up=reach if self.warm_up else 0)
        for reading in reader.remembering(self.memory, self.same_length, self.clamp).rows(rows, self.segment):
            yield reading._replace(context=reading.context.clamp(max=reach))


def cut_rows(targets: int, segment: int, rows: int, warm_up: int) -> list[Row]:
    """Parts of whole segments, as even as can be; before its own a row reads the `warm_up` tokens, or a few more."""
    segments, before = ceil_div(targets, segment), segment * ceil_div(warm_up, segment)
    borders = [*(segment * (segments * row // rows) for row in range(rows)), targets]
    return [Row(max(0, start - before), end, start) for start, end in pairwise(borders) if start < end]


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


@dataclass(frozen=True)
class Reader:
    """Reads a text with a model, in batches of no more tokens than `tokens_at_once` (but of one row at least).

    The text is put on the device once, batches are cut there, and nothing is waited for.
    """

    model: nn.Module
    ids: np.ndarray
    device: torch.device
    tokens_at_once: int
    documents: np.ndarray | None = None  # where each begins, and where the last one ends
    world: World = ALONE  # of which each process reads its share
    memory: int = 0  # tokens that a row remembers: they, too, take room

    @property
    def targets(self) -> int:
        return len(self.ids) - 1

    @property
    def layers(self) -> int:
        return self.model.spec.layers  # pyright: ignore

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int = 0) -> "Reader":
        """The same model with another memory."""
        model = self.model.remembering(memory, same_length, clamp, extra)  # pyright: ignore[reportCallIssue]
        return replace(self, model=model.eval(), memory=memory)

    @cached_property
    def text(self) -> Tensor:
        """The tokens, in one byte each or in four."""
        kept = self.ids.astype(np.uint8 if self.ids.dtype == np.uint8 else np.int32)
        return torch.from_numpy(kept).to(self.device)

    @cached_property
    def borders(self) -> Tensor | None:
        return None if self.documents is None else torch.from_numpy(np.array(self.documents)).to(self.device)

    def windows(self, windows: Iterable[Series]) -> Iterator[Reading]:
        """As many of a series at once as fit."""
        for starts, length, skip in windows:
            starts, at_once = self.own(starts), max(1, self.tokens_at_once // length)
            context = self.numbers(skip + 1, length + 1)
            for first in range(0, len(starts), at_once):
                group = starts[first : first + at_once]
                places = self.numbers(group.start, group.stop, group.step)[:, None] + self.numbers(0, length)
                nats, _ = self.call(places, skip)
                yield Reading(places[:, skip:] + 1, nats, context)

    def rows(self, rows: list[Row], segment: int, extra: int = 0) -> Iterator[Reading]:
        """Rows side by side, as many as fit; each segment reads the `extra` tokens before it once more."""
        at_once, rows = max(1, self.tokens_at_once // (self.memory + extra + segment)), self.own(rows)
        for first in range(0, len(rows), at_once):
            yield from self.side_by_side(rows[first : first + at_once], segment, extra)

    def own(self, rows: Rows) -> Rows:
        """Of rows that are read side by side, those of this process."""
        return rows[self.world.rank :: self.world.size]

    def side_by_side(self, rows: list[Row], segment: int, extra: int) -> Iterator[Reading]:
        """One call for each segment of all rows that have a whole one left; those that end sooner end by themselves."""
        left, read = [row.end - row.start for row in rows], 0
        going_on = torch.tensor([(row.start, row.warm) for row in rows], device=self.device), None
        while left:
            present, again = going_on, min(extra, read)
            lengths = [min(segment, tokens) for tokens in left]
            for length in sorted({*lengths} - {0}):  # the whole ones last: they go on
                borders, state = self.chosen(present, [place for place, found in enumerate(lengths) if found == length])
                start, warm = borders.split(1, dim=1)
                places = start + self.numbers(read - again, read + length)
                nats, state = self.call(places, again, state)
                targets = places[:, again:] + 1
                yield Reading(targets.where(targets > warm, 0), nats, self.numbers(read + 1, read + length + 1))
                going_on = borders, state
            left, read = [tokens - segment for tokens in left if tokens >= segment], read + segment

    def chosen(self, rows: tuple[Tensor, State], places: list[int]) -> tuple[Tensor, State]:
        return rows if len(places) == len(rows[0]) else rows_of(rows, torch.tensor(places, device=self.device))

    def call(self, places: Tensor, skip: int = 0, state: State = None) -> tuple[Tensor, State]:
        """The nats of the tokens that follow those at the places, `b t`, but for the first `skip` of each row."""
        batch = Batch.at(self.text, places, documents=self.borders)
        return self.model(batch.asked_from(skip), state)

    def numbers(self, first: int, end: int, step: int = 1) -> Tensor:
        return torch.arange(first, end, step, device=self.device)

    def within_documents(self, reading: Reading) -> Reading:
        """Without the first token of any document, which nothing foretells, and with no context from another."""
        if self.borders is None:
            return reading
        inside = reading.places - self.borders[torch.searchsorted(self.borders, reading.places, right=True) - 1]
        return Reading(reading.places.where(inside > 0, 0), reading.nats, reading.context.minimum(inside))


class Tally:
    """Of each target, by its place in the text: nats, tokens of context, how often it was counted.

    It is kept on the device of the readings, so that nobody waits for a batch; place 0, of the token that nothing
    foretells, takes what does not count.
    """

    def __init__(self, tokens: int, device: torch.device):
        self.nats = torch.zeros(tokens, dtype=torch.float64, device=device)
        self.context, self.times = torch.zeros(2, tokens, dtype=torch.int32, device=device)

    def add(self, reading: Reading) -> None:
        places = reading.places.flatten()
        self.nats[places] = reading.nats.flatten().double()
        self.context[places] = reading.context.expand_as(reading.places).flatten().int()
        self.times.index_add_(0, places, torch.ones_like(places, dtype=torch.int32))

    def of_all(self, world: World) -> "Tally":
        """What all processes have read, on the host; in place."""
        for numbers in (self.nats, self.context, self.times):
            numbers[0] = 0
        self.nats, self.context, self.times = (world.sum(x.cpu()) for x in (self.nats, self.context, self.times))
        return self

    def by_context(self) -> list[dict[str, float]]:
        """In powers of two."""
        counted = self.times.bool()
        octaves = np.frexp(self.context[counted].numpy())[1] - 1
        tokens, nats = np.bincount(octaves), np.bincount(octaves, self.nats[counted].numpy())
        return [
            {"from": 2**i, "to": 2 ** (i + 1), "tokens": int(tokens[i]), "nats_per_token": float(nats[i] / tokens[i])}
            for i in np.flatnonzero(tokens).tolist()
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
    tokens_at_once: int | None = None,
    documents: np.ndarray | None = None,
) -> Score:
    """Score `ids`; `characters` and `bytes` are the size of the targets as text.

    What is read at once is invisible (by default as much as suits the device), and by how many processes.
    """
    tally = read_text(model, ids, protocol, world, tokens_at_once, documents)
    nats, tokens = float(tally.nats.sum()), int(tally.times.sum())
    if not tokens:
        raise UserError(
            f"none of the {len(ids):,} tokens is foretold by another: give a longer text, or longer documents"
        )
    return Score(protocol, nats, tokens, characters, bytes, tally.by_context())


def read_text(
    model: nn.Module,
    ids: np.ndarray,
    protocol: Protocol,
    world: World = ALONE,
    tokens_at_once: int | None = None,
    documents: np.ndarray | None = None,
) -> Tally:
    """What each target costs."""
    if len(ids) < 2:
        raise UserError(f"a text of {len(ids)} tokens has nothing to predict: at least 2 are needed")
    with at_rest(model), torch.inference_mode():
        tally = Tally(len(ids), world.device)
        reader = Reader(model, ids, world.device, tokens_at_once or suited_to(world.device), documents, world)
        for reading in protocol.read(reader):
            tally.add(reader.within_documents(reading))
        tally.of_all(world)
    if (tally.times > 1).any():
        raise UserError(f"{type(protocol).__name__} counted targets twice: Reader.own tells each process what to read")
    return tally


def suited_to(device: torch.device) -> int:
    """How many tokens a device reads at once."""
    if device.type != "cuda":
        return TOKENS_AT_ONCE
    return max(TOKENS_AT_ONCE, torch.cuda.get_device_properties(device).total_memory // BYTES_FOR_EACH)
