"""palimpsest resume RUN [--json]"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..experiment import resume
from ..files import told_if_full
from .train import tell


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, as if it never had been."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    json: bool = False
    """Print the run's folder and its final evaluation as JSON."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Resume, args=arguments, prog="palimpsest resume")
    with told_if_full():
        folder = resume(options.run)
    tell(folder, options.json)
