"""What a model reads: tokens, and the tokens that follow them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .state import map_state


class Source(NamedTuple):
    """Sentences to be translated, filled up to one length."""

    tokens: Tensor  # b s
    present: Tensor  # b s, true where there is a token and not what fills a row up

    def to(self, device) -> "Source":
        return map_state(lambda field: field.to(device, non_blocking=True), self)


class Batch(NamedTuple):
    inputs: Tensor  # b t
    targets: Tensor  # b t
    mask: Tensor | None = None  # b t, true where the target counts
    starts: Tensor | None = None  # b t, true where a document begins, which is read as if nothing had come before
    source: Source | None = None  # what the rows are translations of

    @classmethod
    def cut(
        cls,
        ids: np.ndarray,
        starts: Sequence[int] | np.ndarray,
        length: int,
        extra: int = 0,
        documents: np.ndarray | None = None,
    ) -> "Batch":
        """`length` tokens of a text from each of the starts on, and the tokens that follow them.

        The `extra` tokens before are inputs too, whose targets do not count.
        """
        return cls.at(ids, np.asarray(starts)[:, None] + np.arange(-extra, length), extra, documents)

    @classmethod
    def at(cls, ids: np.ndarray, places: np.ndarray, extra: int = 0, documents: np.ndarray | None = None) -> "Batch":
        """The tokens at the given places, `b t`; the first `extra` of each row do not count, and no target is told.

        `documents` are the places where one begins, and the end of the last: nothing foretells the first token of one.
        """
        ids, following = np.asarray(ids), places + 1
        if documents is not None:
            following = following.clip(max=len(ids) - 1)
        inputs, targets = (torch.from_numpy(ids[where].astype(np.int64)) for where in (places, following))
        mask, starts = None, None
        if extra:
            mask = (torch.arange(inputs.shape[1]) >= extra).expand_as(inputs)
        if documents is not None:
            starts, ended = (torch.from_numpy(among(where, documents)) for where in (places, places + 1))
            mask = ~ended if mask is None else mask & ~ended
        if mask is not None:
            targets = targets.where(mask, 0)
        return cls(inputs, targets, mask, starts)

    def count(self) -> int:
        """How many targets count."""
        return self.targets.numel() if self.mask is None else int(self.mask.sum())

    def rows(self, rows: slice) -> "Batch":
        return map_state(lambda field: field[rows], self)

    def to(self, device) -> "Batch":
        return map_state(lambda field: field.to(device, non_blocking=True), self)


def among(places: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Which of the places are borders of documents."""
    return np.take(documents, np.searchsorted(documents, places), mode="clip") == places


def places_of(seen: Tensor, length: int, starts: Tensor | None = None) -> Tensor:
    """How many tokens of its own document stand before each token, `b t`, where `seen` `b` were read before."""
    steps = torch.arange(length, device=seen.device)
    if starts is None:
        return seen[:, None] + steps
    return steps - torch.where(starts, steps, -seen[:, None]).cummax(1).values
