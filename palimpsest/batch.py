"""What a model reads: tokens, and the tokens that follow them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .state import map_state

Numbers = TypeVar("Numbers", np.ndarray, Tensor)


class Source(NamedTuple):
    """Sentences to be translated, filled up to one length."""

    tokens: Tensor  # b s
    present: Tensor  # b s, true where there is a token and not what fills a row up

    def to(self, device) -> "Source":
        return map_state(lambda field: sent(field, device), self)


class Batch(NamedTuple):
    inputs: Tensor  # b t
    targets: Tensor  # b t, or fewer: those of the last inputs
    mask: Tensor | None = None  # as targets, true where one counts
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
        return cls.at(np.asarray(ids), np.asarray(starts)[:, None] + np.arange(-extra, length), extra, documents)

    @classmethod
    def at(cls, ids: Numbers, places: Numbers, extra: int = 0, documents: Numbers | None = None) -> "Batch":
        """The tokens at the given places, `b t`; the first `extra` of each row do not count, and no target is told.

        `documents` are the places where one begins, and the end of the last: nothing foretells the first token of one.
        All three are arrays, or all are tensors of the device on which the batch is then made.
        """
        following = places + 1
        if documents is not None:
            following = following.clip(max=len(ids) - 1)
        inputs, targets = (torch.as_tensor(ids[where]).long() for where in (places, following))
        mask, starts = None, None
        if extra:
            mask = (torch.arange(inputs.shape[1], device=inputs.device) >= extra).expand_as(inputs)
        if documents is not None:
            starts, ended = (torch.as_tensor(among(where, documents)) for where in (places, places + 1))
            mask = ~ended if mask is None else mask & ~ended
        if mask is not None:
            targets = targets.where(mask, 0)
        return cls(inputs, targets, mask, starts)

    def asked_from(self, first: int) -> "Batch":
        """The same inputs without the targets of the `first` of them, whose nats nobody needs."""
        return self._replace(targets=self.targets[:, first:], mask=None if self.mask is None else self.mask[:, first:])

    def count(self) -> int:
        """How many targets count."""
        return self.targets.numel() if self.mask is None else int(self.mask.sum())

    def rows(self, rows: slice) -> "Batch":
        return map_state(lambda field: field[rows], self)

    def to(self, device) -> "Batch":
        return map_state(lambda field: sent(field, device), self)


def sent(field: Tensor, device: torch.device | str) -> Tensor:
    """To the device, without waiting for what it is doing: it fetches from pages that stay where they are."""
    is_away = field.device.type == "cpu" and torch.device(device).type == "cuda"
    return (field.pin_memory() if is_away else field).to(device, non_blocking=True)


def among(places: Numbers, documents: Numbers) -> Numbers:
    """Which of the places are borders of documents."""
    search: Any = torch.searchsorted if isinstance(documents, Tensor) else np.searchsorted
    return documents[search(documents, places).clip(max=len(documents) - 1)] == places  # pyright: ignore


def places_of(seen: Tensor, length: int, starts: Tensor | None = None) -> Tensor:
    """How many tokens of its own document stand before each token, `b t`, where `seen` `b` were read before."""
    steps = torch.arange(length, device=seen.device)
    if starts is None:
        return seen[:, None] + steps
    return steps - torch.where(starts, steps, -seen[:, None]).cummax(1).values
