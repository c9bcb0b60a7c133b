"""Exact scores: nats are added, tokens are counted, and one is divided by the other once, at the end.

Of n tokens the last n − 1 are targets. A protocol says from how much context each of them is predicted;
it is part of the score, because without it the number means nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import UserError
from ..serialise import to_json
from ..spec import Spec

TOKENS_AT_ONCE = 16384


class Window(NamedTuple):
    """Targets start+1 … end of the text, read from a fresh state; the first `skip` of them were scored before."""

    start: int
    end: int
    skip: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Protocol(Spec):
    def windows(self, targets: int) -> Iterator[Window]:
        """Windows of one length, but for the last ones; each target is scored in exactly one."""
        raise NotImplementedError

    def score(self, model: nn.Module, ids: np.ndarray, device: torch.device) -> "Tally":
        tally = Tally()
        for group in batches(self.windows(len(ids) - 1)):
            nats, _ = model(Batch.cut(ids, [window.start for window in group], group[0].length).to(device))
            for row, window in zip(nats.double().cpu(), group, strict=True):
                tally.add(row[window.skip :], first_place=window.skip)
        return tally


@dataclass(frozen=True)
class Segments(Protocol):
    """The text is cut into segments; each is read from a fresh state, so early targets have little context."""

    length: int = 256

    def windows(self, targets: int) -> Iterator[Window]:
        return (Window(start, min(start + self.length, targets), 0) for start in range(0, targets, self.length))


@dataclass(frozen=True)
class SlidingWindow(Protocol):
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


@dataclass(frozen=True)
class CarriedState(Protocol):
    """The text is read once from end to end, in segments that hand on their state: all context there is."""

    segment: int = 512

    def score(self, model: nn.Module, ids: np.ndarray, device: torch.device) -> "Tally":
        tally, state = Tally(), None
        for start in range(0, len(ids) - 1, self.segment):
            end = min(start + self.segment, len(ids) - 1)
            nats, state = model(Batch.cut(ids, [start], end - start).to(device), state)
            tally.add(nats[0].double().cpu(), first_place=start)
        return tally


class Tally:
    """Nats and tokens, in all and by place: how many tokens of context a target had, in powers of two."""

    def __init__(self) -> None:
        self.nats = np.zeros(64)
        self.tokens = np.zeros(64, dtype=np.int64)

    def add(self, nats: Tensor, first_place: int) -> None:
        context = np.arange(first_place + 1, first_place + 1 + len(nats))
        octaves = np.floor(np.log2(context)).astype(int)
        np.add.at(self.nats, octaves, nats.numpy())
        np.add.at(self.tokens, octaves, 1)

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
    device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
) -> Score:
    """Score every target of `ids`; `characters` and `bytes` are the size of the targets as text."""
    if len(ids) < 2:
        raise UserError(f"a text of {len(ids)} tokens has nothing to predict: at least 2 are needed")
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        tally = protocol.score(model, ids, device)
    model.train(was_training)
    return Score(protocol, float(tally.nats.sum()), int(tally.tokens.sum()), characters, bytes, tally.by_context())


def batches(windows: Iterator[Window]) -> Iterator[list[Window]]:
    """Windows of one length together, as many as fit."""
    group: list[Window] = []
    for window in windows:
        full = (len(group) + 1) * window.length > TOKENS_AT_ONCE
        if group and (full or window.length != group[0].length):
            yield group
            group = []
        group.append(window)
    yield group
