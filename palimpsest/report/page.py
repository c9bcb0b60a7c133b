"""The one-file page of a run: no network, no scripts, nothing but what the run folder holds."""

from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..files import write_atomically
from .chart import Series, chart, head_chart, head_course_chart, legend, values
from .curves import Points, Scale, curve, fitting_scale, head_courses, head_points, smooth
from .figures import draw_curves
from .instruments import instrument_figures, instrument_table
from .markup import Markup, element, join
from .run_folder import Measurement, Reading, RunRecord, finite, read_run
from .sentences import duration, number, outline, plain, quantity, reading, sentence, short, spell

NOTHING = Markup("")
SCORES = ("nats_per_token", "bits_per_character", "bits_per_byte", "perplexity")
SUMS = ("tokens", "nats", "bits_per_token")  # what other scores were made from, or say as well
COURSES = {
    "gradient_norm": "gradient norm",
    "rate": "learning rate, of its peak",
    "tokens_per_second": "tokens per second",
}
# The policy holds the page to its word, whatever a sample may contain.
HEAD = """<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
"""


def write_report(folder: Path) -> Path:
    """Writes report.html and curves.png into a run folder and returns the path of the page."""
    record = read_run(folder)
    # whole or not at all: somebody may be looking at the page of a run under way
    write_atomically(folder / "report.html", page(record))
    write_atomically(folder / "curves.png", draw_curves(record))  # last: without matplotlib there is still a page
    return folder / "report.html"


def page(record: RunRecord) -> str:
    style = Markup(Path(__file__).with_name("style.css").read_text("utf-8"))
    head = element("head", Markup(HEAD), element("title", f"{record.name} · palimpsest"), element("style", style))
    sections = (
        header(record),
        loss_section(record),
        position_section(record),
        *(gauge_section(spell(name), readings) for name, readings in record.gauges.items()),
        instrument_section(record),
        sample_section(record),
        training_section(record),
        section("Recipe", outline(record.recipe), class_="recipe"),
        section("Environment", table_of(record.environment)) if record.environment else NOTHING,
    )
    body = element("body", element("main", *(join(part, "\n") for part in sections if part)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


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
    series = [
        Series("training", "raw", raw),
        Series("smoothed", "train", smooth(raw)),
        Series("validation", "valid", valid, dots=True),
    ]
    drawn = chart("Nats per token against tokens seen", "nats per token", series, Scale.around(values(series), ticks=8))
    caption = element("figcaption", "nats per token against tokens seen ", legend(series))
    return section("Loss", element("figure", caption, drawn), validation_table(record.valid))


def validation_table(measurements: tuple[Measurement, ...]) -> Markup:
    if not measurements:
        return NOTHING
    rows = [(f"{one.step:,}", f"{one.tokens:,}", number(one.nats, digits=4)) for one in measurements]
    shown = table(("step", "tokens seen", "nats per token"), rows)
    return element("details", element("summary", "Validation in numbers"), shown)


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
    summary = element("summary", f"{title} in numbers")
    return section(
        title,
        head_figure(name, readings[-1]),
        head_course_figure(name, readings),
        course_figure(name, readings),
        element("details", summary, layer_table(readings[-1].layers)),
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


def layer_table(layers: list[list[float]]) -> Markup:
    rows = [(str(i), *layer_cells(finite(layer))) for i, layer in enumerate(layers, start=1)]
    return table(("layer", "least", "mean", "largest"), rows)


def layer_cells(heads: list[float]) -> tuple[str, ...]:
    return tuple(reading(of(heads)) for of in (min, fmean, max)) if heads else ("–",) * 3


def instrument_section(record: RunRecord) -> Markup:
    if not record.instruments:
        return NOTHING
    numbers = element("details", element("summary", "Memory in numbers"), table(*instrument_table(record.instruments)))
    return section("Memory", *instrument_figures(record.instruments), numbers, class_="memory")


def sample_section(record: RunRecord) -> Markup:
    if not (record.sample or "").strip():
        return NOTHING
    return section("Sample", element("pre", record.sample or "", tabindex=0))


def training_section(record: RunRecord) -> Markup:
    curves = {label: curve(record.train, field) for field, label in COURSES.items()}
    figures = [small_figure(label, points) for label, points in curves.items() if points]
    return section("Training", element("div", *figures, class_="small")) if figures else NOTHING


def small_figure(label: str, points: Points) -> Markup:
    series = [Series(label, "train", points)]
    drawn = chart(f"{label} against tokens seen", label, series, Scale.around([0.0, *values(series)], ticks=4))
    return element("figure", element("figcaption", label), drawn)


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Markup:
    head = element("thead", element("tr", *(element("th", heading, scope="col") for heading in headings)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    return element("table", head, body)


def table_of(values: dict[str, Any]) -> Markup:
    rows = [element("div", element("dt", spell(name)), element("dd", plain(value))) for name, value in values.items()]
    return element("dl", *rows, class_="facts")
