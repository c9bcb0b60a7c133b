"""Retrieval runs as figures, a table and a page, with the published ones beside them.

Made from results.jsonl alone, a line for each run, and from recall.jsonl, a line for each language model that recalls.
"""

import csv
import json
import math
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError
from ..files import write_atomically
from .document import document
from .figures import INK, PANEL_HEIGHT, as_png, dress, new_figure
from .markup import Markup, element
from .page import scrolling, section, table
from .sentences import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULTS, RECALL, COMPARISON = "results.jsonl", "recall.jsonl", "comparison.csv"
PUBLISHED = Path(__file__).with_name("published_retrieval.csv")
SOLVED = 0.001  # the loss at which a published run was stopped
TITLES = {
    "setting-1": "how much it holds: loss against keys",
    "setting-2": "overwriting: loss against keys",
    "recall": "recall: share of right answers against memory",
}
NAMES = {
    "softmax cat": "Softmax",
    "linear sum": "Linear",
    "dpfp1 sum": "DPFP-1",
    "dpfp2 sum": "DPFP-2",
    "dpfp3 sum": "DPFP-3",
    "favor64 sum": "FAVOR+ 64",
    "favor128 sum": "FAVOR+ 128",
    "favor512 sum": "FAVOR+ 512",
    "dpfp1 ours": "DPFP-1, delta",
    "dpfp2 ours": "DPFP-2, delta",
    "linear ours": "Linear, delta",
    "favor64 ours": "FAVOR+ 64, delta",
    "favor128 ours": "FAVOR+ 128, delta",
    "tanh fwm": "FWM, 2021",
    "dpfp1 fwm": "FWM with DPFP-1",
}
# Okabe and Ito's colours, told apart by every eye, then their greys
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#a08f00", "#7f7f7f")
MARKS = "os^Dv<>Px"
DASHED = (0, (3, 2))
LONGEST_LINE = 44  # characters of a legend: as wide as they may be, they fit into a figure


# ------------------------------------------------------------------------------------------------------ reading


def read_results(folder: Path, name: str = RESULTS) -> list[dict[str, Any]]:
    """A line that was cut off is a run that has no result."""
    path, results = folder / name, []
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(ValueError):
            results.append(json.loads(line))
    return results


def read_published() -> dict[tuple[str, int, int], dict[str, Any]]:
    """By label, keys and whether keys come again."""
    with PUBLISHED.open(newline="") as file:
        rows = [{**row, "steps": int(row["steps"]), "loss": float(row["loss"])} for row in csv.DictReader(file)]
    return {(row["label"], int(row["keys"]), int(row["replace"])): row for row in rows}


class Compared(NamedTuple):
    label: str
    keys: int
    replace: int
    seed: int
    steps: int
    loss: float
    accuracy: float
    end: str
    published_steps: int | None
    published_loss: float | None
    published_end: str | None

    @property
    def same_side(self) -> bool | None:
        """Whether both or neither are solved; None where nothing was published, or a run that was broken off."""
        if self.published_loss is None or self.published_end == "truncated":
            return None
        return (self.loss <= SOLVED) == (self.published_loss <= SOLVED)


def compare(results: Iterable[dict[str, Any]]) -> list[Compared]:
    published, rows = read_published(), []
    for one in results:
        told = published.get((one["label"], one["keys"], one["replace"]), {})
        mine = [one[name] for name in ("label", "keys", "replace", "seed", "steps", "loss", "accuracy", "end")]
        rows.append(Compared(*mine, *(told.get(name) for name in ("steps", "loss", "end"))))
    return sorted(rows, key=lambda row: (row.replace, row.label, row.keys, row.seed))


# ------------------------------------------------------------------------------------------------------ writing


def write_retrieval(folder: Path) -> list[Path]:
    """comparison.csv, report.html and, for each setting that was run, a figure as PNG and SVG."""
    results, recalls = read_results(folder), read_results(folder, RECALL)
    if not results and not recalls:
        raise UserError(f"{folder} holds no {RESULTS} and no {RECALL}: nothing was measured there")
    write_comparison(folder / COMPARISON, compare(results))
    figures = {setting(replace): draw_setting(results, replace) for replace in settings(results)}
    if recalls:
        figures["recall"] = draw_recall(recalls)
    drawn = {name: as_svg(figure) for name, figure in figures.items()}
    write_atomically(folder / "report.html", page(results, drawn))
    for name, figure in figures.items():
        write_atomically(folder / f"{name}.png", as_png(figure))
        write_atomically(folder / f"{name}.svg", drawn[name])
    made = [f"{name}.{kind}" for name in figures for kind in ("png", "svg")]
    return [folder / name for name in (COMPARISON, "report.html", *made)]


def settings(results: list[dict[str, Any]]) -> list[int]:
    return sorted({one["replace"] for one in results})


def setting(replace: int) -> str:
    return f"setting-{replace + 1}"


def write_comparison(path: Path, rows: list[Compared]) -> None:
    lines = [",".join((*Compared._fields, "same_side"))]
    lines += [",".join(map(cell, (*row, row.same_side))) for row in rows]
    write_atomically(path, "\n".join(lines) + "\n")


def cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_logs(folder: Path) -> list[Path]:
    """The losses of each run as the original wrote them, under its names, so that its notebooks read them."""
    results = read_results(folder)
    seeds = {one["seed"] for one in results}
    written = []
    for one in results:
        width = one["asked"]["model"].get("key_width", 64)
        name = f"d{width}_{one['label'].replace(' ', '_')}_AssocSeq{one['length']}N{one['keys']}R{one['replace']}.csv"
        path = folder / "logs" / (f"seed-{one['seed']}" if len(seeds) > 1 else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["step,eval-loss", *(f"{step},{loss:.8g}" for step, loss, _ in one["scores"])]
        write_atomically(path, "\n".join(lines) + "\n")
        written.append(path)
    return written


def page(results: list[dict[str, Any]], figures: dict[str, bytes]) -> str:
    drawn = [section(name.replace("-", " "), picture(svg, TITLES[name])) for name, svg in figures.items()]
    rows = compare(results)
    title = element("h1", "How much can a memory hold, and can it overwrite?")
    header = element("header", title, element("p", agreement(rows)))
    return document("retrieval", "retrieval", header, *drawn, section("Every run", scrolling(comparison_table(rows))))


def picture(svg: bytes, title: str) -> Markup:
    return element("img", src=f"data:image/svg+xml;base64,{b64encode(svg).decode()}", alt=title)


def agreement(rows: list[Compared]) -> str:
    """FAVOR+ apart: its directions are drawn anew in every call, and nobody draws the same."""
    told = [row for row in rows if row.same_side is not None]
    fixed = [row for row in told if not row.label.startswith("favor")]
    return (
        f"{len(rows)} runs. Solved or not as published: {count(told)} of {len(told)} that can be compared, "
        f"{count(fixed)} of {len(fixed)} without FAVOR+."
    )


def count(rows: list[Compared]) -> int:
    return sum(row.same_side or False for row in rows)


def comparison_table(rows: list[Compared]) -> Markup:
    headings = ("memory", "keys", "overwriting", "seed", "steps", "loss", "accuracy", "end", "published")
    shown = [
        (
            NAMES.get(row.label, row.label),
            str(row.keys),
            "yes" if row.replace else "no",
            str(row.seed),
            f"{row.steps:,}",
            f"{row.loss:.3g}",
            f"{row.accuracy:.3f}",
            row.end,
            "" if row.published_loss is None else f"{row.published_loss:.3g} at {row.published_steps:,}",
        )
        for row in rows
    ]
    return table(headings, shown)


# ------------------------------------------------------------------------------------------------------ figures


def draw_setting(results: list[dict[str, Any]], replace: int) -> "Figure":
    """The last loss of each run against the number of keys; the published ones dashed."""
    figure = new_figure(2)
    axes = figure.add_subplot()
    mine = [one for one in results if one["replace"] == replace]
    labels = dict.fromkeys(str(one["label"]) for one in mine)
    for number, label in enumerate(sorted(labels, key=lambda label: [*NAMES, label].index(label))):
        look = look_of(number)
        told = published_curve(label, replace)
        if told:
            axes.plot(*zip(*told, strict=True), linestyle=DASHED, linewidth=0.9, color=look["color"], alpha=0.6)
        draw_runs(axes, [one for one in mine if one["label"] == label], NAMES.get(label) or label, look)
    dress(axes, TITLES[setting(replace)], "keys")
    finite = [one["loss"] for one in mine if math.isfinite(one["loss"])]
    if replace and finite and min(finite) > 0:
        axes.set_yscale("log")
    axes.plot([], [], linestyle=DASHED, linewidth=0.9, color=INK, label="as published")
    add_legend(figure)
    return figure


def add_legend(figure: "Figure") -> None:
    """Below, in as many columns as fit, and not at the expense of the plot."""
    (axes,) = figure.axes
    handles, names = axes.get_legend_handles_labels()
    lines = [fill(name, LONGEST_LINE) for name in names]
    for columns in (3, 2, 1):
        look = {"ncols": columns, "frameon": False, "fontsize": 9, "labelcolor": INK}
        legend = figure.legend(handles, lines, loc="outside lower center", **look)
        taken = legend.get_window_extent()
        if taken.width <= figure.bbox.width:
            break
        legend.remove()
    figure.set_figheight(max(figure.get_figheight(), PANEL_HEIGHT + taken.height / figure.dpi))


def look_of(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)], "markersize": 4}


def published_curve(label: str, replace: int) -> list[tuple[int, float]]:
    rows = read_published().items()
    return sorted((keys, row["loss"]) for (name, keys, again), row in rows if (name, again) == (label, replace))


def draw_runs(axes: "Axes", runs: list[dict[str, Any]], name: str, look: dict[str, Any]) -> None:
    """The mean over the seeds, with its standard error where there are several; a gap where one is not a number."""
    by_keys: dict[int, list[float]] = {}
    for one in runs:
        by_keys.setdefault(one["keys"], []).append(one["loss"])
    keys = sorted(by_keys)
    means = [fmean(by_keys[each]) for each in keys]
    errors = [stdev(by_keys[each]) / len(by_keys[each]) ** 0.5 if len(by_keys[each]) > 1 else 0.0 for each in keys]
    bars = errors if any(errors) else None
    axes.errorbar(keys, means, bars, linewidth=1.6, elinewidth=1.0, capsize=2, label=name, **look)


def draw_recall(recalls: list[dict[str, Any]]) -> "Figure":
    """The share of right answers against the bytes that are kept of a sequence, a line for each label."""
    figure = new_figure(1)
    axes = figure.add_subplot()
    for number, label in enumerate(dict.fromkeys(one["label"] for one in recalls)):
        points = sorted((one["bytes"], one["accuracy"]) for one in recalls if one["label"] == label)
        axes.plot(*zip(*points, strict=True), linewidth=1.6, label=label, **look_of(number))
    dress(axes, TITLES["recall"], "bytes kept of a sequence")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: short(size))
    axes.set_ylim(-0.02, 1.02)
    add_legend(figure)
    return figure


def as_svg(figure: "Figure") -> bytes:
    from matplotlib import rc_context

    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "palimpsest"}):  # the same numbers give the same bytes
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
