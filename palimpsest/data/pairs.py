"""Pairs of sentences in batches: by the number of tokens, of like lengths, from any place on, exactly."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ..batch import Batch, Source
from ..errors import UserError
from .codec import Codec
from .streams import Stream, generator, no_such_step
from .tokens import Split

BUCKET = 4  # tokens by which pairs of one batch may differ in length
TOGETHER = 8  # rows come in multiples, so that they can be shared out


class Pairs:
    """A split of parallel text; the length of a sentence counts the token that ends it."""

    def __init__(self, split: Split):
        if split.documents is None:
            raise UserError(f"the {split.name} split is one text and no sentence pairs")
        self.ids = np.asarray(split.ids)  # a plain view: numpy's memmap class is slow to index
        starts, lengths = np.asarray(split.documents[:-1]), np.diff(split.documents)
        self.count = len(starts) // 2
        self.starts, self.lengths = starts.reshape(2, -1), lengths.reshape(2, -1)
        self.longer = self.lengths.max(0) if self.count else np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self.count

    @property
    def end(self) -> int:
        return int(self.ids[self.starts[0, 0] + self.lengths[0, 0] - 1])

    def lines(self, side: int, codec: Codec, first: int | None = None) -> list[str]:
        """The sentences to be translated, 0, or their translations, 1, as text."""
        starts, lengths = self.starts[side, :first], self.lengths[side, :first]
        return [codec.decode(self.ids[one : one + length - 1]) for one, length in zip(starts, lengths, strict=True)]

    def batch(self, pairs: np.ndarray) -> Batch:
        """The decoder begins with the token that ends a sentence, and is to say it last."""
        (source, present), (targets, mask) = (self.gather(side, pairs) for side in (0, 1))
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = self.end
        return Batch(inputs, targets, mask, source=Source(source, present))

    def gather(self, side: int, pairs: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        starts, lengths = self.starts[side, pairs], self.lengths[side, pairs]
        places = np.arange(lengths.max())
        present = places < lengths[:, None]
        ids = self.ids[np.where(present, starts[:, None] + places, 0)].astype(np.int64)
        return torch.from_numpy(np.where(present, ids, 0)), torch.from_numpy(present)

    def in_order(self, tokens: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """All pairs once, those of like lengths together, and which they are."""
        for chosen in by_tokens(np.argsort(self.longer, kind="stable"), self.longer, tokens):
            yield chosen, self.batch(chosen)


def by_tokens(order: np.ndarray, lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Pairs in an order of growing lengths, cut so that rows × length is at most `tokens`; one pair at least."""
    batches, rows = [], []
    for pair in order.tolist():
        while rows and (len(rows) + 1) * lengths[pair] > tokens:
            full = whole_multiple(len(rows)) or len(rows)
            batches.append(rows[:full])
            rows = rows[full:]
        rows.append(pair)
    return [np.array(pairs) for pairs in (*batches, rows) if pairs]


def whole_multiple(rows: int) -> int:
    return rows - rows % TOGETHER


class PairStream(Stream):
    """Every pair once an epoch, in batches of no more than `tokens` on either side; others in every epoch.

    Left out are pairs with an empty side, those with a side of more than `longest` tokens and, of an epoch that has
    more, the few that make no whole multiple of rows.
    """

    def __init__(self, split: Split, tokens: int, longest: int, seed: int):
        self.pairs, self.tokens, self.seed = Pairs(split), tokens, seed
        lengths = self.pairs.lengths
        self.empty = int((lengths == 1).any(0).sum())
        self.too_long = int((lengths > longest).any(0).sum())
        self.chosen = np.flatnonzero(((lengths > 1) & (lengths <= longest)).all(0))
        if not len(self.chosen):
            raise UserError(
                f"none of {len(self.pairs):,} pairs can be learned from: {self.empty:,} have an empty side, "
                f"{self.too_long:,} one of more than {longest} tokens, --longest"
            )
        self.seek({"epoch": 0, "step": 0})

    def told(self) -> str:
        """What is read, and what is not."""
        left = {"have an empty side": self.empty, "are too long": self.too_long}
        parts = [f"{count:,} {what}" for what, count in left.items() if count]
        return f"{len(self.chosen):,} pairs to learn from" + (f"; left out: {', '.join(parts)}" if parts else "")

    def plan(self, epoch: int) -> list[np.ndarray]:
        chance, lengths = generator(self.seed, epoch), self.pairs.longer
        order = chance.permutation(self.chosen)
        ceilings = -(-lengths // BUCKET) * BUCKET
        *batches, last = by_tokens(order[np.argsort(ceilings[order], kind="stable")], ceilings, self.tokens)
        last = last[: whole_multiple(len(last))] if batches else last
        batches += [last] if len(last) else []
        return [batches[place] for place in chance.permutation(len(batches))]

    def next(self) -> tuple[Batch, bool]:
        batch = self.pairs.batch(self._plan[self._step])
        self._step += 1
        if self._step == len(self._plan):
            self.seek({"epoch": self._epoch + 1, "step": 0})
        return batch, False

    def position(self) -> dict[str, int]:
        return {"epoch": self._epoch, "step": self._step}

    def seek(self, position: Mapping[str, int]) -> None:
        plan = self.plan(position["epoch"])
        if not 0 <= position["step"] < len(plan):
            raise no_such_step(position["step"], len(plan))
        self._plan, self._epoch, self._step = plan, position["epoch"], position["step"]


def end_of(codec: Codec) -> int:
    """The token of a line break, which ends every sentence."""
    return int(codec.encode("\n")[-1])


def source_of(codec: Codec, lines: list[str]) -> Source:
    """Sentences as a model reads them."""
    encoded = [codec.encode(f"{line}\n") for line in lines]
    length = max(map(len, encoded))
    tokens, present = np.zeros((len(lines), length), np.int64), np.zeros((len(lines), length), bool)
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)], present[row, : len(ids)] = ids, True
    return Source(torch.from_numpy(tokens), torch.from_numpy(present))
