"""Retrieval tasks: pairs of a key and a value are shown, then keys are asked for. Everything is drawn at once.

Keys and values are numbers from zero on. The target of a query is the value that its key was last shown with.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from ..batch import Batch
from ..errors import UserError
from ..spec import Size, Spec


class Questions(NamedTuple):
    """Sequences of pairs and what is asked of each, as arrays or as tensors."""

    keys: Any  # b t
    values: Any  # b t
    queries: Any  # b q
    targets: Any  # b q
    weights: Any  # b q, what each answer counts in the mean; zero where nothing is asked


class Period(NamedTuple):
    """What a run reads from one evaluation to the end of the next."""

    batches: Questions  # with an axis of steps before all others
    evaluation: Questions


class Source:
    """Periods without end. It can be pickled, and goes on from its `position` exactly."""

    def period(self, steps: int, sequences: int) -> Period:
        raise NotImplementedError

    def position(self) -> dict:
        raise NotImplementedError

    def seek(self, position: dict) -> None:
        raise NotImplementedError


class RetrievalTask(Spec):
    """Shows `length` pairs of `keys` different keys and as many different values."""

    keys: int
    replaces: ClassVar[bool]  # whether a key may be shown again, with another value

    @property
    def length(self) -> int:
        raise NotImplementedError

    def pairs(self, rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values, `b t` each."""
        raise NotImplementedError

    def draw(self, rows: int, generator: np.random.Generator) -> Questions:
        """One question for each sequence: the key at a place that is drawn. A key shown often is asked often."""
        keys, values = self.pairs(rows, generator)
        queries = np.take_along_axis(keys, generator.integers(self.length, size=(rows, 1)), axis=1)
        return Questions(keys, values, queries, last_values(keys, values, queries), np.full((rows, 1), 1 / rows))

    def draw_all(self, rows: int, generator: np.random.Generator) -> Questions:
        """Every key that is shown is asked for, and counts alike."""
        keys, values = self.pairs(rows, generator)
        queries = np.broadcast_to(np.arange(self.keys), (rows, self.keys))
        shown = (keys[:, None, :] == queries[:, :, None]).any(-1)
        return Questions(keys, values, queries, last_values(keys, values, queries), shown / shown.sum())

    def open(self, batch: int, seed: int) -> Source:
        return FreshSource(self, batch, np.random.default_rng(seed))


def last_values(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value each query was last shown with; of a key that was not shown, some value."""
    backwards = keys[:, None, ::-1] == queries[:, :, None]
    return np.take_along_axis(values, keys.shape[1] - 1 - backwards.argmax(-1), axis=1)


@dataclass(frozen=True)
class Capacity(RetrievalTask):
    """How much a memory holds: every key once and every value once, in any order."""

    keys: Size = 20
    replaces = False

    @property
    def length(self) -> int:
        return self.keys

    def pairs(self, rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        in_order = np.broadcast_to(np.arange(self.keys), (rows, self.keys))
        return generator.permuted(in_order, axis=1), generator.permuted(in_order, axis=1)


@dataclass(frozen=True)
class Overwriting(RetrievalTask):
    """Whether a memory can change its mind: keys and values with replacement, and the last value of a key counts."""

    keys: Size = 20
    shown: float = 2.0  # pairs for each key
    replaces = True

    def __post_init__(self):
        super().__post_init__()
        if self.length < 1:
            raise UserError(f"at least one pair is shown; found {self.shown} for each of {self.keys} keys")

    @property
    def length(self) -> int:
        return int(self.shown * self.keys)

    def pairs(self, rows: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        keys, values = generator.integers(self.keys, size=(2, rows, self.length))
        return keys, values


class FreshSource(Source):
    """Every batch is drawn anew, and evaluation asks for everything a sequence like those trained on has shown."""

    def __init__(self, task: RetrievalTask, batch: int, generator: np.random.Generator):
        self.task, self.batch, self.generator = task, batch, generator

    def period(self, steps: int, sequences: int) -> Period:
        drawn = self.task.draw(steps * self.batch, self.generator)
        batches = Questions(*(field.reshape(steps, self.batch, -1) for field in drawn))
        batches = batches._replace(weights=batches.weights * steps)
        return Period(batches, self.task.draw_all(sequences, self.generator))

    def position(self) -> dict:
        return dict(self.generator.bit_generator.state)

    def seek(self, position: dict) -> None:
        self.generator.bit_generator.state = position


# ------------------------------------------------------------------------- multi-query associative recall


class RecallTask(Spec):
    """Text that can only be foretold by remembering what was said before."""

    tokens: int
    length: int

    def draw(self, rows: int, generator: np.random.Generator) -> Batch:
        raise NotImplementedError


@dataclass(frozen=True)
class MQAR(RecallTask):
    """Multi-query associative recall (Arora et al., 2023): pairs, then all their keys again in between blanks."""

    length: Size = 64
    pairs: Size = 4
    tokens: Size = 8192  # the blank, then keys, then values
    power: float = 0.01  # the smaller, the sooner after the pairs a key comes again

    def __post_init__(self):
        super().__post_init__()
        if self.tokens // 2 - 1 < self.pairs:
            raise UserError(f"{self.tokens} tokens are too few for {self.pairs} pairs")
        if self.length < 4 * self.pairs:
            raise UserError(f"{self.pairs} pairs and their queries take {4 * self.pairs} tokens; found {self.length}")

    def grid(self) -> list["MQAR"]:
        """The usual four: from 4 pairs in 64 tokens to 64 in 512."""
        return [
            replace(self, length=length, pairs=pairs) for length, pairs in ((64, 4), (128, 8), (256, 16), (512, 64))
        ]

    def draw(self, rows: int, generator: np.random.Generator) -> Batch:
        half, shown = self.tokens // 2, 2 * self.pairs
        keys = 1 + chosen(generator, rows, half - 1, self.pairs)
        values = half + chosen(generator, rows, self.tokens - half, self.pairs)
        places = (self.length - shown) // 2
        share = np.arange(1, places + 1, dtype=float) ** (self.power - 1)
        gaps = shown + 2 * chosen(generator, rows, places, self.pairs, share)
        text = np.zeros((rows, self.length), np.int64)
        text[:, 0:shown:2], text[:, 1:shown:2] = keys, values
        np.put_along_axis(text, gaps, keys, axis=1)
        targets, asked = np.zeros_like(text), np.zeros(text.shape, bool)
        np.put_along_axis(targets, gaps, values, axis=1)
        np.put_along_axis(asked, gaps, True, axis=1)
        inputs, targets, mask = map(torch.from_numpy, (text, targets, asked))
        return Batch(inputs, targets, mask)


def chosen(
    generator: np.random.Generator, rows: int, among: int, count: int, share: np.ndarray | None = None
) -> np.ndarray:
    """For each row `count` different numbers below `among`, in the order drawn; larger shares come sooner."""
    waiting = generator.exponential(size=(rows, among))  # whoever waits the shortest was drawn first
    waiting = waiting if share is None else waiting / share
    first = np.argpartition(waiting, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(waiting, first, axis=1).argsort(axis=1)
    return np.take_along_axis(first, order, axis=1)
