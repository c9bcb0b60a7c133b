"""palimpsest resume RUN"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..experiment import resume


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, as if it never had been."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Resume, args=arguments, prog="palimpsest resume")
    print(resume(options.run))
