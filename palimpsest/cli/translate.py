"""palimpsest translate RUN < SENTENCES > TRANSLATIONS"""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path

import tyro

from ..errors import UserError
from ..evaluation.decoding import Decoding, Sampled
from ..experiment import Translator, load
from ..experiment.translation import Translation
from ..launch import speaks
from .answers import print_json


@dataclass(frozen=True)
class Translate:
    """Translate standard input, a sentence a line, into as many lines in the same order, as they come."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    decoding: str = "recipe"
    """How translations are looked for: greedy, beam-search, sampled, or as the recipe says."""
    beam: int | None = None
    """Hypotheses followed at once, of a beam search."""
    length_penalty: float | None = None
    """What a beam search divides log-probabilities by: 0 nothing, 1 the length."""
    temperature: float | None = None
    """Of sampled translations; 1 draws from the model's own distribution."""
    top_k: int | None = None
    """Sample from the k likeliest tokens only."""
    top_p: float | None = None
    """Sample from the likeliest tokens that together have this probability."""
    n_best: int = 1
    """Translations of each sentence, the best first; if more than one, each line begins with its sentence's number."""
    scores: bool = False
    """Begin each translation with its score and a tab."""
    batch: int = 64
    """Lines that are read before the first is translated; on a terminal, one."""
    seed: int = 1
    checkpoint: str = "best"
    """best, latest, the name of one, or last-5 for the mean of the newest five."""
    device: str = "auto"
    json: bool = False
    """Print JSON when all is translated, instead of lines as they come."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Translate, args=arguments, prog="palimpsest translate")
    if not speaks():  # several who read one standard input would each get some of its lines
        return
    if min(options.n_best, options.batch) < 1:
        raise UserError(f"--n-best and --batch are at least 1; found {options.n_best} and {options.batch}")
    trained = load(options.run, options.checkpoint, options.device)
    if not isinstance(trained, Translator):
        run = shlex.quote(str(options.run))
        raise UserError(f"{options.run} is a language model and does not translate: palimpsest generate {run}")
    decoding = choose_decoding(trained.recipe.evaluation, options)
    answers = translations(trained, decoding, options)
    if options.json:
        print_json([{"source": line, "translations": [one._asdict() for one in best]} for line, best in answers])
        return
    for number, (_, best) in enumerate(answers, start=1):
        for one in best:
            print(*labels(number, one, options), one.text, sep="\t", flush=True)


def translations(
    trained: Translator, decoding: Decoding, options: Translate
) -> Iterator[tuple[str, list[Translation]]]:
    """A few lines at a time, so that the first come out before the last go in."""
    # what is no UTF-8 is refused with its place, by the vocabulary
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")  # pyright: ignore
    at_once = 1 if sys.stdin.isatty() else options.batch
    lines = (line.removesuffix("\n").removesuffix("\r") for line in sys.stdin)
    seed = options.seed
    while block := list(islice(lines, at_once)):
        found = trained.hypotheses(block, decoding, seed)
        seed += 1  # other lines, other chance
        yield from zip(block, [best[: options.n_best] for best in found], strict=True)


def labels(number: int, translation: Translation, options: Translate) -> list[str]:
    sentence = [str(number)] if options.n_best > 1 else []
    return [*sentence, *([f"{translation.score:.4f}"] if options.scores else [])]


def choose_decoding(decoding: Decoding, options: Translate) -> Decoding:
    if options.decoding != "recipe":
        decoding = Decoding.named(options.decoding.replace("-", ""))()
    sampling = decoding.sampling if isinstance(decoding, Sampled) else None
    for name in ("beam", "length_penalty", "temperature", "top_k", "top_p"):
        value = getattr(options, name)
        if value is None:
            continue
        if sampling is not None and hasattr(sampling, name):
            sampling = replace(sampling, **{name: value})
        elif name in {field.name for field in fields(decoding)}:  # pyright: ignore[reportArgumentType]
            decoding = replace(decoding, **{name: value})  # pyright: ignore[reportArgumentType]
        else:
            wanted = "beam-search" if name in ("beam", "length_penalty") else "sampled"
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} means nothing to {type(decoding).__name__}: --decoding {wanted} knows it")
    decoding = decoding if sampling is None else replace(decoding, sampling=sampling)  # pyright: ignore
    if options.n_best > decoding.rows:
        raise UserError(f"{options.n_best} translations of a sentence take a beam of as many: --beam {options.n_best}")
    return decoding
