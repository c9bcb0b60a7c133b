"""palimpsest import CHECKPOINT --from ORIGINAL [--json]"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import UserError
from ..legacy.checkpoints import import_checkpoint, published
from ..training.log import Voice
from .answers import print_json
from .data import bar


@dataclass(frozen=True)
class Import:
    """Make a run of a checkpoint of one of the original toolkits. Nothing that the file names is ever executed."""

    checkpoint: tyro.conf.Positional[str]
    """A model.pt, a state dict, a training checkpoint or safetensors; a folder that flash-linear-attention saved; or a
    model that adaptive-span published, by name: enwik8, text8, enwik8_large, text8_large."""
    original: Annotated[
        Literal["transformer-xl", "lmtool-fwms", "adaptive-span", "flash-linear-attention"], tyro.conf.arg(name="from")
    ]
    """Which toolkit wrote it."""
    data: Path | None = None
    """The data folder it was trained on, for its vocabulary; by default the prepared corpus of the dataset. For
    flash-linear-attention, whose tokenisers are not read: a run of palimpsest with the same vocabulary."""
    dataset: str | None = None
    """The original's name for the data, such as wt103; by default told by the size of the vocabulary."""
    set: tuple[str, ...] = ()
    """Settings that the checkpoint does not tell, by the original's names: n_head=8 mem_len=512."""
    folder: Path | None = None
    """Where to write (default: runs/NAME-001, -002, …)."""
    json: bool = False
    """Print JSON."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Import, args=arguments, prog="palimpsest import")
    path = Path(options.checkpoint)
    if not path.exists() and options.original == "adaptive-span" and path.suffix == "":
        with bar(options.checkpoint, Voice()) as progress:
            path = published(options.checkpoint, progress)
    settings = dict(map(read_setting, options.set))
    run = import_checkpoint(path, options.original, options.data, options.dataset, settings, options.folder)
    if options.json:
        print_json({"run": run})
    else:
        print(run)


def read_setting(text: str) -> tuple[str, Any]:
    """`cutoffs=[20,40]` is a list, `n_head=8` a number and `dataset=wt103` a word."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UserError(f"a setting is given as name=value; found {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
