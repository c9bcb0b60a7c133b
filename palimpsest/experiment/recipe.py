"""A Recipe is a value, data × model × optimiser × schedule × run × evaluation: all there is to say about a run."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..batch import Batch
from ..data.corpora import Corpus, JsonLines, Text, TinyShakespeare
from ..data.streams import Order, Shuffled, ShuffledDocuments, Stream
from ..data.tokens import Split, Tokens
from ..data.vocabulary import Characters, Vocabulary
from ..errors import UserError
from ..evaluation.perplexity import Protocol, Segments, evaluate
from ..files import from_the_root, read_json
from ..models.language_model import LanguageModel
from ..serialise import from_json
from ..spec import Size, Spec, parts_of
from ..training.optimisers import AdamW, Optimiser
from ..training.schedules import Cosine, Schedule
from ..training.trainer import Run
from ..world import World


@dataclass(frozen=True)
class Data(Spec):
    """Which text, read as which tokens, in which order."""

    corpus: Corpus = TinyShakespeare()
    vocabulary: Vocabulary = Characters()
    order: Order = Shuffled()
    batch: Size = 16  # rows
    segment: Size = 256  # tokens of a row read at once

    @property
    def per_step(self) -> int:
        """Tokens."""
        return self.batch * self.segment

    @property
    def shape(self) -> str:
        return f"{self.batch} rows of {self.segment}"

    def per_epoch(self, split: Split) -> int:
        """Tokens."""
        return split.tokens

    def stream(self, split: Split, seed: int) -> Stream:
        return self.order.build(split.ids, self.batch, self.segment, seed, split.documents)

    def check_shares(self, processes: int) -> None:
        """Refuse rows that so many processes cannot share equally."""
        if self.batch % processes:
            raise UserError(
                f"a batch of {self.batch} rows cannot be shared equally by {processes} processes: choose a --batch "
                f"that {processes} divides, or start as many processes as divide {self.batch}"
            )

    def example(self) -> Batch:
        """A batch such as a step reads, of no token in particular."""
        ids = torch.zeros(self.batch, self.segment, dtype=torch.long)
        return Batch(ids, ids)

    def corpus_at(self, path: Path) -> Corpus:
        """What a user gives by its path alone."""
        return (JsonLines if path.suffix.lower() in JsonLines.suffixes else Text)(path)


@dataclass(frozen=True)
class Recipe(Spec):
    """One experiment."""

    name: str = "run"
    data: Data = Data()
    model: LanguageModel = LanguageModel()
    optimiser: Optimiser = AdamW()
    schedule: Schedule = Cosine(warmup=100)
    run: Run = Run()
    evaluation: Protocol = Segments()

    def __post_init__(self):
        super().__post_init__()
        if self.run.carry and not self.data.order.continues:
            order = type(self.data.order).__name__
            raise UserError(
                f"state can be carried only where rows continue, and those of {order} do not: --order Contiguous"
            )
        redrawn = [type(part).__name__ for part in parts_of(self.model) if getattr(part, "redraw", None)]
        if self.run.carry and redrawn:
            raise UserError(
                f"state cannot be carried while {redrawn[0]} is drawn anew in training: a page written under one draw "
                "cannot be read under the next; --redraw None keeps the first, --no-carry begins each segment afresh"
            )
        if self.data.corpus.documents is not None and not self.model.packs:
            raise UserError(
                "this model reads a segment as one text, so that its documents cannot be packed: leave --documents out"
            )

    def require(self) -> None:
        """Refuse, before anything is written, what is known once all is said: what is missing, or does not go together.

        Flags exchange parts one by one before they say anything of them, so that parts alone refuse nothing of that.
        """
        if isinstance(self.data.order, ShuffledDocuments) and self.data.corpus.documents is None:
            raise UserError(
                "ShuffledDocuments needs a text that is many documents: say what each of them ends with, --documents"
            )

    def validate(self, model: nn.Module, tokens: Tokens, world: World) -> dict[str, float]:
        """Nats per token of the validation split, by which runs are judged, and whatever else is to be seen."""
        valid = tokens.splits["valid"]
        text = (valid.ids, self.evaluation, None, valid.bytes)
        return {"nats": evaluate(model, *text, world, documents=valid.documents).nats_per_token}

    def from_the_root(self) -> "Recipe":
        """With paths that mean the same wherever it is read."""
        return with_whole_paths(self)

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        if not path.exists():
            raise UserError(f"{path.parent} is not a run: there is no {path.name} in it")
        return from_json(read_json(path), cls, str(path))


def with_whole_paths(value: Any) -> Any:
    """A part with its paths made absolute, and those of its parts; one that was not given stays so."""
    if isinstance(value, Spec):
        names = [field.name for field in fields(value)]  # pyright: ignore[reportArgumentType]
        return replace(value, **{name: with_whole_paths(getattr(value, name)) for name in names})  # pyright: ignore[reportArgumentType]
    return from_the_root(value) if isinstance(value, Path) and value != Path() else value
