"""The orders in which the original toolkits read a text, token for token.

Their chance is numpy's and Python's older global generators, which went on from epoch to epoch: an epoch is found
again by drawing all that came before it.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..batch import Batch
from ..data.streams import Order, Plan, PlannedStream, Stream, check_sizes, no_such_step, too_short
from ..errors import UserError
from ..spec import Count


class Columns(Order):
    """Rows are equal parts of the text; the few tokens that are left over are not read."""

    continues = True

    def fewest(self, batch: int, segment: int) -> int:
        return 2 * batch

    def rows(self, stream: PlannedStream) -> np.ndarray:
        return np.arange(stream.batch) * row_length(stream)


@dataclass(frozen=True)
class TransformerXLSegments(Columns):
    """Transformer-XL's batches: equal parts of the text, read to their ends, the last segment shorter."""

    extra: Count = 0  # tokens before each segment that are read again (ext_len)

    def plan(self, stream: PlannedStream, epoch: int) -> Plan:
        targets = row_length(stream) - 1
        places = np.arange(0, targets, stream.segment)
        return Plan.along(places, np.minimum(stream.segment, targets - places), self.rows(stream), self.extra)


@dataclass(frozen=True)
class TransformerXLRandomLengths(Columns):
    """Transformer-XL's batches of random lengths (varlen), drawn from numpy's older generator."""

    extra: Count = 0  # tokens before each segment that are read again (ext_len)

    def plan(self, stream: PlannedStream, epoch: int) -> Plan:
        chance = older_generator(stream.seed)
        for _ in range(epoch):
            list(self.lengths(stream, chance))
        lengths = np.array(list(self.lengths(stream, chance)))
        return Plan.along(lengths.cumsum() - lengths, lengths, self.rows(stream), self.extra)

    def lengths(self, stream: PlannedStream, chance: np.random.RandomState) -> Iterator[int]:
        targets, place = row_length(stream) - 1, 0
        while place == 0 or place < targets - 1:  # a single target at the end is left out
            middle = stream.segment if chance.random_sample() < 0.95 else stream.segment / 2
            drawn = max(5, int(chance.normal(middle, 5)))
            length = min(drawn, stream.segment + 15, targets - place)
            yield length
            place += length


@dataclass(frozen=True)
class LmtoolSlidingWindows(Columns):
    """lmtool-fwms's windows: each begins one token after the one before; the last of a row is left out."""

    continues = False

    def fewest(self, batch: int, segment: int) -> int:
        return (segment + 1) * batch

    def plan(self, stream: PlannedStream, epoch: int) -> Plan:
        places = np.arange(row_length(stream) - stream.segment)
        return Plan.even(places[:, None] + self.rows(stream), stream.segment)


@dataclass(frozen=True)
class AdaptiveSpanBlocks(Columns):
    """adaptive-span's blocks: whole ones only; at the end of the rows a random place near their beginning."""

    def fewest(self, batch: int, segment: int) -> int:
        return 2 * segment * batch  # from any of the places where an epoch may begin

    def plan(self, stream: PlannedStream, epoch: int) -> Plan:
        chance = random.Random(stream.seed)
        begins = [0] + [chance.randrange(stream.segment) for _ in range(epoch)]
        places = np.arange(begins[-1], row_length(stream) - stream.segment, stream.segment)
        return Plan.even(places[:, None] + self.rows(stream), stream.segment)


class SentenceOrder(Order):
    """Each row reads sentence after sentence, whichever comes next when it has finished one."""

    files: tuple[int, ...]
    extra: int
    continues = True

    def arrange(self, files: list[np.ndarray], seed: int, epoch: int) -> list[np.ndarray]:
        """The sentences of each file in the order in which an epoch takes them."""
        raise NotImplementedError

    def build(
        self, ids: np.ndarray, batch: int, segment: int, seed: int, documents: np.ndarray | None = None
    ) -> "SentenceStream":
        if documents is not None:
            raise UserError(f"{type(self).__name__} reads sentences, which are not kept apart: choose another --order")
        return SentenceStream(self, ids, batch, segment, seed)


@dataclass(frozen=True)
class TransformerXLSentences(SentenceOrder):
    """Transformer-XL's way through a list of sentences, each between two marks, in the order of the text."""

    files: tuple[int, ...] = ()  # how many sentences each file has, where there are several
    extra: Count = 0  # tokens before each segment that are read again (ext_len)

    def arrange(self, files: list[np.ndarray], seed: int, epoch: int) -> list[np.ndarray]:
        return files


@dataclass(frozen=True)
class TransformerXLShuffledSentences(SentenceOrder):
    """Transformer-XL's way through One Billion Word: files in a random order, and the sentences of each."""

    files: tuple[int, ...] = ()  # how many sentences each file has, where there are several
    extra: Count = 0  # tokens before each segment that are read again (ext_len)

    def arrange(self, files: list[np.ndarray], seed: int, epoch: int) -> list[np.ndarray]:
        chance, order, arranged = older_generator(seed), list(range(len(files))), []
        for _ in range(epoch + 1):
            chance.shuffle(order)  # in place: an epoch shuffles what the one before has left
            arranged = [chance.permutation(files[number]) for number in order]
        return arranged


class SentenceStream(Stream):
    """Rows are filled one after another; what is left of a file when they cannot all be filled is not read."""

    def __init__(self, order: SentenceOrder, ids: np.ndarray, batch: int, segment: int, seed: int):
        check_sizes(batch, segment)
        self.order, self.batch, self.segment, self.seed = order, batch, segment, seed
        self.ids = np.asarray(ids)
        self.first, self.last = sentence_ends(self.ids)
        self.files = cut_into_files(len(self.first), order.files)
        self.seek({"epoch": 0, "file": 0, "step": 0})
        self.next()  # a text too short for one batch is refused here
        self.seek({"epoch": 0, "file": 0, "step": 0})

    def next(self) -> tuple[Batch, bool]:
        for _ in range(len(self.files) + 1):
            continuing = self._file > 0 or self._step > 0
            if (places := self.read()) is not None:
                return Batch.at(self.ids, places, places.shape[1] - self.segment), continuing
            self._turn_over()
        raise too_short(len(self.ids), self.batch * (self.segment + 1), self.batch, self.segment)

    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "file": self._file, "step": self._step}

    def seek(self, position: Mapping[str, int]) -> None:
        self._arranged = self.order.arrange(self.files, self.seed, position["epoch"])
        self._epoch = position["epoch"]
        self._open(position["file"])
        for step in range(position["step"]):
            if self.read() is None:
                raise no_such_step(position["step"], step)

    def _open(self, file: int) -> None:
        self._file, self._step = file, 0
        self._supply = iter(self._arranged[file])
        self._here, self._end = [0] * self.batch, [0] * self.batch  # in the sentence that each row is reading
        self._before = np.empty((self.batch, 0), np.int64)  # the last places of each row

    def _turn_over(self) -> None:
        if self._file + 1 < len(self.files):
            self._open(self._file + 1)
        else:
            self.seek({"epoch": self._epoch + 1, "file": 0, "step": 0})

    def read(self) -> np.ndarray | None:
        """Where the next batch is to be read, extra tokens included; None at the end of the file."""
        places = np.empty((self.batch, self.segment), np.int64)
        for row in range(self.batch):
            if not self._fill(row, places[row]):
                return None
        places = np.concatenate([self._before, places], axis=1)
        self._before = places[:, max(0, places.shape[1] - self.order.extra) :]
        self._step += 1
        return places

    def _fill(self, row: int, places: np.ndarray) -> bool:
        filled = 0
        while filled < len(places):
            if self._here[row] == self._end[row]:  # nothing but the mark at its end is left
                sentence = next(self._supply, None)
                if sentence is None:
                    return False
                self._here[row], self._end[row] = int(self.first[sentence]), int(self.last[sentence])
            here, count = self._here[row], min(self._end[row] - self._here[row], len(places) - filled)
            places[filled : filled + count] = np.arange(here, here + count)
            self._here[row], filled = here + count, filled + count
        return True


def row_length(stream: PlannedStream) -> int:
    return len(stream.ids) // stream.batch


def older_generator(seed: int) -> np.random.RandomState:
    return np.random.RandomState(seed % 2**32)  # it takes no others


def sentence_ends(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each sentence has its first and its last token: the mark with which the text begins."""
    marks = np.flatnonzero(ids == ids[0]) if len(ids) else np.zeros(0, np.int64)
    first, last = marks[::2], marks[1::2]
    if len(first) == 0 or len(first) != len(last) or last[-1] != len(ids) - 1 or (first[1:] != last[:-1] + 1).any():
        raise UserError("the text is not made of sentences that each begin and end with one mark: --order Contiguous")
    return first, last


def cut_into_files(sentences: int, files: tuple[int, ...]) -> list[np.ndarray]:
    if files and sum(files) != sentences:
        raise UserError(f"the text has {sentences:,} sentences, but its files are said to have {sum(files):,}")
    return np.split(np.arange(sentences), np.cumsum(files)[:-1]) if files else [np.arange(sentences)]
