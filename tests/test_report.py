import itertools
import json
import math
import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from written_runs import MIXER, RECIPE, SAMPLE, TRAIN, VALID, append, train_line, write_json, write_lines, write_run

from palimpsest.errors import UserError
from palimpsest.report import Reading, RunRecord, draw_curves, read_run, write_report
from palimpsest.report.chart import LETTER, apart
from palimpsest.report.curves import SECONDS, LogScale, Scale, fitting_scale, head_courses, head_points, smooth, thin
from palimpsest.report.page import page
from palimpsest.report.sentences import clock, duration, moment, reading, sentence, short

UNITS = (1, 60, 3600, 86400)  # in seconds
PNG = b"\x89PNG\r\n\x1a\n"
SPANS = [[32.0, 33.0], [40.0, 2048.0, 512.5], [64.0]]  # of the heads of three layers, at the end


@pytest.fixture
def begun(tmp_path):
    write_json(tmp_path / "recipe.json", RECIPE)
    return tmp_path


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path)


@pytest.fixture
def gauged(run):
    append(run, *(gauges(step, spans_at(step)) for step in range(20, 101, 20)))
    return run


def gauges(step: int, spans: object, **more: object) -> dict:
    return {"event": "gauges", "step": step, "span": spans, "span_mean": 0.0, "span_max": 0.0, **more}


def spans_at(step: int) -> list[list[float]]:
    return [[32 + (span - 32) * step / 100 for span in layer] for layer in SPANS]


class Reader(HTMLParser):
    """The text of a page and its elements; complains of tags that do not balance."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)

    def words(self) -> str:
        return " ".join(self.text).replace("\u202f", " ")

    def with_class(self, tag, name):
        return [attributes for found, attributes in self.found if found == tag and attributes.get("class") == name]


def read(folder) -> Reader:
    return Reader(write_report(folder).read_text("utf-8"))


def read_page(folder) -> Reader:
    """Without the figures, which take their time."""
    return Reader(page(read_run(folder)))


def test_the_page_of_a_whole_run_shows_its_numbers(run):
    reader = read_page(run)
    text = reader.words()
    scores = ["1.750", "2.525", "5.755", "825 k", "410 k", "50 s", "8.19 k", "111,539", "824,641", "2–255", "1.710"]
    words = ["tiny-shakespeare", "step-00000100", "Delta(beta=0.5)", "Segments(length=256)", "2.11.0"]
    assert [shown for shown in (*scores, *words) if shown not in text] == []
    exact = {attributes["value"] for tag, attributes in reader.found if tag == "data"}
    assert {"1.75", "5.7546", "2.5247", "824641", "409600", "50.0", "8192.0"} == exact


def test_what_is_absent_is_left_out(run):
    (run / "evaluation.json").unlink()
    text = read_page(run).words()
    assert "bits per byte" not in text
    assert "perplexity" not in text
    assert "Loss by position" not in text
    assert "nats per token, validation at step 100" in text


def test_every_training_value_is_a_point_of_the_curve(run):
    for path, across in zip(read_page(run).with_class("path", "raw"), ("tokens", "seconds"), strict=True):
        places = [tuple(map(float, place.split())) for place in path["d"].strip("M").split("L")]
        assert len(places) == len(TRAIN)
        for axis, field in enumerate((across, "nats")):
            slope = (places[-1][axis] - places[0][axis]) / (TRAIN[-1][field] - TRAIN[0][field])
            for place, line in zip(places, TRAIN, strict=True):
                assert place[axis] == pytest.approx(places[0][axis] + slope * (line[field] - TRAIN[0][field]), abs=0.2)


def test_every_place_of_a_line_has_its_words(run):
    against_tokens, against_time = read_page(run).with_class("path", "raw")
    assert against_tokens["data-name"] == "training"
    for path in (against_tokens, against_time):
        assert path["data-y"].split(";") == [f"{line['nats']:.4f}" for line in TRAIN]
    assert against_tokens["data-x"].split(";")[:2] == ["4,096 tokens", "8,192 tokens"]
    assert against_time["data-x"].split(";")[-1] == "50 s"


def test_a_course_too_short_to_be_smoothed_is_spoken_of_once(begun):
    write_lines(begun, TRAIN[:30])
    reader = read_page(begun)
    assert "smoothed" not in reader.text
    assert [tags["data-name"] for tag, tags in reader.found if "data-name" in tags][:2] == ["training", "training"]
    assert len(reader.with_class("path", "raw")) == 2, "against tokens, and against time"


def test_curves_are_drawn_against_tokens_and_against_time(run):
    reader = read_page(run)
    for axis in ("tokens", "seconds"):
        assert len(reader.with_class("figure", axis)) == 4, "loss, speed, learning rate, gradient norm"
    buttons = [attributes for tag, attributes in reader.found if tag == "input"]
    assert [(one["id"], "checked" in one) for one in buttons] == [("by-tokens", True), ("by-seconds", False)]


def test_without_a_clock_there_is_nothing_to_switch(begun):
    write_lines(begun, [{name: value for name, value in line.items() if name != "seconds"} for line in TRAIN])
    reader = read_page(begun)
    assert len(reader.with_class("path", "raw")) == 1
    assert not reader.with_class("fieldset", "switch")
    assert not reader.with_class("figure", "tokens"), "nothing may hide it"


def test_what_is_drawn_can_be_read_without_a_script(run):
    reader = read_page(run)
    assert {"Validation in numbers", "Training in numbers"} <= set(reader.text)
    start = reader.text.index("Training in numbers")
    assert {f"{line['nats']:.4f}" for line in TRAIN[1::2]} <= set(reader.text[start:])
    assert "0:50" not in reader.text
    assert "50 s" in reader.text


def test_a_long_table_is_thinned_from_the_end(begun):
    write_lines(begun, [train_line(step) for step in range(1, 1001)])
    text = read_page(begun).text
    rows = text[text.index("Training in numbers") :]
    assert {f"{step:,}" for step in (14, 983, 1000)} <= set(rows)
    assert not {"2", "999"} & set(rows)


def test_every_validation_value_is_a_dot_and_a_row(run):
    reader = read_page(run)
    assert len(reader.with_class("circle", "valid")) == 2 * len(VALID), "against tokens, and against time"
    assert {f"{line['nats']:.4f}" for line in VALID} <= set(reader.text)


def test_a_run_that_has_just_begun_still_gets_a_page(begun):
    text = read(begun).words()
    assert "Nothing has been measured yet." in text
    assert "DPFP(nu=3)" in text
    assert (begun / "curves.png").read_bytes().startswith(PNG)


def test_a_line_that_was_cut_off_is_passed_over(begun):
    whole, cut = json.dumps(TRAIN[0]), json.dumps(TRAIN[1])[:40]
    (begun / "metrics.jsonl").write_text(f"{whole}\n{cut}", "utf-8")
    (begun / "evaluation.json").write_text('{"nats": 1', "utf-8")
    assert [measured.step for measured in read_run(begun).train] == [1]
    assert "nats per token, training at step 1" in read(begun).words()


def test_steps_repeated_after_resuming_count_once(begun):
    write_lines(begun, [TRAIN[0], TRAIN[1], TRAIN[2], {**TRAIN[1], "nats": 9.0}])
    assert {measured.step: measured.nats == 9.0 for measured in read_run(begun).train} == {1: False, 2: True, 3: False}


def test_a_loss_that_is_not_a_number_does_not_spoil_the_curve(begun):
    write_lines(begun, [TRAIN[0], {**TRAIN[1], "nats": math.nan, "gradient_norm": math.inf}, TRAIN[2]])
    paths = read_page(begun).with_class("path", "raw")
    assert [path["d"].count("L") for path in paths] == [1, 1]
    assert not any("nan" in path["d"] for path in paths)


def test_every_head_is_a_dot_in_its_layer_and_every_layer_a_row(gauged):
    reader = read_page(gauged)
    dots = [float(dot["cx"].rstrip("%")) for dot in reader.with_class("circle", "head")]
    assert [int(place * 3 // 100) for place in dots] == [0, 0, 1, 1, 1, 2]
    assert len(set(dots)) == len(dots)
    said = [text for text in reader.text if text.startswith("layer ")]
    assert said[3] == "layer 2, head 2: 2,048"
    start = reader.text.index("least")
    assert reader.text[start + 3 :][:12] == [
        "1",
        "32",
        "32.5",
        "33",
        "2",
        "40",
        "866.8",
        "2,048",
        "3",
        "64",
        "64",
        "64",
    ]


def test_dots_are_as_high_as_their_values(gauged):
    heights = [float(dot["cy"].rstrip("%")) for dot in read_page(gauged).with_class("circle", "head")]
    logarithms = [math.log(span) for layer in SPANS for span in layer]
    slope = (heights[3] - heights[0]) / (logarithms[3] - logarithms[0])
    assert slope < 0
    assert heights == [pytest.approx(heights[0] + slope * (one - logarithms[0]), abs=0.02) for one in logarithms]


def test_every_head_is_a_line_through_its_readings_within_the_place_of_its_layer(gauged):
    paths = [path["d"].strip("M").split("L") for path in read_page(gauged).with_class("path", "course")]
    lines = [[tuple(map(float, place.split())) for place in places] for places in paths]
    assert [len(line) for line in lines] == [5] * 6
    assert [{int(x * 3 // 1000) for x, _ in line} for line in lines] == [{0}, {0}, {1}, {1}, {1}, {2}]
    assert all(x < later for line in lines for (x, _), (later, _) in itertools.pairwise(line)), "tokens seen"
    heights = [y for _, y in lines[3]]
    assert heights == sorted(heights, reverse=True), "its span grew"


def test_a_head_that_is_not_a_number_for_a_while_only_misses_those_points():
    readings = [Reading(step, 10 * step, [[1.0, value]]) for step, value in ((1, 2.0), (2, math.nan), (3, 4.0))]
    whole, broken = head_courses(readings)
    assert [value for _, value in whole] == [1.0, 1.0, 1.0]
    assert broken == [(whole[0][0], 2.0), (whole[2][0], 4.0)]


def test_the_mean_and_the_largest_of_a_gauge_are_drawn_against_tokens_seen(gauged):
    readings = read_run(gauged).gauges["span"]
    assert [one.tokens for one in readings] == [4096 * step for step in range(20, 101, 20)]
    assert readings[-1].mean == pytest.approx(2729.5 / 6)
    assert readings[-1].largest == 2048
    reader = read_page(gauged)
    (path,) = reader.with_class("path", "largest")
    assert path["d"].count("L") == len(readings) - 1
    assert len(reader.with_class("span", "largest")) == 1, "named in the legend"


def test_a_run_without_gauges_says_nothing_of_them(gauged):
    assert read(gauged).with_class("section", "gauge")
    tall = height(gauged / "curves.png")
    write_lines(gauged, [*TRAIN, *VALID, {"event": "gauges", "step": 100}])
    without = read(gauged)
    assert not without.with_class("section", "gauge")
    assert not without.with_class("circle", "head")
    assert 2 * tall == 5 * height(gauged / "curves.png"), "two panels of loss, and three of the gauge"


def height(png) -> int:
    return int.from_bytes(png.read_bytes()[20:24], "big")


def test_any_gauge_has_a_section_of_its_own_name(run):
    append(run, gauges(100, SPANS, gate_opening=[[0.25]] * 30, **{"<b>$odd^": [[-1.0, 0.0]]}))
    reader = read_page(run)
    assert len(reader.with_class("section", "gauge")) == 3
    assert {"Span", "Gate opening", "<b>$odd^", "gate opening of each head, by layer, at step 100"} <= set(reader.text)
    assert "b" not in {tag for tag, _ in reader.found}


def test_damaged_readings_are_passed_over(gauged):
    before = read_run(gauged).gauges
    damaged = [None, 7.0, [], [[]], [1.0, 2.0], [[1.0], None], [["wide"]], [[math.nan, math.inf]]]
    append(gauged, *(gauges(100, spans) for spans in damaged), {"event": "gauges", "span": [[9.0]]})
    with (gauged / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(gauges(120, [[9.0]]))[:30])
    assert read_run(gauged).gauges == before


def test_a_head_that_is_not_a_number_is_no_dot_and_moves_no_other(gauged):
    append(gauged, gauges(100, [[math.nan, 33.0], [math.inf], [64.0]]))
    reader = read_page(gauged)
    assert [text for text in reader.text if text.startswith("layer ")] == ["layer 1, head 2: 33", "layer 3, head 1: 64"]
    assert reader.text.count("–") == 3, "a layer of which nothing is known"
    assert [round(point.place, 2) for point in head_points([[math.nan, 33.0]])] == [0.65]


def test_readings_repeated_after_resuming_count_once(gauged):
    append(gauged, gauges(60, [[5.0]]), gauges(80, [[6.0]]))
    readings = read_run(gauged).gauges["span"]
    assert [one.step for one in readings] == [20, 40, 60, 80, 100]
    assert [one.largest for one in readings[2:]] == [5.0, 6.0, 2048.0]


def test_a_reading_without_its_count_of_tokens_still_shows_the_heads(begun):
    write_lines(begun, [gauges(7, SPANS)])
    reader = read(begun)
    assert len(reader.with_class("circle", "head")) == 6
    assert not reader.with_class("path", "largest")
    assert not reader.with_class("path", "course")
    assert (begun / "curves.png").read_bytes().startswith(PNG)


def test_text_is_escaped(run):
    hostile = {**RECIPE, "name": "<script>1</script>", "data": {"<i>": '"><img src=x>'}}
    (run / "recipe.json").write_text(json.dumps(hostile), "utf-8")
    (run / "environment.json").write_text(json.dumps({"<u>": "<s>&amp;"}), "utf-8")
    text = page(read_run(run))
    reader = Reader(text)
    assert not {"b", "i", "img", "u", "s"} & {tag for tag, _ in reader.found}
    assert text.count("<script") == text.count("</script") == 1, "ours alone"
    assert SAMPLE in reader.text
    assert "<s>&amp;" in reader.text


def test_the_page_names_no_other_machine(gauged):
    text = page(read_run(gauged))
    assert not re.search(r"https?:|//|url\(|@import", text.replace("<!doctype html>", ""))
    assert not any("src" in attributes for _, attributes in Reader(text).found)


def test_only_our_script_may_run(run):
    text = page(read_run(run))
    (policy,) = [tags["content"] for _, tags in Reader(text).found if tags.get("http-equiv")]
    script = text[text.index("<script>") + len("<script>") : text.index("</script>")]
    assert f"script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_page_speaks_to_telephones_and_to_screen_readers(gauged):
    found = read(gauged).found
    assert ("html", {"lang": "en"}) in found
    assert any(attributes.get("name") == "viewport" for _, attributes in found)
    charts = [attributes for tag, attributes in found if tag == "svg" and attributes["class"] == "chart"]
    assert charts
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts)


def test_writing_twice_gives_the_same_files_and_nothing_else(gauged):
    before = {path.name for path in gauged.iterdir()}
    first = [write_report(gauged).read_bytes(), (gauged / "curves.png").read_bytes()]
    second = [write_report(gauged).read_bytes(), (gauged / "curves.png").read_bytes()]
    assert first == second
    assert {path.name for path in gauged.iterdir()} == before | {"report.html", "curves.png"}


def test_a_folder_without_a_recipe_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder: its recipe\.json is not there"):
        write_report(tmp_path)


def test_without_matplotlib_the_page_is_written_and_the_remedy_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        write_report(run)
    assert (run / "report.html").exists()


def test_figures_leave_pyplot_alone(run):
    loaded = "matplotlib.pyplot" in sys.modules
    assert draw_curves(read_run(run)).startswith(PNG)
    assert draw_curves(RunRecord("empty", {}, {})).startswith(PNG)
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_smoothing_keeps_a_constant_and_thinning_keeps_the_extremes():
    assert smooth([(i, 2.0) for i in range(200)]) == [(i, 2.0) for i in range(200)]
    points = [(float(i), math.sin(i) + (i == 4321) * 9) for i in range(10_000)]
    kept = thin(points)
    assert len(kept) <= 1000
    assert kept == sorted(kept)
    assert {min(points, key=lambda point: point[1]), points[4321]} <= set(kept)


@pytest.mark.parametrize("values", [[0.0], [3.0], [-1.0, 2.5], [1e-9, 2e-9], [0, 4e12], [1.37, 4.9]])
def test_a_scale_encloses_its_values(values):
    scale = Scale.around(values)
    assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in values)
    assert 2 <= len(scale.ticks) <= 8
    assert scale.ticks[-1] == pytest.approx(scale.high)


@pytest.mark.parametrize("longest", [0.7, 9.0, 50.0, 725.0, 5000.0, 40_000.0, 900_000.0])
def test_time_is_marked_at_moments_that_people_name(longest):
    ticks = SECONDS.scale(longest, 5).ticks
    assert 3 <= len(ticks) <= 6
    step = ticks[1]
    assert step < 1 or any(step % unit == 0 and step / unit in (1, 2, 3, 5, 6, 10, 12, 15, 30) for unit in UNITS)


def test_letters_beside_lines_do_not_touch():
    assert apart([0.2, 0.9, 0.5]) == [0.2, 0.9, 0.5]
    crowded = apart([0.99, 0.98, 0.1, 1.0])
    assert sorted(range(4), key=lambda i: crowded[i]) == [2, 1, 0, 3]
    assert crowded[3] == 1.0
    assert crowded[2] == 0.1
    assert crowded[0] - crowded[1] == pytest.approx(LETTER)


@pytest.mark.parametrize("values", [[32.0, 8192.0], [1.0, 1000.0], [0.003, 0.5, 7.0], [2e-5, 9.0]])
def test_values_far_apart_get_a_scale_of_ratios(values):
    scale = fitting_scale(values)
    assert isinstance(scale, LogScale)
    assert all(0 <= scale.share(value) <= 1 for value in values)
    assert 3 <= len(scale.ticks) <= 10
    middle = math.sqrt(scale.low * scale.high)
    assert scale.share(middle) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[32.0], [100.0, 300.0], [0.0, 5000.0], [-3.0, 900.0], [1e-12, 1.0]])
def test_values_near_each_other_or_near_zero_get_a_plain_scale(values):
    scale = fitting_scale(values)
    assert isinstance(scale, Scale)
    assert scale.low <= 0 <= scale.high


def test_values_are_spelled_as_people_read_them():
    assert sentence(MIXER) == "FastWeight(feature_map=DPFP(nu=3), rule=Delta(beta=0.5))"
    assert " ".join(short(n) for n in (0, 999, 999_900, 1_310_000)) == "0 999 1\u202fM 1.31\u202fM"
    durations = [duration(seconds) for seconds in (9.41, 725, 3600, 12_000, 187_200)]
    assert durations == ["9.41 s", "12 min 5 s", "1 h", "3 h 20 min", "2 d 4 h"]
    assert [clock(seconds) for seconds in (9.41, 59.5, 725, 12_005)] == ["9.41 s", "59.5 s", "12:05", "3:20:05"]
    assert [moment(seconds) for seconds in (0, 0.5, 45, 5400, 7200)] == [
        f"{number}\u202f{unit}" for number, unit in (("0", "s"), ("0.5", "s"), ("45", "s"), ("90", "min"), ("2", "h"))
    ]
    assert [reading(value) for value in (32.0, 866.8333, 8192.0, 0.25, -1.0)] == ["32", "866.8", "8,192", "0.25", "-1"]
