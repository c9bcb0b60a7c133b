"""The pages as people meet them: opened in a browser, with and without scripts, on a desk, a telephone and paper."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from written_runs import ENVIRONMENT, EVALUATION, MIXER, RECIPE, TRAIN, VALID, result, write_json, write_run

from palimpsest.cli.overrides import override
from palimpsest.cli.recipes import find_recipe
from palimpsest.report import compare_runs, write_comparison
from palimpsest.report.page import page
from palimpsest.report.retrieval import write_retrieval
from palimpsest.report.run_folder import read_run

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import screenshots

REASON = "needs playwright and a browser: pip install playwright, and chromium on the path or in PALIMPSEST_BROWSER"
PHONE = {"width": 360, "height": 740}
SHEET = {"width": 680, "height": 1009}  # what margins of 15 mm leave of A4, at 96 dots per inch
SUM = {**MIXER, "rule": {"part": "Sum"}}
BLOCK = {**RECIPE["model"]["block"], "mixer": SUM}
PAGES = ("report", "comparison")
EVERY_PAGE = (*PAGES, "six runs", "twelve runs", "retrieval")
MEMORIES = ("EluPlusOne SumToOne Delta Plain Identity", "Rotary Unlimited Unscaled RMSNorm Scaled", "dpfp1 sum")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason=REASON)
    if screenshots.find_browser() is None:
        pytest.skip(REASON)
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=screenshots.find_browser(), args=screenshots.FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = [
        write_run(folder / "a-run-with-quite-a-long-name-for-a-telephone"),
        write_run(folder / "sum", {**RECIPE, "model": {**RECIPE["model"], "block": BLOCK}}, above=0.25, steps=60),
    ]
    report = folder / "report.html"
    report.write_text(page(read_run(runs[0])), "utf-8")
    return {
        "report": report,
        "comparison": write_comparison(compare_runs(runs), folder / "compare.html"),
        "six runs": write_comparison(compare_runs(unlike_runs(folder / "six", 6)), folder / "six.html"),
        "twelve runs": write_comparison(compare_runs(unlike_runs(folder / "twelve", 12)), folder / "twelve.html"),
        "retrieval": measured_memories(folder / "retrieval"),
    }


def unlike_runs(folder: Path, count: int) -> list[Path]:
    """In much, and at length."""
    runs = []
    for i in range(count):
        corpus = {"part": "TextFile", "path": f"/home/somebody/projects/language-models/corpora/number-{i}/text.txt"}
        model = {**RECIPE["model"], "width": 128 + i, "block": BLOCK if i % 2 else RECIPE["model"]["block"]}
        runs.append(write_run(folder / f"{'unbroken' * 8}{i}", {**RECIPE, "data": {"corpus": corpus}, "model": model}))
        machine = {"hostname": f"node-{i}.cluster.example.org", "commit": f"{i:x}" * 40}
        write_json(runs[-1] / "environment.json", {**ENVIRONMENT, **machine})
        others = {f"score_{number}": 0.123456 for number in range(count)}
        write_json(runs[-1] / "evaluation.json", {**EVALUATION, **others})
    return runs


def measured_memories(folder: Path) -> Path:
    folder.mkdir()
    lines = [result(label, keys, 0.1, replace=replace) for label in MEMORIES for keys in (20, 40) for replace in (0, 1)]
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_retrieval(folder)
    return folder / "report.html"


@pytest.fixture
def visit(browser, pages):
    """Opens a page; whatever it complains of or asks the network for fails the test at its end."""
    contexts, complaints = [], []

    def open_page(name, **how):
        contexts.append(browser.new_context(**how))
        contexts[-1].set_default_timeout(10_000)
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: complaints.append(request.url) if not is_local(request.url) else None)
        tab.goto(pages[name].as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def is_local(address: str) -> bool:
    return address.startswith(("file:", "data:"))


def shown_charts(tab):
    return tab.locator("svg.chart:visible")


def hover(tab, chart, share: float) -> str:
    """What is said with the pointer this far along a chart."""
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    return said(tab)


def said(tab) -> str:
    return " ".join(tab.locator(".tip:visible").inner_text().split())


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_complaints_or_requests(visit, name):
    tab = visit(name)
    assert tab.locator("h1").is_visible()
    assert shown_charts(tab).count() >= 2


def test_a_script_in_a_sample_is_read_and_not_run(visit):
    assert "<script>alert('world')</script>" in visit("report").locator("pre").inner_text()


@pytest.mark.parametrize("step", [1, 20, 57, 100])
def test_hovering_says_the_values_of_the_data(visit, step):
    tab = visit("report")
    shown = hover(tab, shown_charts(tab).first, step / 100)
    assert shown.startswith(f"{4096 * step:,} tokens")
    assert f"training {TRAIN[step - 1]['nats']:.4f}" in shown
    if step % 20 == 0:
        assert shown.endswith(f"validation {VALID[step // 20 - 1]['nats']:.4f}")


def test_a_value_from_elsewhere_says_where_it_is_from(visit):
    tab = visit("report")
    assert hover(tab, shown_charts(tab).first, 0.57).endswith(f"validation {VALID[2]['nats']:.4f} at 245,760 tokens")
    assert "validation" not in hover(tab, shown_charts(tab).first, 0.05), "there was none yet"


def test_hovering_over_a_comparison_says_every_run_that_came_so_far(visit):
    tab = visit("comparison")
    chart = shown_charts(tab).first
    both, one = hover(tab, chart, 0.6), hover(tab, chart, 1.0)
    assert f"{VALID[2]['nats']:.4f}" in both
    assert f"B sum {VALID[2]['nats'] + 0.25:.4f}" in both
    assert f"{VALID[4]['nats']:.4f}" in one
    assert "B sum" not in one


def test_what_was_said_goes_with_the_pointer(visit):
    tab = visit("report")
    hover(tab, shown_charts(tab).first, 0.5)
    assert tab.locator(".cross").count() == 1
    tab.mouse.move(1, 1)
    assert tab.locator(".tip:visible").count() == 0
    assert tab.locator(".cross").count() == 0


def test_the_arrow_keys_do_what_a_pointer_does(visit):
    tab = visit("report")
    tab.locator("#by-tokens").focus()
    tab.keyboard.press("Tab")
    assert said(tab).startswith("409,600 tokens"), "the last of them first"
    tab.keyboard.press("ArrowLeft")
    assert f"training {TRAIN[98]['nats']:.4f}" in said(tab)
    tab.keyboard.press("Home")
    assert f"training {TRAIN[0]['nats']:.4f}" in said(tab)
    tab.keyboard.press("Escape")
    assert tab.locator(".tip:visible").count() == 0


def test_a_finger_does_what_a_pointer_does(visit):
    tab = visit("report", viewport=PHONE, has_touch=True, is_mobile=True)
    chart = shown_charts(tab).first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.touchscreen.tap(box["x"] + 0.2 * box["width"], box["y"] + 0.5 * box["height"])
    assert f"training {TRAIN[19]['nats']:.4f}" in said(tab)


def test_the_lines_lie_where_their_values_are(visit):
    tab = visit("report")
    drawn = shown_charts(tab).first.locator("path.raw").get_attribute("d")
    places = [tuple(map(float, place.split())) for place in drawn.strip("M").split("L")]
    labels = [(float(text), height) for text, height in heights_of_labels(shown_charts(tab).first)]
    (low, bottom), (high, top) = min(labels), max(labels)
    box = shown_charts(tab).first.bounding_box()
    for (across, down), line in zip(places, TRAIN, strict=True):
        assert across == pytest.approx(1000 * line["tokens"] / TRAIN[-1]["tokens"], abs=0.06)
        height = box["y"] + box["height"] * down / 1000
        assert low + (high - low) * (height - bottom) / (top - bottom) == pytest.approx(line["nats"], abs=0.01)


def heights_of_labels(chart) -> list:
    """The numbers beside a chart, and how high on the page each of them stands."""
    return chart.locator("text[text-anchor=end]").evaluate_all(
        """(labels) => labels.map((label) => {
            const box = label.getBoundingClientRect();
            return [label.textContent, box.top + box.height / 2];
        })"""
    )


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scripts", [True, False])
def test_the_switch_shows_time_instead_of_tokens(visit, name, scripts):
    tab = visit(name, java_script_enabled=scripts)
    before = shown_charts(tab).count()
    assert tab.locator("figure.seconds:visible").count() == 0
    tab.get_by_text("time in training", exact=True).click()
    assert tab.locator("figure.tokens:visible").count() == 0
    assert shown_charts(tab).count() == before
    if scripts:
        assert hover(tab, shown_charts(tab).first, 0.6).startswith("30 s")


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_there_are_tables(visit, name):
    tab = visit(name, java_script_enabled=False)
    tab.get_by_text("Validation in numbers").click()
    assert tab.get_by_role("cell", name=f"{VALID[2]['nats']:.4f}").first.is_visible()
    assert shown_charts(tab).first.is_visible()


@pytest.mark.parametrize("name", EVERY_PAGE)
@pytest.mark.parametrize("width", [320, 400, 768, 1200])
def test_a_page_never_scrolls_sideways_and_its_pictures_can_be_seen_whole(visit, name, width):
    tab = visit(name, viewport={"width": width, "height": 740})
    tab.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for picture in tab.locator("img").all():
        box = picture.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width


def test_pictures_say_what_they_are_of(visit):
    said = [picture.get_attribute("alt") for picture in visit("retrieval").locator("img").all()]
    assert said == ["how much it holds: loss against keys", "overwriting: loss against keys"]


@pytest.mark.parametrize("name", PAGES)
def test_a_telephone_does_not_scroll_sideways_under_a_finger(visit, name):
    tab = visit(name, viewport=PHONE)
    tab.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    for share in (0.0, 0.45, 1.0):
        hover(tab, shown_charts(tab).first, share)
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    edges = tab.evaluate(
        "[...document.querySelectorAll('svg.chart, .tip')].map((x) => x.getBoundingClientRect().right)"
    )
    assert max(edges) <= PHONE["width"]


@pytest.mark.parametrize("name", PAGES)
def test_the_dark_is_dark_and_paper_is_white(visit, name):
    tab = visit(name, color_scheme="dark")
    line = tab.locator("path[data-y]:visible").first
    dark, bright_line = paper(tab), colour(line)
    tab.emulate_media(color_scheme="light")
    assert sum(dark) < 120 < 700 < sum(paper(tab))
    assert colour(line) != bright_line
    tab.emulate_media(color_scheme="dark", media="print")
    assert paper(tab) == [255, 255, 255]
    assert sum(rgb(tab.locator("h1").evaluate("(one) => getComputedStyle(one).color"))) == 0


def paper(tab) -> list[int]:
    return rgb(tab.evaluate("getComputedStyle(document.body).backgroundColor"))


def colour(line) -> str:
    return line.evaluate("(one) => getComputedStyle(one).stroke")


def rgb(text: str) -> list[int]:
    return [int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


@pytest.mark.parametrize("name", PAGES)
def test_paper_has_no_buttons_and_no_crosshair(visit, name):
    tab = visit(name)
    hover(tab, shown_charts(tab).first, 0.5)
    tab.emulate_media(media="print")
    assert shown_charts(tab).first.is_visible()
    assert tab.locator(".switch:visible, .tip:visible, .cross:visible").count() == 0
    inside = tab.locator("figure:visible").first.evaluate("(one) => getComputedStyle(one).breakInside")
    assert inside == "avoid"
    assert tab.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("name", EVERY_PAGE)
@pytest.mark.parametrize("scripts", [True, False])
def test_paper_has_every_cell_of_every_table_within_its_edges(visit, name, scripts):
    tab = visit(name, viewport=SHEET, java_script_enabled=scripts)
    tab.emulate_media(media="print")
    assert tab.locator("td").count() > 0
    assert tab.evaluate("document.documentElement.scrollWidth") == SHEET["width"]
    assert tab.evaluate("[...document.querySelectorAll('td')].filter((cell) => !cell.checkVisibility()).length") == 0
    assert tab.evaluate("[...document.querySelectorAll('td')].filter((x) => x.scrollWidth > x.clientWidth).length") == 0


def test_paper_shows_the_dot_that_stands_for_validation(visit):
    tab = visit("report")
    tab.emulate_media(media="print")
    legend = tab.locator(".legend .valid:visible").first
    assert legend.evaluate("(one) => getComputedStyle(one, '::before').printColorAdjust") == "exact"


def printed(tab, path: Path) -> str:
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext: install poppler-utils")
    tab.pdf(path=path, format="A4")
    text = subprocess.run(["pdftotext", path, "-"], capture_output=True, check=True, encoding="utf-8").stdout
    return " ".join(text.split())


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scripts", [True, False])
def test_what_is_printed_has_the_numbers_of_the_curves(visit, name, scripts, tmp_path):
    words = printed(visit(name, java_script_enabled=scripts), tmp_path / "page.pdf").split()
    for one in VALID:
        assert {f"{one['tokens']:,}", f"{one['nats']:.4f}"} <= {*words}


def test_of_more_runs_than_a_sheet_has_columns_for_each_value_is_printed_after_its_letter(visit, tmp_path):
    text = printed(visit("twelve runs"), tmp_path / "page.pdf")
    assert all(f"{letter} {128 + i}" in text for i, letter in enumerate("ABCDEFGHIJKL"))


def test_the_pictures_in_the_docs_are_of_three_different_recipes():
    made = {override(find_recipe(name), flags, "palimpsest train") for name, *flags in screenshots.RUNS.values()}
    assert len(made) == 3
