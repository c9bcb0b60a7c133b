"""palimpsest inspect RUN [--text FILE]"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..errors import UserError
from ..evaluation.instruments import HeadReadings, Inspection, Spread
from ..experiment import inspect, report_instruments
from .answers import print_json


@dataclass(frozen=True)
class Inspect:
    """Look at what each head of a run's memories does with a text: a table here, pictures in the run's report."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    text: Path | None = None
    """A text, instead of the run's validation split."""
    length: int = 128
    """Tokens of it to look at, from the first on; at most 1,024, or as many as it has."""
    checkpoint: str = "best"
    """best, latest, the name of one, or last-5 for the mean of the newest five."""
    device: str = "auto"
    json: bool = False
    """Print JSON instead of the table, and leave the report as it is."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Inspect, args=arguments, prog="palimpsest inspect")
    if options.length < 1:
        raise UserError(f"a length is at least 1; found {options.length}")
    inspection = inspect(options.run, read_text(options.text), options.length, options.checkpoint, options.device)
    if options.json:
        print_json(inspection.to_json())
        return
    print(table(inspection))
    print(f"\n{len(inspection.tokens)} tokens; pictures: {report_instruments(options.run, inspection)}")


def read_text(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the text cannot be read from {path}: {error}") from error


def table(inspection: Inspection) -> str:
    lines = [["layer", "head", "keep", "erase", "write", "written", "erased", "collisions", "rank"]]
    for layer in inspection.layers:
        for head, readings in enumerate(layer.heads, start=1):
            lines.append([str(layer.layer), str(head), *cells(readings)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def cells(head: HeadReadings) -> list[str]:
    gates = [mean(gate) for gate in (head.keep, head.erase, head.write)]
    return [
        *gates,
        f"{head.write_norm:.3g}",
        f"{head.erase_norm:.3g}",
        f"{head.collisions:.3f}",
        f"{head.ranks[-1]:.1f}",
    ]


def mean(gate: Spread | None) -> str:
    return "–" if gate is None else f"{gate.mean:.3f}"
