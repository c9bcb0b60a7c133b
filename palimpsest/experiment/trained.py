"""A trained model with its vocabulary: to score texts and to write them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..data.codec import Printer, characters_begun
from ..data.corpora import Corpus
from ..data.tokens import Split, Tokens, tokenise
from ..data.vocabulary import Codec, codec_from_json
from ..errors import UserError
from ..evaluation.generation import Sampling, generate
from ..evaluation.instruments import Inspection, read_instruments
from ..evaluation.perplexity import Protocol, Score, evaluate
from ..files import read_json
from ..models.language_model import LanguageNetwork
from ..spec import Spec
from ..training.checkpoint import Checkpoints, load_mean, load_weights
from ..world import World
from .recipe import Recipe


@dataclass(frozen=True)
class Trained:
    """A run that can be used; a subclass is for the runs of recipes of another kind."""

    of: ClassVar[type[Recipe]] = Recipe
    protocols: ClassVar[type[Spec]] = Protocol

    folder: Path
    checkpoint: str
    recipe: Recipe
    model: LanguageNetwork
    codec: Codec
    world: World

    def generate(
        self,
        prompt: str = "\n",
        length: int = 500,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
    ) -> str:
        """`length` tokens that follow the prompt."""
        return "".join(self.stream(prompt, length, Sampling(temperature, top_k, top_p), seed))

    def stream(self, prompt: str, length: int, sampling: Sampling, seed: int = 1) -> Iterator[str]:
        """The same in small pieces, each as soon as it can be printed."""
        if length < 0:
            raise UserError(f"length is 0 or more; found {length}")
        ids = self.codec.encode(prompt)  # refused before anything is printed
        return self.written(self.drawn(ids, sampling, seed), self.codec.stream(before=prompt), length)

    def written(self, drawn: Iterator[int], printer: Printer, length: int) -> Iterator[str]:
        for token in islice(drawn, length):
            yield printer(token)
        yield printer.close()

    def drawn(self, ids: np.ndarray, sampling: Sampling, seed: int) -> Iterator[int]:
        """Tokens that follow others, for ever."""
        prompt = torch.from_numpy(ids).to(self.world.device)
        window = None if self.recipe.model.block.remembers else self.recipe.data.segment
        return generate(self.model, prompt, sampling, torch.Generator().manual_seed(seed), window=window)

    def tokens(self, corpus: Corpus | None = None) -> Tokens:
        """A corpus, by default the one trained on, in this model's vocabulary."""
        data = self.recipe.data
        tokens = tokenise(corpus or data.corpus, data.vocabulary, codec=self.codec)
        if corpus is None and (self.folder / "corpus.json").exists():  # what was imported was not trained here
            refuse_another(tokens, self.recipe, self.folder, "score it, or score another with --text FILE")
        return tokens

    def evaluate(self, split: Split, protocol: Protocol | None = None) -> Score:
        protocol = protocol or self.recipe.evaluation
        # what is context only was not predicted: the score is of the rest of the text
        unscored = protocol.unscored(split.ids)
        if split.documents is not None:  # nor was the first token of any document
            known = {place for where in unscored for place in where}
            unscored = [*unscored, *(range(one, one + 1) for one in split.documents[:-1].tolist() if one not in known)]
        missed = b"".join(self.codec.spelling(split.ids[where.start : where.stop]) for where in unscored)
        characters = None if split.characters is None else split.characters - characters_begun(missed)
        text = (split.ids, protocol, characters, split.bytes - len(missed))
        return evaluate(self.model, *text, self.world, documents=split.documents)

    def tell(self, score: Score) -> str:
        """In a few words."""
        return f"{score.nats_per_token:.4f} nats per {self.codec.unit}"

    def sample(self, tokens: Tokens, length: int) -> str:
        """What it writes, which begins as the text itself begins."""
        first = tokens.splits["train"].ids[:1].astype(np.int64)  # of bytes, less than a character
        drawn = self.drawn(first, Sampling(), self.recipe.run.seed)
        return self.codec.decode([*first, *islice(drawn, length)])

    def inspect(self, text: str | None = None, length: int = 128) -> Inspection:
        """What each memory does with the first tokens of a text, by default of the validation split."""
        ids = self.tokens().splits["valid"].ids if text is None else self.codec.encode(text)
        ids = torch.from_numpy(ids[:length].astype("int64"))
        if not len(ids):
            raise UserError("there is nothing to look at in a text of no tokens: give a longer one")
        pieces = tuple(self.codec.decode([token]) for token in ids.tolist())
        return read_instruments(self.model, ids.to(self.world.device), pieces)


def load(folder: str | Path, checkpoint: str = "best", device: str = "auto") -> Trained:
    """The model of a run: its best checkpoint, its latest, one by name, or the mean of the newest few, `last-5`."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"there is no run {folder}")
    recipe = Recipe.read(folder / "recipe.json")
    codec = read_codec(folder)
    world = World.enter(device)
    model = recipe.model.build(codec.size)
    checkpoints = Checkpoints(folder / "checkpoints")
    paths = checkpoints.find_all(checkpoint)
    try:
        if len(paths) == 1:
            load_weights(model, paths[0])
        else:
            load_mean(model, paths)
    except UserError as damage:
        if checkpoint != "best" or paths == [checkpoints.find("latest")]:
            raise
        raise UserError(f"{damage}; the newest is had with --checkpoint latest") from damage
    name = paths[-1].name if len(paths) == 1 else f"the mean of {paths[0].name} to {paths[-1].name}"
    kind = next(kind for kind in (*Trained.__subclasses__(), Trained) if isinstance(recipe, kind.of))
    return kind(folder, name, recipe, model.to(world.device).eval(), codec, world)


def read_tokens(recipe: Recipe, run: Path | None, notice: Callable[[str], object] = lambda line: None) -> Tokens:
    """The recipe's corpus, in the vocabulary of a run if one is given, else in one learned from it."""
    codec = None if run is None else read_codec(run)
    return tokenise(recipe.data.corpus, recipe.data.vocabulary, codec=codec, notice=notice)


def refuse_another(tokens: Tokens, recipe: Recipe, folder: Path, purpose: str) -> None:
    """A run's numbers are of the text it began with."""
    if read_json(folder / "corpus.json") != fingerprint(tokens):
        raise UserError(
            f"the corpus {recipe.data.corpus.name!r} is not what it was when {folder} began: bring the old text back "
            f"to {purpose}"
        )


def fingerprint(tokens: Tokens) -> dict[str, dict[str, Any]]:
    """Enough to know the corpus again."""
    return {
        name: {"tokens": split.tokens, "sha256": sha256(np.ascontiguousarray(split.ids).data).hexdigest()}
        for name, split in tokens.splits.items()
    }


def read_codec(folder: Path) -> Codec:
    return codec_from_json(read_json(folder / "vocabulary.json"))
