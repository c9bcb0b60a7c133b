"""palimpsest evaluate RUN"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from ..data.corpora import Text
from ..data.tokens import Split
from ..errors import UserError
from ..evaluation.perplexity import CarriedState, Protocol, Segments, SlidingWindow
from ..experiment import Trained, load

ROWS = ("nats_per_token", "perplexity", "bits_per_token", "bits_per_character", "bits_per_byte")


@dataclass(frozen=True)
class Evaluate:
    """Score a run exactly: every target counted once, and the protocol told with the number."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    split: Literal["train", "valid", "test", "all"] = "valid"
    """Which part of the corpus; all is valid and test."""
    protocol: Literal["recipe", "segments", "sliding-window", "carried-state"] = "recipe"
    """How much context each target is given; by default as the recipe says."""
    context: int = 256
    """Length of a segment or of a sliding window."""
    stride: int = 32
    """Targets scored by each sliding window."""
    text: Path | None = None
    """Another text, scored whole, instead of a split of the run's corpus."""
    checkpoint: str = "best"
    """best, latest or the name of one."""
    device: str = "auto"
    json: bool = False
    """Print JSON, with the loss by position."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Evaluate, args=arguments, prog="palimpsest evaluate")
    trained = load(options.run, options.checkpoint, options.device)
    protocol = choose_protocol(options)
    scores = [
        {"split": split.name, "checkpoint": trained.checkpoint, **trained.evaluate(split, protocol).to_json()}
        for split in choose_splits(trained, options)
    ]
    if options.json:
        print(json.dumps(scores[0] if len(scores) == 1 else scores, indent=2))
    else:
        print("\n\n".join(describe(score) for score in scores))


def choose_protocol(options: Evaluate) -> Protocol | None:
    return {
        "recipe": None,
        "segments": Segments(options.context),
        "sliding-window": SlidingWindow(options.context, min(options.stride, options.context)),
        "carried-state": CarriedState(),
    }[options.protocol]


def choose_splits(trained: Trained, options: Evaluate) -> list[Split]:
    if options.text is not None:
        whole = trained.tokens(Text(options.text, valid=0.0, test=0.0)).splits["train"]
        return [Split(str(options.text), whole.ids, whole.characters, whole.bytes)]
    splits = trained.tokens().splits
    wanted = ["valid", "test"] if options.split == "all" else [options.split]
    found = [splits[name] for name in wanted if name in splits]
    if not found:
        raise UserError(f"the corpus has no {options.split} split; it has {', '.join(splits)}")
    return found


def describe(score: dict[str, Any]) -> str:
    protocol = dict(score["protocol"])
    name = protocol.pop("part")
    settings = ", ".join(f"{field} {value}" for field, value in protocol.items())
    lines = [f"{score['split']}, {score['checkpoint']}, {name} ({settings}): {score['tokens']:,} targets"]
    lines += [f"  {row.replace('_', ' '):<20}{score[row]:.4f}" for row in ROWS if score[row] is not None]
    return "\n".join(lines)
