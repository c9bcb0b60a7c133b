"""The curves of a run as a PNG, for a slide or a paper. The page draws its own, which follow light and dark."""

import math
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .curves import LogScale, Scale, curve, fitting_scale, head_courses, head_points, smooth
from .run_folder import Reading, RunRecord
from .sentences import short, spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's blue and vermilion: told apart by every eye; validation has dots besides.
TRAIN, VALID, INK, GRID = "#0072b2", "#d55e00", "#3b3b3b", "#e4e4e4"
WIDTH, PANEL_HEIGHT, DOTS_PER_INCH = 6.0, 3.4, 200  # 12 points stay readable when 6 inches become a telephone
LONGEST_NAME, LONGEST_AXIS = 32, 10  # characters, ticks


def draw_curves(record: RunRecord) -> bytes:
    """Loss against tokens seen, loss by position if the run was evaluated, and whatever the model has gauges for."""
    panels = panels_of(record)
    figure = new_figure(len(panels) or 1)
    for i, draw in enumerate(panels):
        draw(figure.add_subplot(len(panels), 1, i + 1))
    if not panels:
        figure.text(0.5, 0.5, "nothing measured yet", ha="center", va="center", color=INK, fontsize=12)
    return as_png(figure)


def panels_of(record: RunRecord) -> list[Callable[["Axes"], None]]:
    panels = [partial(draw_loss, record=record)] * bool(record.train or record.valid)
    panels += [partial(draw_positions, record=record)] * bool(record.positions)
    for name, readings in record.gauges.items():
        title = shortened(spell(name))
        panels.append(partial(draw_heads, title=title, last=readings[-1]))
        panels += [partial(draw_head_courses, title=title, readings=readings)] * bool(head_courses(readings))
        panels += [partial(draw_course, title=title, readings=readings)] * bool(curve(readings, "mean"))
    return panels


def new_figure(panels: int) -> "Figure":
    try:
        from matplotlib.figure import Figure  # not pyplot, which keeps every figure and chooses a window system
    except ImportError as error:
        raise UserError(
            "the curves are drawn with matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure(figsize=(WIDTH, PANEL_HEIGHT * panels), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")


def as_png(figure: "Figure") -> bytes:
    buffer = BytesIO()
    # Without the version of matplotlib the same numbers give the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def draw_loss(axes: "Axes", record: RunRecord) -> None:
    raw, valid = curve(record.train), curve(record.valid)
    if raw:
        plot(axes, raw, color=TRAIN, alpha=0.3, linewidth=0.8)
        plot(axes, smooth(raw), color=TRAIN, linewidth=1.8, label="training, smoothed")
    if valid:
        plot(axes, valid, color=VALID, marker="o", markersize=4.5, linewidth=1.0, label="validation")
    dress(axes, f"{shortened(record.name)}: nats per token", "tokens seen")
    count_tokens(axes)
    if raw or valid:
        axes.legend(frameon=False, fontsize=11, labelcolor=INK)


def shortened(name: str) -> str:
    """A title wider than the figure would squeeze the axes."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def count_tokens(axes: "Axes") -> None:
    axes.xaxis.set_major_formatter(lambda tokens, _: short(tokens))
    axes.set_xlim(left=0)


def plot(axes: "Axes", points: list[tuple[float, float]], **look: Any) -> None:
    axes.plot(*zip(*points, strict=True), solid_capstyle="round", **look)


def draw_positions(axes: "Axes", record: RunRecord) -> None:
    """A step per range of positions, all equally wide: most of the change is among the first few tokens."""
    ranges = record.positions
    edges = [ranges[0]["from"], *(one["to"] for one in ranges)]
    axes.stairs([one["nats_per_token"] for one in ranges], range(len(edges)), baseline=None, color=TRAIN, linewidth=1.8)
    every = math.ceil(len(edges) / LONGEST_AXIS)
    axes.set_xticks(range(0, len(edges), every), [short(edge) for edge in edges[::every]])
    axes.set_xlim(0, len(edges) - 1)
    dress(axes, "nats per token by position", "position")


def draw_heads(axes: "Axes", title: str, last: Reading) -> None:
    points = head_points(last.layers)
    axes.scatter([point.place for point in points], [point.value for point in points], s=14, color=TRAIN, linewidths=0)
    dress(axes, f"{title} of each head, step {last.step:,}", "layer")
    number_layers(axes, len(last.layers))
    fit_height(axes, fitting_scale(last.values))


def draw_head_courses(axes: "Axes", title: str, readings: tuple[Reading, ...]) -> None:
    courses = head_courses(readings)
    for points in courses:
        plot(axes, points, color=TRAIN, alpha=0.6, linewidth=0.8)
    dress(axes, f"{title} of each head in training", "layer, and the tokens seen within each")
    number_layers(axes, max(len(one.layers) for one in readings))
    fit_height(axes, fitting_scale(value for points in courses for _, value in points))


def number_layers(axes: "Axes", layers: int) -> None:
    shown = range(0, layers, math.ceil(layers / LONGEST_AXIS))
    axes.set_xticks([i + 0.5 for i in shown], [str(i + 1) for i in shown])
    axes.set_xlim(0, layers)
    for edge in range(1, layers):
        axes.axvline(edge, color=GRID, linewidth=0.5, zorder=0)


def draw_course(axes: "Axes", title: str, readings: tuple[Reading, ...]) -> None:
    largest, mean = curve(readings, "largest"), curve(readings, "mean")
    plot(axes, largest, color=VALID, linewidth=1.8, label="largest")
    plot(axes, mean, color=TRAIN, linewidth=1.8, label="mean")
    dress(axes, f"{title} in training", "tokens seen")
    count_tokens(axes)
    fit_height(axes, fitting_scale(value for _, value in (*largest, *mean)))
    axes.legend(frameon=False, fontsize=11, labelcolor=INK)


def fit_height(axes: "Axes", scale: Scale | LogScale) -> None:
    axes.set_yscale(scale.kind)
    axes.minorticks_off()
    axes.set_yticks(scale.ticks, [scale.label(tick) for tick in scale.ticks])
    axes.set_ylim(scale.low, scale.high)


def dress(axes: "Axes", title: str, x_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=INK, parse_math=False)
    axes.set_xlabel(x_label, fontsize=11, color=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=11, labelcolor=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
