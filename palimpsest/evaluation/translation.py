"""Scores of translations: exact nats of the references, and BLEU and chrF as sacrebleu counts them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..batch import Batch
from ..errors import UserError
from ..serialise import to_json
from ..world import ALONE, World
from .decoding import Decoding
from .rest import at_rest


@dataclass(frozen=True)
class Match:
    """How far translations agree with their references, by one measure; the signature says how it was counted."""

    score: float
    signature: str


@dataclass(frozen=True)
class TranslationScore:
    """How well the references were predicted, how much the translations are like them, and how both was measured."""

    decoding: Decoding
    nats: float
    tokens: int
    sentences: int
    bleu: Match
    chrf: Match

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    def told(self) -> str:
        return f"BLEU {self.bleu.score:.2f}, chrF {self.chrf.score:.2f}, {self.nats_per_token:.4f} nats per token"

    def to_json(self) -> dict[str, Any]:
        return {
            "protocol": to_json(self.decoding),
            "bleu": self.bleu.score,
            "chrf": self.chrf.score,
            "signatures": {"bleu": self.bleu.signature, "chrf": self.chrf.signature},
            "sentences": self.sentences,
            "tokens": self.tokens,
            "nats": self.nats,
            "nats_per_token": self.nats_per_token,
            "perplexity": math.exp(min(self.nats_per_token, 700.0)),
        }


def total_nats(model: nn.Module, batches: Iterable[Batch], world: World = ALONE) -> tuple[float, int]:
    """Of all targets that count, and how many there are; each process reads its share of the batches."""
    nats, count = 0.0, 0
    with at_rest(model), torch.inference_mode():
        for batch in islice(batches, world.rank, None, world.size):
            batch = batch.to(world.device)
            found, _ = model(batch, None)
            nats += (found if batch.mask is None else found.where(batch.mask, 0.0)).double().sum().item()
            count += batch.count()
    nats, count = world.sum(torch.tensor([nats, count], dtype=torch.float64)).tolist()
    return nats, int(count)


def bleu(translations: Sequence[str], references: Sequence[str]) -> Match:
    """Cased, of whole sentences as people write them."""
    return match(sacrebleu().BLEU(), translations, references)


def chrf(translations: Sequence[str], references: Sequence[str]) -> Match:
    return match(sacrebleu().CHRF(), translations, references)


def match(metric: Any, translations: Sequence[str], references: Sequence[str]) -> Match:
    found = metric.corpus_score(list(translations), [list(references)])
    return Match(found.score, str(metric.get_signature()))


def sacrebleu() -> ModuleType:
    try:
        import sacrebleu
    except ModuleNotFoundError:
        raise UserError("BLEU and chrF need sacrebleu: pip install palimpsest[translation]") from None
    return sacrebleu.metrics
