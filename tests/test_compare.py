import json

import pytest
from test_report import Reader
from written_runs import ENVIRONMENT, EVALUATION, RECIPE, TRAIN, VALID, write_json, write_lines, write_run

from palimpsest.cli.compare import main
from palimpsest.errors import UserError
from palimpsest.report import compare_runs, read_run, write_comparison
from palimpsest.report.comparison import differences, letter, tell_apart
from palimpsest.report.comparison_page import page
from palimpsest.report.page import page as report_page

SUM = {"part": "FastWeight", "feature_map": {"part": "DPFP", "nu": 3}, "rule": {"part": "Sum"}}
SOFTMAX = {"part": "SoftmaxAttention", "span": 128}


def recipe_with(mixer: dict, **more: object) -> dict:
    block = {**RECIPE["model"]["block"], "mixer": mixer}
    return {**RECIPE, "model": {**RECIPE["model"], "block": block}, **more}


@pytest.fixture
def runs(tmp_path):
    return [
        write_run(tmp_path / "delta"),
        write_run(tmp_path / "sum", recipe_with(SUM), above=0.25),
        write_run(tmp_path / "softmax", recipe_with(SOFTMAX), above=0.5, steps=60),
    ]


def read(runs) -> Reader:
    return Reader(page(compare_runs(runs)))


def text_of(runs) -> str:
    return read(runs).words()


def test_every_run_has_a_line_in_a_colour_of_its_own(runs):
    reader = read(runs)
    for number, name in enumerate(("A delta", "B sum", "C softmax"), start=1):
        lines = reader.with_class("path", f"run-{number} dash-1")
        assert len(lines) == 4, "validation and training, against tokens and against time"
        assert {line["data-name"] for line in lines} == {name}


def test_the_lines_have_the_values_of_their_runs(runs):
    lines = [reader_line["data-y"].split(";") for reader_line in read(runs).with_class("path", "run-2 dash-1")]
    assert lines[0] == lines[1] == [f"{one['nats'] + 0.25:.4f}" for one in VALID]


def test_more_runs_than_colours_differ_in_their_dashes(tmp_path):
    made = [write_run(tmp_path / str(i), recipe_with(SUM, name=str(i))) for i in range(7)]
    reader = read(made)
    assert reader.with_class("path", "run-1 dash-1")
    assert reader.with_class("path", "run-1 dash-2")


def test_the_best_of_comparable_scores_is_marked(runs):
    comparison = compare_runs(runs)
    assert comparison.best("nats_per_token") is comparison.runs[0]
    assert comparison.best("lowest_validation") is comparison.runs[0]
    strong = [attributes for tag, attributes in read(runs).found if tag == "strong"]
    assert len(strong) == 4, "nats, bits, perplexity, validation"


def test_scores_of_different_protocols_have_no_best(runs):
    write_json(runs[1] / "evaluation.json", {**EVALUATION, "protocol": {"part": "SlidingWindow"}})
    comparison = compare_runs(runs)
    assert comparison.best("nats_per_token") is None
    assert comparison.best("lowest_validation") is comparison.runs[0], "was come by in the same way"
    assert "Come by in different ways" in text_of(runs)


def test_scores_per_token_have_no_best_where_tokens_differ_and_those_per_character_do(runs):
    write_json(runs[1] / "evaluation.json", {**EVALUATION, "tokens": 50_000, "bits_per_character": 1.5})
    comparison = compare_runs(runs)
    assert comparison.best("perplexity") is None
    assert comparison.best("bits_per_character") is comparison.runs[1]


def test_only_what_differs_is_told(runs):
    rows = {row.path: row.values for row in compare_runs(runs[:2]).recipe}
    assert rows == {"model.block.mixer.rule": {0: "Delta", 1: "Sum"}, "model.block.mixer.rule.beta": {0: 0.5}}
    assert "batch" not in text_of(runs)
    assert not compare_runs(runs[:2]).environment


def test_what_only_comes_with_another_part_is_apart(runs):
    rows = {row.path: row.disputed for row in compare_runs(runs).recipe}
    assert [path for path, disputed in rows.items() if disputed] == ["model.block.mixer", "model.block.mixer.rule"]
    assert {"model.block.mixer.span", "model.block.mixer.feature_map.nu"} <= {*rows}
    assert "4 more that only some of them have" in text_of(runs)


def test_line_breaks_are_spelt(runs, tmp_path, capsys):
    other = write_run(tmp_path / "packed", recipe_with(SUM, name="a\n\nb"))
    main([str(runs[0]), str(other), "--output", str(tmp_path / "compare.html")])
    assert r"'a\n\nb'" in capsys.readouterr().out


def test_values_of_another_kind_differ_though_python_calls_them_equal():
    assert [row.path for row in differences([{"a": 1, "b": None}, {"a": True, "b": None}])] == ["a"]


def test_nothing_and_no_such_thing_are_different():
    assert [row.values for row in differences([{"a": None}, {}])] == [{0: None}]


def test_parts_in_a_list_are_numbered():
    blocks = [{"blocks": [{"part": "PreNorm"}, {"part": kind}]} for kind in ("PreNorm", "PostNorm")]
    assert [row.path for row in differences(blocks)] == ["blocks.2"]


def test_the_fields_of_a_part_stand_below_it():
    plain = {"block": {"part": "Plain", "a": 1}, "steps": 1}
    other = {"block": {"part": "Other", "b": 2}, "steps": 2}
    assert [row.path for row in differences([plain, other])] == ["block", "block.a", "block.b", "steps"]


def test_environments_differ_in_what_they_differ(runs):
    write_json(runs[1] / "environment.json", {**ENVIRONMENT, "device": "cuda", "parameters": 5})
    assert [row.path for row in compare_runs(runs[:2]).environment] == ["device"]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    made = [write_run(tmp_path / path) for path in ("one/run", "two/run")]
    assert [run.label for run in compare_runs(made).runs] == ["one/run", "two/run"]
    assert tell_apart(["a", "b"], made) == ["a", "b"]


def test_letters_do_not_end():
    assert [letter(i) for i in (0, 25, 26, 27, 26 * 27)] == ["A", "Z", "AA", "AB", "AAA"]


def test_runs_under_way_are_compared_as_far_as_they_are(runs, tmp_path):
    (runs[1] / "evaluation.json").unlink()
    begun = tmp_path / "begun"
    begun.mkdir()
    write_json(begun / "recipe.json", RECIPE)
    text = text_of([*runs[:2], begun])
    assert "Not evaluated yet: B, C." in text
    assert "1.8700" in text, "B's lowest validation"


def test_runs_that_have_all_just_begun_have_a_page(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "recipe.json", RECIPE)
    assert "Nothing." in text_of([tmp_path / "a", tmp_path / "b"])


def test_a_run_without_a_clock_is_drawn_against_tokens_alone(runs):
    write_lines(runs[0], [{name: value for name, value in one.items() if name != "seconds"} for one in TRAIN])
    reader = read(runs[:2])
    assert len(reader.with_class("path", "run-1 dash-1")) == 1
    assert len(reader.with_class("path", "run-2 dash-1")) == 4


def test_the_page_names_no_other_machine_and_escapes_what_it_shows(runs):
    write_json(runs[0] / "recipe.json", {**RECIPE, "name": "<i>", "data": {"<u>": '"><img src=x>'}})
    text = page(compare_runs(runs))
    assert not {"i", "u", "img"} & {tag for tag, _ in Reader(text).found}
    assert text.count("<script") == 1
    assert "http:" not in text
    assert "https:" not in text


def test_the_command_prints_a_table_and_the_path_of_the_page(runs, tmp_path, capsys):
    main([*map(str, runs), "--output", str(tmp_path / "all.html")])
    shown = capsys.readouterr().out
    assert "1.7500 *" in shown
    assert any(line.split() == ["model.block.mixer.rule", "Delta", "Sum", "–"] for line in shown.splitlines())
    assert shown.endswith(f"page: {tmp_path / 'all.html'}\n")
    assert (tmp_path / "all.html").exists()


def test_the_command_gives_the_same_as_json(runs, tmp_path, capsys):
    main([*map(str, runs), "--output", str(tmp_path / "all.html"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [run["nats_per_token"] for run in told["runs"]] == [1.75, 2.0, 2.25]
    assert [run["tokens"] for run in told["runs"]] == [409_600, 409_600, 245_760]
    assert told["best"]["lowest_validation"] == "A"
    assert told["recipe"]["model.block.mixer.rule"] == {"A": "Delta", "B": "Sum"}
    assert told["page"] == str(tmp_path / "all.html")


@pytest.mark.parametrize("chosen, fault", [([0], "two runs or more"), ([0, 1, 0], "twice"), ([], "none was given")])
def test_what_cannot_be_compared_is_refused(runs, tmp_path, chosen, fault):
    with pytest.raises(UserError, match=fault):
        main([*(str(runs[i]) for i in chosen), "--output", str(tmp_path / "all.html")])
    assert not (tmp_path / "all.html").exists()


def test_a_run_is_the_same_under_another_spelling(runs):
    with pytest.raises(UserError, match="twice"):
        compare_runs([runs[0], runs[1] / ".." / runs[0].name])


def test_a_folder_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        compare_runs([runs[0], tmp_path])


def test_only_a_comparison_of_ours_is_written_over(runs, tmp_path):
    comparison, path = compare_runs(runs), tmp_path / "compare.html"
    assert write_comparison(comparison, path).read_bytes() == write_comparison(comparison, path).read_bytes()
    report = tmp_path / "report.html"
    report.write_text(report_page(read_run(runs[0])), "utf-8")
    path.write_text("mine")
    for other in (path, report, tmp_path):
        before = None if other.is_dir() else other.read_bytes()
        with pytest.raises(UserError, match="is there already and is no comparison of ours"):
            write_comparison(comparison, other)
        assert before is None or other.read_bytes() == before


def test_a_page_needs_a_folder_that_is_there(runs, tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        write_comparison(compare_runs(runs), tmp_path / "nowhere" / "compare.html")
