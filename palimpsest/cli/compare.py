"""palimpsest compare RUN… [--output FILE] [--json]"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..errors import UserError
from ..report.comparison import COSTS, Compared, Comparison, compare_runs, said
from ..report.comparison_page import write_comparison
from ..report.page import told
from ..report.sentences import number, spell
from .answers import print_json

GAP = "  "


@dataclass(frozen=True)
class Compare:
    """Put runs side by side: their scores, what they cost, and only what differs between their recipes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The runs' folders, two or more."""
    output: Path = Path("compare.html")
    """The page, with their curves drawn together."""
    json: bool = False
    """Print JSON instead of the tables."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(Compare, args=arguments, prog="palimpsest compare")
    if not options.runs:
        raise UserError("a comparison needs two runs or more, and none was given: palimpsest compare RUN RUN")
    comparison = compare_runs(options.runs)
    path = write_comparison(comparison, options.output)
    if options.json:
        print_json({**comparison.to_json(), "page": path})
        return
    print(*(f"{run.letter}  {run.label}  ({run.folder})" for run in comparison.runs), sep="\n")
    print("", table(comparison), "", f"page: {path}", sep="\n")


def table(comparison: Comparison) -> str:
    """A column for each run: scores, costs, and where the recipes differ; an asterisk marks the best."""
    runs, names = comparison.runs, comparison.score_names
    lines = [["", *(run.letter for run in runs)]]
    lines += [[spell(name), *(score(comparison, run, name) for run in runs)] for name in names]
    lines += [[title, *(told(run.numbers[name], spelt) for run in runs)] for name, (title, spelt) in COSTS.items()]
    lines += [[row.path, *(said(row, i) for i in range(len(runs)))] for row in comparison.recipe if row.disputed]
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        GAP.join([line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], others, strict=True))])
        for line in lines
    )


def score(comparison: Comparison, run: Compared, name: str) -> str:
    shown = told(run.scores.get(name), lambda value: number(value, digits=4))
    return f"{shown} *" if comparison.best(name) is run else shown
