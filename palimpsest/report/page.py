"""The one-file page of a run: nothing but what the run folder holds."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..files import write_atomically
from .chart import Series, chart, head_chart, head_course_chart, legend, values
from .curves import (
    AXES,
    SECONDS,
    TOKENS,
    Axis,
    LogScale,
    Scale,
    curve,
    fitting_scale,
    head_courses,
    head_points,
    smooth,
)
from .document import document, pointer_script
from .figures import draw_curves
from .instruments import instrument_figures, instrument_table
from .markup import Markup, element, join
from .run_folder import Measurement, Reading, RunRecord, finite, read_run
from .sentences import clock, duration, number, outline, plain, quantity, reading, sentence, short, spell

NOTHING = Markup("")
SCORES = ("nats_per_token", "bits_per_character", "bits_per_byte", "perplexity")
# what other scores were made from, or say as well
SUMS = ("sentences", "tokens", "characters", "bytes", "nats", "bits_per_token")
COURSES = {
    "tokens_per_second": "tokens per second",
    "rate": "learning rate, of its peak",
    "gradient_norm": "gradient norm",
}
WHEN = ("step", "tokens seen", "time")
LONGEST_TABLE = 60  # rows


def write_report(folder: Path) -> Path:
    """Writes report.html and curves.png into a run folder and returns the path of the page."""
    record = read_run(folder)
    # whole or not at all: somebody may be looking at the page of a run under way
    write_atomically(folder / "report.html", page(record))
    write_atomically(folder / "curves.png", draw_curves(record))  # last: without matplotlib there is still a page
    return folder / "report.html"


def page(record: RunRecord) -> str:
    sections = (
        header(record),
        loss_section(record),
        bleu_section(record),
        position_section(record),
        *(gauge_section(spell(name), readings) for name, readings in record.gauges.items()),
        instrument_section(record),
        sample_section(record),
        training_section(record),
        section("Recipe", outline(record.recipe), class_="recipe"),
        section("Environment", table_of(record.environment)) if record.environment else NOTHING,
    )
    return document("run", record.name, *sections, script=pointer_script())


def section(title: str, *content: str, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), *content, class_=class_)


def header(record: RunRecord) -> Markup:
    cards = [*score_cards(record), *run_cards(record)]
    numbers = element("dl", *cards, class_="numbers") if cards else NOTHING
    kind = element("p", "palimpsest run", class_="kind")
    return element("header", kind, element("h1", record.name), numbers, element("p", come_by(record), class_="note"))


def score_cards(record: RunRecord) -> list[Markup]:
    if record.evaluation:
        return [card(spell(name), value, number(value)) for name, value in scores(record.evaluation).items()]
    if record.valid:
        return [latest_card("validation", record.valid[-1])]
    return [latest_card("training", record.train[-1])] if record.train else []


def scores(evaluation: dict[str, Any]) -> dict[str, float]:
    """The scores of language models first, then whatever number another task adds."""
    names = [name for name in dict.fromkeys((*SCORES, *evaluation)) if name not in SUMS]
    return {name: evaluation[name] for name in names if isinstance(evaluation.get(name), int | float)}


def latest_card(kind: str, measurement: Measurement) -> Markup:
    return card(f"nats per token, {kind} at step {measurement.step:,}", measurement.nats, number(measurement.nats))


def run_cards(record: RunRecord) -> list[Markup]:
    parameters, latest = record.environment.get("parameters"), record.latest
    speeds = [speed for _, speed in curve(record.train, "tokens_per_second")]
    cards = [card("parameters", parameters, short(parameters))] if isinstance(parameters, int) else []
    if latest:
        cards.append(card("tokens seen", latest.tokens, short(latest.tokens)))
    if latest and latest.seconds is not None:
        cards.append(card("time", latest.seconds, duration(latest.seconds)))
    if speeds:
        cards.append(card("tokens/s, median", median(speeds), short(median(speeds))))
    return cards


def card(label: str, value: float, text: str) -> Markup:
    return element("div", element("dt", label), element("dd", quantity(value, text)))


def come_by(record: RunRecord) -> str:
    """How the scores were come by: a number without its protocol says little."""
    if not record.evaluation:
        return "Not evaluated yet." if record.latest else "Nothing has been measured yet."
    score = record.evaluation
    said = [
        f"Scored on {score['split']}" if "split" in score else "Scored",
        sentence(score["protocol"]) if "protocol" in score else "",
        f"checkpoint {score['checkpoint']}" if "checkpoint" in score else "",
        f"{plain(score['tokens'])} tokens" if "tokens" in score else "",
    ]
    return " · ".join(filter(None, said))


def loss_section(record: RunRecord) -> Markup:
    raw, valid = curve(record.train), curve(record.valid)
    if not raw and not valid:
        return NOTHING
    scale = Scale.around([value for _, value in (*raw, *valid)], ticks=8)
    drawn = figures("nats per token", lambda axis: loss_series(record, axis), scale)
    return section("Loss", switch([*record.train, *record.valid]), drawn, validation_table(record.valid))


def bleu_section(record: RunRecord) -> Markup:
    """Of runs that translate: how much translations became like their references."""
    points = curve(record.valid, "bleu")
    if not points:
        return NOTHING
    scale = Scale.around([0.0, *(value for _, value in points)], ticks=8)
    return section("BLEU", figures("BLEU", lambda axis: bleu_series(record, axis), scale))


def bleu_series(record: RunRecord, axis: Axis) -> list[Series]:
    return [Series("validation", "valid", curve(record.valid, "bleu", axis.field), dots=True)]


def loss_series(record: RunRecord, axis: Axis) -> list[Series]:
    raw, valid = curve(record.train, against=axis.field), curve(record.valid, against=axis.field)
    # a short course is as smooth as it was, and is named once
    line, mean = ("", "training") if smooth(raw) == raw else ("training", "smoothed")
    return [
        Series(line, "raw", raw),
        Series(mean, "train", smooth(raw)),
        Series("validation", "valid", valid, dots=True),
    ]


def switch(measurements: Iterable[Measurement]) -> Markup:
    """Shows every curve against tokens or against time; a matter of style, for which no script is needed."""
    if not curve(measurements, against=SECONDS.field):
        return NOTHING
    choices = [element("label", button(axis), axis.name) for axis in AXES]
    return element("fieldset", element("legend", "Curves against"), *choices, class_="switch")


def button(axis: Axis) -> Markup:
    checked = "" if axis is TOKENS else None
    return element("input", type="radio", name="against", id=f"by-{axis.field}", checked=checked)


def figures(
    what: str, course: Callable[[Axis], list[Series]], scale: Scale | LogScale, ticks: int = 5, style: str = "chart"
) -> Markup:
    """The same curves against tokens and, where it was measured, against time; the switch shows one of them."""
    drawn = {axis: series for axis in AXES if values(series := course(axis))}
    return join(
        *(
            element(
                "figure",
                element("figcaption", *caption(what, axis, series)),
                chart(f"{what} against {axis.name}", what, series, scale, axis, ticks, style),
                class_=axis.field if len(drawn) > 1 else None,
            )
            for axis, series in drawn.items()
        )
    )


def caption(what: str, axis: Axis, series: list[Series]) -> tuple[str, ...]:
    """A small figure of one line is named, and what it is drawn against can be seen."""
    return (what,) if len(series) == 1 else (f"{what} against {axis.name} ", legend(series))


def validation_table(measurements: tuple[Measurement, ...]) -> Markup:
    if not measurements:
        return NOTHING
    translated = any(one.bleu is not None for one in measurements)
    headings = (*WHEN, "nats per token", *(["BLEU"] if translated else []))
    rows = [(*when(one), number(one.nats, digits=4), told(one.bleu, number)) for one in measurements]
    return in_numbers("Validation in numbers", headings, [row[: len(headings)] for row in rows])


def when(measured: Measurement) -> tuple[str, ...]:
    return f"{measured.step:,}", f"{measured.tokens:,}", told(measured.seconds, clock)


def told(value: float | None, spelt: Callable[[float], str]) -> str:
    return "–" if value is None else spelt(value)


def in_numbers(summary: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table that is there for those who want it: it may be wide, and it scrolls alone."""
    return element("details", element("summary", summary), scrolling(table(headings, rows)))


def scrolling(content: Markup) -> Markup:
    return element("div", content, class_="wide", tabindex=0)


def position_section(record: RunRecord) -> Markup:
    if not record.positions:
        return NOTHING
    highest = max(one["nats_per_token"] for one in record.positions) or 1.0
    rows = [
        (
            span(one["from"], one["to"]),
            plain(one["tokens"]),
            number(one["nats_per_token"]),
            bar(one["nats_per_token"] / highest),
        )
        for one in record.positions
    ]
    shown = table(("position", "tokens scored", "nats per token", ""), rows)
    return section("Loss by position", shown, class_="positions")


def span(first: int, end: int) -> str:
    return f"{first:,}" if end == first + 1 else f"{first:,}–{end - 1:,}"


def bar(share: float) -> Markup:
    return element("div", class_="bar", style=f"width:{100 * share:.1f}%")


def gauge_section(name: str, readings: tuple[Reading, ...]) -> Markup:
    """Where the heads stand now, and how they came there."""
    title = name[:1].upper() + name[1:]
    return section(
        title,
        head_figure(name, readings[-1]),
        head_course_figure(name, readings),
        course_figure(name, readings),
        in_numbers(f"{title} in numbers", ("layer", "least", "mean", "largest"), layer_rows(readings[-1].layers)),
        class_="gauge",
    )


def head_figure(name: str, last: Reading) -> Markup:
    label = f"{name} of each head, by layer, at step {last.step:,}"
    drawn = head_chart(label, head_points(last.layers), len(last.layers), fitting_scale(last.values))
    return element("figure", element("figcaption", label), drawn)


def head_course_figure(name: str, readings: tuple[Reading, ...]) -> Markup:
    courses = head_courses(readings)
    if not courses:
        return NOTHING
    label = f"{name} of each head in training, by layer; tokens seen run from left to right within each"
    scale = fitting_scale(value for points in courses for _, value in points)
    drawn = head_course_chart(label, courses, max(len(one.layers) for one in readings), scale)
    return element("figure", element("figcaption", label), drawn)


def course_figure(name: str, readings: tuple[Reading, ...]) -> Markup:
    series = [
        Series("largest", "largest", curve(readings, "largest")),
        Series("mean", "train", curve(readings, "mean")),
    ]
    if not values(series):
        return NOTHING
    label = f"{name} against tokens seen"
    drawn = chart(label, name, series, fitting_scale(values(series)))
    return element("figure", element("figcaption", f"{label} ", legend(series)), drawn)


def layer_rows(layers: list[list[float]]) -> list[tuple[str, ...]]:
    return [(str(i), *layer_cells(finite(layer))) for i, layer in enumerate(layers, start=1)]


def layer_cells(heads: list[float]) -> tuple[str, ...]:
    return tuple(reading(of(heads)) for of in (min, fmean, max)) if heads else ("–",) * 3


def instrument_section(record: RunRecord) -> Markup:
    if not record.instruments:
        return NOTHING
    numbers = in_numbers("Memory in numbers", *instrument_table(record.instruments))
    return section("Memory", *instrument_figures(record.instruments), numbers, class_="memory")


def sample_section(record: RunRecord) -> Markup:
    return section("Sample", sample(record)) if has_sample(record) else NOTHING


def has_sample(record: RunRecord) -> bool:
    return bool((record.sample or "").strip())


def sample(record: RunRecord) -> Markup:
    return element("pre", record.sample or "", tabindex=0)


def training_section(record: RunRecord) -> Markup:
    drawn = [small_figures(record, field, label) for field, label in COURSES.items() if curve(record.train, field)]
    if not drawn:
        return NOTHING
    return section("Training", element("div", *drawn, class_="small"), training_table(record.train))


def small_figures(record: RunRecord, field: str, label: str) -> Markup:
    scale = Scale.around([0.0, *(value for _, value in curve(record.train, field))], ticks=4)
    return figures(label, lambda axis: [Series(label, "train", curve(record.train, field, axis.field))], scale, ticks=3)


def training_table(measurements: tuple[Measurement, ...]) -> Markup:
    """Not more rows than anybody reads, and the last one always among them."""
    every = math.ceil(len(measurements) / LONGEST_TABLE)
    rows = [
        (*when(one), number(one.nats, digits=4), *(told(getattr(one, field), reading) for field in COURSES))
        for one in reversed(measurements[::-every])
    ]
    return in_numbers("Training in numbers", (*WHEN, "nats per token", *COURSES.values()), rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = element("thead", element("tr", *(element("th", heading, scope="col") for heading in headings)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    return element("table", head, body)


def table_of(values: dict[str, Any]) -> Markup:
    rows = [element("div", element("dt", spell(name)), element("dd", plain(value))) for name, value in values.items()]
    return element("dl", *rows, class_="facts")
