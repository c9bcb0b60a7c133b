"""palimpsest evaluate RUN [--protocol NAME] [--FIELD VALUE … of the protocol]"""

import re
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tyro

from ..data.corpora import Text
from ..data.parallel import TwoFiles
from ..data.tokens import Split
from ..errors import UserError, unknown
from ..evaluation.decoding import Decoding
from ..evaluation.perplexity import Protocol, SlidingWindow
from ..experiment import Trained, Translator, load
from ..legacy import protocols  # noqa: F401 (the originals' are found by name)
from ..spec import Spec
from ..training.precision import Precision, Single
from ..world import World
from .answers import print_json
from .ls import shelf
from .overrides import flags, is_flag, normal, override, split_equals

PROGRAM = "palimpsest evaluate"
HELP = """usage: palimpsest evaluate RUN [--protocol NAME] [--FIELD VALUE … of the protocol] [options]

  palimpsest evaluate RUN --protocol sliding-window --context 256 --stride 32
  palimpsest evaluate RUN --protocol cached-memory --segment 64 --memory 0 64 128 256 --rows 8

  palimpsest evaluate RUN --split test --protocol beam-search --beam 1 5 10

A field of the protocol that is given several values makes a score for each of them. Protocols, and their fields (the
last are for runs that translate):
"""
ROWS = ("bleu", "chrf", "nats_per_token", "perplexity", "bits_per_token", "bits_per_character", "bits_per_byte")
NUMBER = re.compile(r"-?\d+|none", re.IGNORECASE)
LENGTHS = ("context", "length", "segment")  # what protocols call the tokens they read in one piece


@dataclass(frozen=True)
class Evaluate:
    """Score a run exactly: every target counted once, and the protocol told with the number."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    split: Literal["train", "valid", "test", "all"] = "valid"
    """Which part of the corpus; all is valid and test."""
    protocol: str = "recipe"
    """How much context each target is given: segments, sliding-window, carried-state, cached-memory …, or as the
    recipe says."""
    text: Path | None = None
    """Another text, scored whole, instead of a split of the run's corpus."""
    source: Path | None = None
    """Of a run that translates: sentences of your own, a line each …"""
    reference: Path | None = None
    """… and what they should become."""
    checkpoint: str = "best"
    """best, latest, the name of one, or last-5 for the mean of the newest five."""
    device: str = "auto"
    precision: str = "single"
    """The numbers that products are made of: single, tensor-float-32, bfloat-16, float-16."""
    json: bool = False
    """Print JSON, with the loss by position."""


Fields = dict[str, list[str]]  # of a protocol, each with the values it is given; with none where it is true or false
OWN = {"h", "help", *(field.name for field in fields(Evaluate))} | {"no_json"}


def main(arguments: list[str]) -> None:
    own, given = divide(arguments)
    if {"-h", "--help"} & {*own}:
        protocols = {**shelf(Protocol), **shelf(Decoding)}
        print(HELP, *(f"  {name}\n      {line}" for name, line in protocols.items()), "", sep="\n")
    options = tyro.cli(Evaluate, args=own, prog=PROGRAM)
    world = World.join(options.device)
    trained = replace(load(options.run, options.checkpoint, str(world.device)), world=world)
    chosen = choose_protocols(starting_point(options.protocol, trained), given)
    precision = Precision.named(options.precision.replace("-", ""))()
    told = {"checkpoint": trained.checkpoint, "precision": type(precision).__name__}
    with precision.at_work(world.device):
        scores = [
            {"split": split.name, **told, **trained.evaluate(split, protocol).to_json()}
            for split in choose_splits(trained, options)
            for protocol in chosen
        ]
    if not world.is_first:
        return
    if options.json:
        print_json(scores[0] if len(scores) == 1 else scores)
    elif len(chosen) == 1:
        print("\n\n".join(describe(score) for score in scores))
    else:
        print(table(scores))


def divide(arguments: list[str]) -> tuple[list[str], Fields]:
    """The verb's own arguments, and the flags that are left for the protocol, with the values that follow each."""
    own, given, values = [], {}, None
    for piece in [piece for argument in arguments for piece in split_equals(argument)]:
        if is_flag(piece) and normal(piece) not in OWN:
            values = given.setdefault(normal(piece), [])
            values += piece.split("=", 1)[1:]
        elif is_flag(piece) or values is None or not (own or NUMBER.fullmatch(piece)):  # the run may come last
            own.append(piece)
            values = None
        else:
            values.append(piece)
    return own, given


def starting_point(name: str, trained: Trained) -> Spec:
    return trained.recipe.evaluation if name == "recipe" else trained.protocols.named(name.replace("-", ""))()


def choose_protocols(protocol: Spec, given: Fields) -> list[Any]:
    """One for each combination of the values that are given."""
    known = [".".join(path) for path in flags(protocol)]
    given = {resolve(name, known): values for name, values in given.items()}
    combinations = product(*([(name, value) for value in values or [""]] for name, values in given.items()))
    return [change(protocol, dict(combination)) for combination in combinations]


def resolve(name: str, known: list[str]) -> str:
    """--context is understood by every protocol."""
    if name == LENGTHS[0]:
        name = next((length for length in LENGTHS if length in known), name)
    if name not in known:
        raise unknown("flag", spell(name), [spell(other) for other in (*OWN - {"h", "run"}, *known)])
    return name


def change(protocol: Spec, values: dict[str, str]) -> Spec:
    if isinstance(protocol, SlidingWindow) and "stride" not in values and values.get("context", "").isdigit():
        # a window that is shorter than the stride moves on by its own length
        values["stride"] = str(min(protocol.stride, int(values["context"])))
    arguments = [f"{spell(name)}={value}" if value else spell(name) for name, value in values.items()]
    return override(protocol, arguments, PROGRAM)


def spell(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def choose_splits(trained: Trained, options: Evaluate) -> list[Split]:
    if options.source is not None or options.reference is not None:
        return [own_pairs(trained, options)]
    if options.text is not None and isinstance(trained, Translator):
        raise UserError(f"{options.run} translates: give --source and --reference, two files, instead of --text")
    if options.text is not None:
        corpus = Text(options.text, valid=0.0, test=0.0, documents=trained.recipe.data.corpus.documents)
        return [replace(trained.tokens(corpus).splits["train"], name=str(options.text))]
    splits = trained.tokens().splits
    wanted = ["valid", "test"] if options.split == "all" else [options.split]
    found = [splits[name] for name in wanted if name in splits]
    if not found:
        raise UserError(f"the corpus has no {options.split} split; it has {', '.join(splits)}")
    return found


def own_pairs(trained: Trained, options: Evaluate) -> Split:
    if not isinstance(trained, Translator) or options.source is None or options.reference is None:
        raise UserError("--source and --reference go together, and with a run that translates")
    corpus = TwoFiles(options.source, options.reference, valid=0.0, test=0.0)
    return replace(trained.tokens(corpus).splits["train"], name=str(options.source))


def describe(score: dict[str, Any]) -> str:
    protocol = dict(score["protocol"])
    name = protocol.pop("part").rpartition(":")[-1]
    settings = ", ".join(f"{field} {value}" for field, value in protocol.items())
    made = [score["split"], score["checkpoint"], f"{name} ({settings})"]
    made += [] if score["precision"] == Single.__name__ else [score["precision"]]
    lines = [f"{', '.join(made)}: {score['tokens']:,} targets"]
    lines += [f"  {row.replace('_', ' '):<20}{score[row]:.4f}" for row in ROWS if score.get(row) is not None]
    lines += [f"  {signature}" for signature in score.get("signatures", {}).values()]
    return "\n".join(lines)


def table(scores: list[dict[str, Any]]) -> str:
    """One line for each score, with the fields of the protocol in which they differ."""
    first = scores[0]["protocol"]
    varied = [name for name in first if any(score["protocol"][name] != first[name] for score in scores)]
    units = [row for row in ROWS if all(score.get(row) is not None for score in scores)]
    lines = [[name.replace("_", " ") for name in ("split", *varied, "targets", *units)]]
    for score in scores:
        numbers = [f"{score[unit]:.4f}" for unit in units]
        settings = [str(score["protocol"][name]) for name in varied]
        lines.append([score["split"], *settings, f"{score['tokens']:,}", *numbers])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
