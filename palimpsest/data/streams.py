"""The order in which a text is read: from tokens to batches, from any place on, exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..batch import Batch
from ..errors import UserError
from ..spec import Spec


class Order(Spec):
    continues: ClassVar[bool]  # whether rows ever go on where they ended one batch before

    def spare(self, segment: int) -> int:
        """How many tokens an epoch needs beyond its inputs."""
        raise NotImplementedError

    def plan(self, stream: "Stream", epoch: int) -> np.ndarray:
        """Where each row of each step of an epoch begins to read: [steps, batch]."""
        raise NotImplementedError

    def build(self, ids: np.ndarray, batch: int, segment: int, seed: int) -> "Stream":
        return Stream(self, ids, batch, segment, seed)


@dataclass(frozen=True)
class Contiguous(Order):
    """Each row reads its own part of the text from its beginning to its end, so that state can be carried."""

    continues = True

    def spare(self, segment: int) -> int:
        return 1  # the target of the last input

    def plan(self, stream: "Stream", epoch: int) -> np.ndarray:
        rows = np.arange(stream.batch) * stream.steps_per_epoch * stream.segment
        return np.arange(stream.steps_per_epoch)[:, None] * stream.segment + rows


@dataclass(frozen=True)
class Shuffled(Order):
    """Segments in a random order, cut at other places in every epoch; none is read twice in one."""

    continues = False

    def spare(self, segment: int) -> int:
        return segment  # the offset, at most segment - 1, and the target of the last input

    def plan(self, stream: "Stream", epoch: int) -> np.ndarray:
        chance = np.random.default_rng([stream.seed % 2**64, epoch])  # numpy takes no negative seeds
        offset = chance.integers(stream.segment)
        segments = chance.permutation((len(stream.ids) - 1 - offset) // stream.segment)
        first = segments[: stream.steps_per_epoch * stream.batch]
        return offset + stream.segment * first.reshape(stream.steps_per_epoch, stream.batch)


class Stream:
    """Batches without end, epoch after epoch. `position` says which comes next and `seek` goes there."""

    def __init__(self, order: Order, ids: np.ndarray, batch: int, segment: int, seed: int):
        self.order, self.batch, self.segment, self.seed = order, batch, segment, seed
        self.ids = np.asarray(ids)  # a plain view: numpy's memmap class is slow to index
        self.steps_per_epoch = _steps(len(ids), batch, segment, order.spare(segment))
        self.seek({"epoch": 0, "step": 0})

    def next(self) -> tuple[Batch, bool]:
        """The next batch, and whether its rows continue those of the batch before."""
        starts, continuing = self._plan[self._step], self.order.continues and self._step > 0
        self._advance()
        return Batch.cut(self.ids, starts, self.segment), continuing

    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "step": self._step}

    def seek(self, position: Mapping[str, int]) -> None:
        if not 0 <= position["step"] < self.steps_per_epoch:
            raise UserError(
                f"step {position['step']:,} is not among the {self.steps_per_epoch:,} steps of an epoch: "
                "the position comes from another text, --batch or --segment"
            )
        self._epoch, self._step = position["epoch"], position["step"]
        self._plan = self.order.plan(self, self._epoch)

    def _advance(self) -> None:
        self._step += 1
        if self._step == self.steps_per_epoch:
            self.seek({"epoch": self._epoch + 1, "step": 0})


def _steps(tokens: int, batch: int, segment: int, spare: int) -> int:
    if batch < 1 or segment < 1:
        raise UserError(f"--batch {batch} and --segment {segment} must both be 1 or more")
    steps = (tokens - spare) // (batch * segment)
    if steps < 1:
        raise UserError(
            f"the text has {tokens:,} tokens, but one batch takes batch * segment + {spare:,} = "
            f"{batch * segment + spare:,}. Lower --batch ({batch:,}) or --segment ({segment:,})"
        )
    return steps
