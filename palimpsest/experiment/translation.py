"""Experiments in translation: a recipe of another kind, and what its runs can be used for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from torch import nn

from ..batch import Batch, Source
from ..data.codec import Codec
from ..data.corpora import Corpus
from ..data.pairs import Pairs, PairStream, by_tokens, end_of, source_of
from ..data.parallel import LanguageFiles, ParallelText, TabSeparated
from ..data.shopping_lists import ShoppingLists
from ..data.tokens import Split, Tokens
from ..data.vocabulary import SubWords, Vocabulary, Words
from ..errors import UserError
from ..evaluation.decoding import BeamSearch, Decoding, Greedy
from ..evaluation.translation import TranslationScore, bleu, chrf, sacrebleu, total_nats
from ..models.translation_model import TranslationModel
from ..spec import Count, Size, Spec
from ..training.optimisers import AdamW, Optimiser
from ..training.schedules import InverseSquareRoot, Schedule
from ..training.spread import Sharded
from ..training.trainer import Run
from ..world import World
from .recipe import Recipe
from .trained import Trained

AT_ONCE = 2**14  # tokens of all hypotheses that are followed at once, and of pairs that are scored
TYPICAL = 32  # tokens of a sentence, where no particular one is meant
SHOWN = 5  # sentences that a run shows its translations of


@dataclass(frozen=True)
class ParallelData(Spec):
    """Which sentence pairs, read as which tokens, how many at once."""

    corpus: ParallelText = ShoppingLists()
    vocabulary: Vocabulary = SubWords(4000)  # which both languages share
    tokens: Size = 4096  # of a step, on either side, with what fills rows up
    longest: Size = 256  # tokens of a sentence; longer ones are not learned from

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.vocabulary, Words):
            raise UserError(
                "translations are scored as text, and rare words cannot be spelt by words: use SubWords, Characters "
                "or Bytes"
            )

    @property
    def per_step(self) -> int:
        """Tokens."""
        return self.tokens

    @property
    def shape(self) -> str:
        return "at most, of pairs of like lengths"

    def per_epoch(self, split: Split) -> int:
        """Tokens."""
        return int(Pairs(split).longer.sum())

    def stream(self, split: Split, seed: int) -> PairStream:
        return PairStream(split, self.tokens, self.longest, seed)

    def check_shares(self, processes: int) -> None:
        """Of a few long pairs a process may get fewer than another, or none: pairs know nothing of each other."""

    def example(self) -> Batch:
        """A batch such as a step reads, of no token in particular."""
        ids = torch.zeros(max(1, self.tokens // TYPICAL), TYPICAL, dtype=torch.long)
        return Batch(ids, ids, source=Source(ids, torch.ones_like(ids, dtype=torch.bool)))

    def corpus_at(self, path: Path) -> Corpus:
        """What a user gives by its path alone."""
        return LanguageFiles(path) if path.is_dir() else TabSeparated(path)


@dataclass(frozen=True)
class TranslationRecipe(Recipe):
    """One experiment in translation."""

    name: str = "translation"
    data: ParallelData = ParallelData()
    model: TranslationModel = TranslationModel()
    optimiser: Optimiser = AdamW()
    schedule: Schedule = InverseSquareRoot(warmup=100)
    run: Run = Run()
    evaluation: Decoding = BeamSearch()
    translated: Count = 200  # sentences that each validation translates, greedily, for BLEU

    def __post_init__(self):
        Spec.__post_init__(self)  # and not what a Recipe asks of a text that is one from end to end
        if self.run.carry:
            raise UserError("sentence pairs know nothing of each other: there is no state to carry, --no-carry")
        if isinstance(self.run.spread, Sharded):
            raise UserError(
                "a process may have no row of a batch of long sentence pairs, and shares of weights need every process "
                "at work: --spread Replicated"
            )

    def require(self) -> None:
        sacrebleu()

    def validate(self, model: nn.Module, tokens: Tokens, world: World) -> dict[str, float]:
        pairs = Pairs(tokens.splits["valid"])
        nats, count = total_nats(model, (batch for _, batch in pairs.in_order(AT_ONCE)), world)
        found = {"nats": nats / count}
        if self.translated:
            source, references = (pairs.lines(side, tokens.codec, self.translated) for side in (0, 1))
            translations = translate_together(model, tokens.codec, source, Greedy(), world)
            found["bleu"] = bleu([best.text for best, *_ in translations], references).score
        return found


class Translation(NamedTuple):
    text: str
    log_probability: float
    score: float  # what translations of one sentence are compared by


def translate(
    model: nn.Module, codec: Codec, lines: Sequence[str], decoding: Decoding, device: torch.device, seed: int = 1
) -> list[list[Translation]]:
    """What is found for each line, the best first, in the order of the lines; those of like lengths go together."""
    chance, end = torch.Generator().manual_seed(seed), end_of(codec)
    lengths = np.array([len(codec.encode(line)) + 1 for line in lines])
    found = [[Translation("", 0.0, 0.0)] for _ in lines]  # of nothing
    order = sorted((place for place, line in enumerate(lines) if line.strip()), key=lengths.__getitem__)
    for chosen in by_tokens(np.array(order), lengths, AT_ONCE // decoding.rows):
        source = source_of(codec, [lines[int(place)] for place in chosen]).to(device)
        for place, hypotheses in zip(chosen, decoding.translate(model, source, end, chance), strict=True):
            found[place] = [Translation(codec.decode(tokens), *numbers) for tokens, *numbers in hypotheses]
    return found


def translate_together(
    model: nn.Module, codec: Codec, lines: Sequence[str], decoding: Decoding, world: World, seed: int = 1
) -> list[list[Translation]]:
    """The same, each process for its share of the lines; chance is another one in each."""
    mine = translate(model, codec, lines[world.rank :: world.size], decoding, world.device, seed + world.rank)
    found: list[list[Translation]] = [[] for _ in lines]
    for rank, theirs in enumerate(world.gather(mine)):
        found[rank :: world.size] = theirs
    return found


@dataclass(frozen=True)
class Translator(Trained):
    """A trained model with its vocabulary: to translate sentences and to score how it does."""

    of = TranslationRecipe
    protocols = Decoding

    recipe: TranslationRecipe

    def translate(self, lines: Sequence[str], decoding: Decoding | None = None, seed: int = 1) -> list[str]:
        """A translation of each line."""
        return [best.text for best, *_ in self.hypotheses(lines, decoding, seed)]

    def hypotheses(
        self, lines: Sequence[str], decoding: Decoding | None = None, seed: int = 1
    ) -> list[list[Translation]]:
        """All that was found for each line, the best first."""
        return translate(self.model, self.codec, lines, decoding or self.recipe.evaluation, self.world.device, seed)

    def evaluate(self, split: Split, protocol: Decoding | None = None) -> TranslationScore:
        pairs, decoding = Pairs(split), protocol or self.recipe.evaluation
        batches = (batch for _, batch in pairs.in_order(AT_ONCE))
        nats, tokens = total_nats(self.model, batches, self.world)
        source, references = (pairs.lines(side, self.codec) for side in (0, 1))
        found = translate_together(self.model, self.codec, source, decoding, self.world)
        translations = [best.text for best, *_ in found]
        matches = (measure(translations, references) for measure in (bleu, chrf))
        return TranslationScore(decoding, nats, tokens, len(pairs), *matches)

    def tell(self, score: TranslationScore) -> str:
        return score.told()

    def sample(self, tokens: Tokens, length: int) -> str:
        """A few sentences of the validation split, each with its translation and the reference."""
        source, references = (Pairs(tokens.splits["valid"]).lines(side, self.codec, SHOWN) for side in (0, 1))
        shown = zip(source, self.translate(source), references, strict=True)
        return "\n\n".join(f"  {one}\n→ {other}\n= {reference}" for one, other, reference in shown)

    def generate(self, *_: object, **__: object) -> NoReturn:
        raise self.refusal("goes on with no text")

    def stream(self, *_: object, **__: object) -> NoReturn:
        raise self.refusal("goes on with no text")

    def inspect(self, *_: object, **__: object) -> NoReturn:
        raise self.refusal("reads two texts, and instruments look at one")

    def refusal(self, why: str) -> UserError:
        return UserError(f"{self.folder} translates, and {why}: palimpsest translate {self.folder} < FILE")
