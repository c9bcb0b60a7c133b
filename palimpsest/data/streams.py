"""The order in which a text is read: from tokens to batches, from any place on, exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..batch import Batch
from ..errors import UserError
from ..spec import Count, NotNegative, Share, Size, Spec


class Plan(NamedTuple):
    """What the steps of an epoch read."""

    starts: np.ndarray  # steps batch: the first input of each row whose target counts
    lengths: np.ndarray  # steps: how many targets of a row count
    extras: np.ndarray  # steps: how many tokens before the start are read again

    @classmethod
    def even(cls, starts: np.ndarray, length: int) -> "Plan":
        """Steps of one length, without extra tokens."""
        steps = len(starts)
        return cls(starts, np.full(steps, length), np.zeros(steps, np.int64))

    @classmethod
    def along(cls, places: np.ndarray, lengths: np.ndarray, rows: np.ndarray, extra: int) -> "Plan":
        """Rows that begin at `rows` and go forward together; each step is preceded by what its row has read."""
        return cls(places[:, None] + rows, lengths, np.minimum(extra, places))


class Order(Spec):
    continues: ClassVar[bool]  # whether rows ever go on where they ended one batch before

    def fewest(self, batch: int, segment: int) -> int:
        """How many tokens an epoch needs at least."""
        raise NotImplementedError

    def plan(self, stream: "PlannedStream", epoch: int) -> Plan:
        raise NotImplementedError

    def build(
        self, ids: np.ndarray, batch: int, segment: int, seed: int, documents: np.ndarray | None = None
    ) -> "Stream":
        """`documents` are their borders: where each begins, and where the last one ends."""
        return PlannedStream(self, ids, batch, segment, seed, documents)


@dataclass(frozen=True)
class Contiguous(Order):
    """Each row reads its own part of the text from its beginning to its end, so that state can be carried."""

    extra: Count = 0  # tokens before each segment that are read again, and not scored again
    continues = True

    def fewest(self, batch: int, segment: int) -> int:
        return batch * segment + 1  # the target of the last input

    def plan(self, stream: "PlannedStream", epoch: int) -> Plan:
        return straight(stream, self.extra)


@dataclass(frozen=True)
class RandomLengths(Order):
    """As Contiguous, in segments of random lengths around the one asked for, others in every epoch."""

    halved: Share = 0.05  # how many of the segments are drawn around half the length
    deviation: NotNegative = 5.0  # tokens
    shortest: Size = 5  # but for the last of a row
    margin: Count = 15  # how much longer than asked for a segment may be
    continues = True

    def fewest(self, batch: int, segment: int) -> int:
        return batch * segment + 1

    def plan(self, stream: "PlannedStream", epoch: int) -> Plan:
        row = (len(stream.ids) - 1) // stream.batch
        ends = np.minimum(self.lengths(stream, epoch, row // self.shortest + 1).cumsum(), row)
        ends = ends[: np.searchsorted(ends, row) + 1]
        places = np.concatenate([[0], ends[:-1]])
        return Plan.along(places, ends - places, np.arange(stream.batch) * row, extra=0)

    def lengths(self, stream: "PlannedStream", epoch: int, count: int) -> np.ndarray:
        chance = generator(stream.seed, epoch)
        middle = np.where(chance.random(count) < self.halved, stream.segment / 2, stream.segment)
        drawn = chance.normal(middle, self.deviation).astype(np.int64)
        return drawn.clip(self.shortest, max(self.shortest, stream.segment + self.margin))


@dataclass(frozen=True)
class Shuffled(Order):
    """Segments in a random order, cut at other places in every epoch; none is read twice in one."""

    continues = False

    def fewest(self, batch: int, segment: int) -> int:
        return batch * segment + segment  # the offset, at most segment - 1, and the target of the last input

    def plan(self, stream: "PlannedStream", epoch: int) -> Plan:
        chance = generator(stream.seed, epoch)
        offset = chance.integers(stream.segment)
        segments = chance.permutation((len(stream.ids) - 1 - offset) // stream.segment)
        steps = (len(stream.ids) - stream.segment) // (stream.batch * stream.segment)
        first = segments[: steps * stream.batch]
        return Plan.even(offset + stream.segment * first.reshape(steps, stream.batch), stream.segment)


@dataclass(frozen=True)
class ShuffledDocuments(Order):
    """Whole documents one after the other, in another order in every epoch; rows go on from segment to segment."""

    continues = True

    def fewest(self, batch: int, segment: int) -> int:
        return batch * segment + 1

    def plan(self, stream: "PlannedStream", epoch: int) -> Plan:
        return straight(stream, extra=0)

    def build(
        self, ids: np.ndarray, batch: int, segment: int, seed: int, documents: np.ndarray | None = None
    ) -> "DocumentStream":
        return DocumentStream(self, ids, batch, segment, seed, documents)


class Stream:
    """Batches without end, epoch after epoch. `position` says which comes next and `seek` goes there."""

    def next(self) -> tuple[Batch, bool]:
        """The next batch, and whether its rows continue those of the batch before."""
        raise NotImplementedError

    def position(self) -> dict[str, int]:
        raise NotImplementedError

    def seek(self, position: Mapping[str, int]) -> None:
        raise NotImplementedError

    def told(self) -> str:
        """What somebody who begins a run should know of it; nothing, mostly."""
        return ""


class PlannedStream(Stream):
    """What an order plans, one epoch at a time."""

    def __init__(
        self, order: Order, ids: np.ndarray, batch: int, segment: int, seed: int, documents: np.ndarray | None = None
    ):
        check_sizes(batch, segment)
        if len(ids) < (fewest := order.fewest(batch, segment)):
            raise too_short(len(ids), fewest, batch, segment)
        self.order, self.batch, self.segment, self.seed = order, batch, segment, seed
        self.ids = np.asarray(ids)  # a plain view: numpy's memmap class is slow to index
        self.documents = None if documents is None else np.asarray(documents)
        self.seek({"epoch": 0, "step": 0})

    @property
    def steps_per_epoch(self) -> int:
        """Of this epoch; the next one may have another number."""
        return len(self._plan.lengths)

    def next(self) -> tuple[Batch, bool]:
        starts, length, extra = (part[self._step] for part in self._plan)
        continuing = self.order.continues and self._step > 0
        batch = self.cut(starts, length, extra)
        self._advance()
        return batch, continuing

    def cut(self, starts: np.ndarray, length: int, extra: int) -> Batch:
        return Batch.cut(self.ids, starts, length, extra, self.documents)

    def told(self) -> str:
        return "" if self.documents is None else f"{len(self.documents) - 1:,} documents, none of which sees another"

    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "step": self._step}

    def seek(self, position: Mapping[str, int]) -> None:
        plan = self.order.plan(self, position["epoch"])
        if not 0 <= position["step"] < len(plan.lengths):
            raise no_such_step(position["step"], len(plan.lengths))
        self._plan, self._epoch, self._step = plan, position["epoch"], position["step"]

    def _advance(self) -> None:
        self._step += 1
        if self._step == self.steps_per_epoch:
            self.seek({"epoch": self._epoch + 1, "step": 0})


class DocumentStream(PlannedStream):
    """Plans places in the text that the documents of an epoch make when they stand in its order."""

    def seek(self, position: Mapping[str, int]) -> None:
        super().seek(position)
        borders = np.array([0, len(self.ids)]) if self.documents is None else self.documents
        order = generator(self.seed, self._epoch).permutation(len(borders) - 1)
        lengths = np.diff(borders)[order]
        self._ends = lengths.cumsum()  # of each document, in the order of the epoch
        self._shift = borders[:-1][order] - (self._ends - lengths)  # from there to the text as it is

    def cut(self, starts: np.ndarray, length: int, extra: int) -> Batch:
        places = starts[:, None] + np.arange(length)
        places += self._shift[np.searchsorted(self._ends, places, side="right")]
        return Batch.at(self.ids, places, documents=self.documents)


def straight(stream: PlannedStream, extra: int) -> Plan:
    """Whole segments, each row its own part of the text."""
    steps = (len(stream.ids) - 1) // (stream.batch * stream.segment)
    rows = np.arange(stream.batch) * steps * stream.segment
    return Plan.along(np.arange(steps) * stream.segment, np.full(steps, stream.segment), rows, extra)


def generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**64, epoch])  # numpy takes no negative seeds


def check_sizes(batch: int, segment: int) -> None:
    if batch < 1 or segment < 1:
        raise UserError(f"--batch {batch} and --segment {segment} must both be 1 or more")


def too_short(tokens: int, fewest: int, batch: int, segment: int) -> UserError:
    return UserError(
        f"the text has {tokens:,} tokens, but an epoch takes at least {fewest:,}. "
        f"Lower --batch ({batch:,}) or --segment ({segment:,})"
    )


def no_such_step(step: int, steps: int) -> UserError:
    return UserError(
        f"step {step:,} is not among the {steps:,} steps of an epoch: "
        "the position comes from another text, --batch or --segment"
    )
