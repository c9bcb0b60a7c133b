"""The page that shows several runs together."""

from collections.abc import Callable
from pathlib import Path

from ..errors import UserError
from ..files import write_atomically
from .chart import Series, values
from .comparison import COSTS, Compared, Comparison, Difference, said
from .curves import TOKENS, Axis, Scale, curve, smooth
from .document import document, is_ours, pointer_script
from .markup import Markup, element, join
from .page import NOTHING, WHEN, figures, has_sample, in_numbers, sample, scrolling, section, switch, table, told, when
from .run_folder import RunRecord
from .sentences import number, sentence, spell

KIND = "comparison"
COLOURS, DASHES = 6, 3  # that the style knows


def write_comparison(comparison: Comparison, path: Path) -> Path:
    """Only over a page that was written here before."""
    if path.exists() and not (path.is_file() and is_ours(path, KIND)):
        raise UserError(f"{path} is there already and is no comparison of ours: choose another name with --output")
    if not path.parent.is_dir():
        raise UserError(f"the page cannot be written to {path}: there is no folder {path.parent}")
    write_atomically(path, page(comparison))
    return path


def page(comparison: Comparison) -> str:
    sections = (
        header(comparison),
        score_section(comparison),
        curve_section(comparison),
        difference_section("Recipes: only what differs", comparison, comparison.recipe),
        sample_section(comparison),
        difference_section("Environments: only what differs", comparison, comparison.environment),
    )
    return document(KIND, f"{len(comparison.runs)} runs", *sections, script=pointer_script())


def header(comparison: Comparison) -> Markup:
    kind = element("p", "palimpsest compare", class_="kind")
    items = [
        element("li", element("span", run.letter, class_=look(i)), " ", run.label, " ", folder_of(run))
        for i, run in enumerate(comparison.runs)
    ]
    return element("header", kind, element("h1", f"{len(items)} runs"), element("ul", *items, class_="runs"))


def folder_of(run: Compared) -> Markup:
    return element("code", str(run.folder)) if str(run.folder) != run.label else NOTHING


def look(index: int) -> str:
    """A colour that every eye tells from the others, and a dash once they are used up."""
    return f"run-{index % COLOURS + 1} dash-{index // COLOURS % DASHES + 1}"


def score_section(comparison: Comparison) -> Markup:
    names = comparison.score_names
    headings = ("run", *map(spell, names), *(heading for heading, _ in COSTS.values()))
    rows = [
        (
            naming(run, i),
            *(score_cell(comparison, run, name) for name in names),
            *(told(run.numbers[name], spelt) for name, (_, spelt) in COSTS.items()),
        )
        for i, run in enumerate(comparison.runs)
    ]
    note = element("p", notes(comparison), class_="note")
    return section("Scores", scrolling(table(headings, rows)), note, class_="scores")


def naming(run: Compared, index: int) -> Markup:
    return join(element("span", run.letter, class_=look(index)), " ", run.label)


def score_cell(comparison: Comparison, run: Compared, name: str) -> str:
    shown = told(run.scores.get(name), lambda value: number(value, digits=4))
    return element("strong", shown, title="the best") if comparison.best(name) is run else shown


def notes(comparison: Comparison) -> str:
    """What must be known to read the scores."""
    evaluated = [run for run in comparison.runs if run.record.evaluation]
    pending = [run.letter for run in comparison.runs if not run.record.evaluation]
    unlike = [spell(name) for name in comparison.score_names if not comparison.comparable(name)]
    sentences = [
        "Bold: the best." if any(map(comparison.best, comparison.score_names)) else "",
        f"Not evaluated yet: {', '.join(pending)}." if pending else "",
        f"Come by in different ways, so that none is called the best: {', '.join(unlike)}." if unlike else "",
        protocol(evaluated[0].record) if evaluated and not unlike else "",
    ]
    return " ".join(filter(None, sentences))


def protocol(record: RunRecord) -> str:
    score = record.evaluation or {}
    return f"Scored on {score['split']} by {sentence(score['protocol'])}." if {"split", "protocol"} <= {*score} else ""


def curve_section(comparison: Comparison) -> Markup:
    measured = [one for run in comparison.runs for one in (*run.record.train, *run.record.valid)]
    drawn = [
        curves("validation, nats per token", comparison, valid_series),
        curves("training, smoothed, nats per token", comparison, train_series),
    ]
    if not any(drawn):
        return NOTHING
    return section("Loss", switch(measured), *drawn, validation_table(comparison), class_="curves")


def valid_series(run: Compared, style: str, axis: Axis) -> Series:
    return Series(full_name(run), style, curve(run.record.valid, against=axis.field), dots=True, mark=run.letter)


def train_series(run: Compared, style: str, axis: Axis) -> Series:
    return Series(full_name(run), style, smooth(curve(run.record.train, against=axis.field)), mark=run.letter)


def full_name(run: Compared) -> str:
    return f"{run.letter} {run.label}"


def curves(what: str, comparison: Comparison, series: Callable[[Compared, str, Axis], Series]) -> Markup:
    def course(axis: Axis) -> list[Series]:
        return [series(run, look(i), axis) for i, run in enumerate(comparison.runs)]

    found = values(course(TOKENS))
    return figures(what, course, Scale.around(found, ticks=8), style="chart lettered") if found else NOTHING


def validation_table(comparison: Comparison) -> Markup:
    rows = [(run.letter, *when(one), number(one.nats, digits=4)) for run in comparison.runs for one in run.record.valid]
    return in_numbers("Validation in numbers", ("run", *WHEN, "nats per token"), rows) if rows else NOTHING


def difference_section(title: str, comparison: Comparison, rows: list[Difference]) -> Markup:
    if not rows:
        return section(title, element("p", "Nothing.", class_="note"))
    main = [row for row in rows if row.disputed] or rows
    rest = [row for row in rows if row not in main]
    shown = scrolling(difference_table(comparison, main))
    summary = element("summary", f"{len(rest)} more that only some of them have")
    more = element("details", summary, scrolling(difference_table(comparison, rest))) if rest else NOTHING
    return section(title, shown, more, class_="differences")


def difference_table(comparison: Comparison, rows: list[Difference]) -> Markup:
    headings = ("", *(naming(run, i) for i, run in enumerate(comparison.runs)))
    cells = [(path_of(row.path), *(element("code", said(row, i)) for i in range(len(comparison.runs)))) for row in rows]
    return table(headings, cells)


def path_of(path: str) -> Markup:
    """May be broken after a dot."""
    *parents, name = path.split(".")
    return element("code", *(join(parent, ".", element("wbr")) for parent in parents), element("b", name))


def sample_section(comparison: Comparison) -> Markup:
    samples = [
        element("figure", element("figcaption", element("span", naming(run, i))), sample(run.record))
        for i, run in enumerate(comparison.runs)
        if has_sample(run.record)
    ]
    if not samples:
        return NOTHING
    shown = element("div", *samples, class_="samples")
    return section("Samples", element("details", element("summary", "What each of them writes"), shown))
