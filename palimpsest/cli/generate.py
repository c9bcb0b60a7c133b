"""palimpsest generate RUN"""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from ..errors import UserError
from ..evaluation.generation import Sampling
from ..experiment import load
from ..launch import speaks
from .answers import print_json


@dataclass(frozen=True)
class Generate:
    """Let a run write, token by token, after a prompt from the command line, a file or standard input."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    prompt: str | None = None
    """What to go on from; - reads standard input. Default: a line break."""
    prompt_file: Path | None = None
    """A file to go on from."""
    length: int = 500
    """Tokens to write."""
    temperature: float = 0.8
    """0 always takes the likeliest token, 1 draws from the model's own distribution."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the likeliest tokens that together have this probability."""
    seed: int = 1
    checkpoint: str = "best"
    """best, latest, the name of one, or last-5 for the mean of the newest five."""
    device: str = "auto"
    json: bool = False
    """Print one JSON object when all is written, instead of text as it comes."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Generate, args=arguments, prog="palimpsest generate")
    if not speaks():  # several would write the same text
        return
    prompt = read_prompt(options)
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    trained = load(options.run, options.checkpoint, options.device)
    pieces = trained.stream(prompt, options.length, sampling, options.seed)
    if options.json:
        print_json({"prompt": prompt, "text": "".join(pieces), "checkpoint": trained.checkpoint})
        return
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def read_prompt(options: Generate) -> str:
    if options.prompt is not None and options.prompt_file is not None:
        raise UserError("a prompt is given by --prompt or by --prompt-file, not by both")
    if options.prompt_file is not None:
        try:
            return options.prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the prompt cannot be read from {options.prompt_file}: {error}") from error
    if options.prompt == "-":
        return sys.stdin.read()
    return "\n" if options.prompt is None else options.prompt
