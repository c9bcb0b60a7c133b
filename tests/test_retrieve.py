"""The retrieval laboratory, as a person meets it, and the published runs."""

import csv
import json
import re
import sys

import pytest
import torch
from written_runs import result

from palimpsest.cli import main
from palimpsest.errors import UserError
from palimpsest.experiment.retrieval import Outcome, measure
from palimpsest.legacy.retrieval import LINES, CommandLine
from palimpsest.report.retrieval import (
    compare,
    draw_recall,
    draw_setting,
    read_published,
    read_results,
    write_logs,
    write_retrieval,
)

PNG = b"\x89PNG\r\n\x1a\n"
LOG = re.compile(r"d(\d+)_(.+)_(.+)_AssocSeq(\d+)N(\d+)R(\d+)")  # how the original's notebooks read a name
QUICK = "--every 5 --steps 10 --sequences 2 --batch 4 --processes 1 --device cpu"


def say(*arguments):
    return main(["retrieve", *(str(argument) for argument in arguments)])


def complaint(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        say(*arguments)
    assert left.value.code == 2
    return capsys.readouterr().err


# ------------------------------------------------------------------------------------------- the published runs


def test_the_sixteen_command_lines_are_the_published_runs():
    asked = {(line.label, each.task.keys, int(line.replace)) for line in LINES for each in line.original()}
    assert len(LINES) == 16
    assert asked == read_published().keys()
    assert len(asked) == 320


def check_published(line: CommandLine, evaluations: int, share: float) -> None:
    published = read_published()
    for asked in line.original():
        outcome = measure(Outcome(asked, line.label))
        told = published[line.label, asked.task.keys, int(line.replace)]
        steps, found = outcome.scores[-1]
        assert outcome.end == told["end"]
        assert abs(steps - told["steps"]) <= evaluations * asked.every
        assert found.loss == pytest.approx(told["loss"], rel=share)


@pytest.mark.parametrize("line", [CommandLine("softmax"), CommandLine("dpfp", 1, end=40)], ids=lambda line: line.label)
def test_a_published_run_is_run_again(line):
    check_published(line, evaluations=0, share=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        CommandLine("linear"),
        CommandLine("dpfp", 1, begin=60, end=60),
        CommandLine("linear", 0, "ours", replace=True),
        CommandLine("dpfp", 1, "ours", replace=True),
    ],
    ids=lambda line: line.label,
)
def test_a_longer_published_run_is_run_again(line):
    check_published(line, evaluations=0, share=0.05)


@pytest.mark.slow
def test_a_published_run_that_did_not_succeed_gives_up_as_it_did():
    check_published(CommandLine("linear", begin=60, end=60), evaluations=2, share=0.1)


# ------------------------------------------------------------------------------------------------- the command line


def test_a_command_line_of_the_original_leaves_figures_a_page_and_its_logs(tmp_path, capsys):
    say("run", "--legacy", "--csv", "--folder", tmp_path, "--device", "cpu", "--processes", 1)
    assert "softmax cat" in capsys.readouterr().out
    (result,) = read_results(tmp_path)
    assert (result["keys"], result["steps"], result["end"]) == (20, 200, "criterion")
    assert (tmp_path / "setting-1.png").read_bytes().startswith(PNG)
    assert b"<svg" in (tmp_path / "setting-1.svg").read_bytes()
    page = (tmp_path / "report.html").read_text()
    assert "1 of 1 that can be compared" in page
    assert not re.search(r"https?:", re.sub(r"base64,[^\"]*", "", page))
    (log,) = (tmp_path / "logs").iterdir()
    assert LOG.fullmatch(log.stem).groups() == ("64", "softmax", "cat", "20", "20", "0")
    rows = list(csv.DictReader(log.open()))
    assert [row["step"] for row in rows] == ["100", "200"]
    assert float(rows[-1]["eval-loss"]) == pytest.approx(result["loss"], rel=1e-6)


def test_several_seeds_have_error_bars_and_logs_of_their_own(tmp_path, capsys):
    say("test", "--keys", 3, 4, "--seed", 1, 2, "--folder", tmp_path, *QUICK.split(), "--label", "mine", "--csv")
    assert {(one["label"], one["keys"], one["seed"]) for one in read_results(tmp_path)} == {
        ("mine", keys, seed) for keys in (3, 4) for seed in (1, 2)
    }
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"seed-1", "seed-2"}
    assert all(row.same_side is None for row in compare(read_results(tmp_path)))


def test_any_part_can_be_tested_by_naming_it(tmp_path):
    common = ("--keys", 3, "--seed", 1, "--folder", tmp_path, *QUICK.split())
    say("test", "--update-rule", "GatedDelta", "--feature-map", "Silu", "--key-scale", "UnitNorm", *common)
    say("test", "--model", "PairTokens", "--mixer", "SoftmaxAttention", "--task", "Overwriting", *common)
    one, other = read_results(tmp_path)
    assert {"Silu", "UnitNorm", "GatedDelta"} <= set(one["label"].split())
    assert other["asked"]["model"]["block"]["mixer"]["part"] == "SoftmaxAttention"
    assert (one["replace"], other["replace"]) == (0, 1)


def test_a_part_of_ones_own_is_tested_by_naming_its_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_maps.py").write_text(
        "from dataclasses import dataclass\n"
        "from palimpsest.memory.feature_maps import FeatureMap\n"
        "@dataclass(frozen=True)\n"
        "class SquaredForTheTest(FeatureMap):\n"
        '    """x²"""\n'
        "    non_negative = True\n"
        "    def map(self, x):\n"
        "        return x.square()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        flags = ("--parts", "my_maps", "--feature-map", "SquaredForTheTest", "--keys", 3, "--seed", 1)
        say("test", *flags, "--folder", tmp_path / "found", *QUICK.split())
        assert read_results(tmp_path / "found")[0]["asked"]["model"]["memory"]["feature_map"] == {
            "part": "my_maps:SquaredForTheTest"
        }
    finally:
        sys.modules.pop("my_maps", None)
    assert "cannot be imported" in complaint(capsys, "test", "--parts", "nowhere_at_all")


def test_a_sweep_can_be_cut_into_pieces(tmp_path, capsys):
    flags = ("--settings", 1, "--rules", "sum", "--end", 20, "--legacy", "--folder", tmp_path)
    flags = (*flags, "--processes", 1, "--device", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palimpsest.cli.retrieve.LINES", LINES[:1])
        say("sweep", *flags, "--minutes", 0)
        assert "1 of 1 runs are left" in capsys.readouterr().out
        say("sweep", *flags)
        assert "criterion" in capsys.readouterr().out
        say("sweep", *flags)
        assert "already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("results.jsonl", f"test --keys 3 --seed 1 {QUICK}"),
        ("recall.jsonl", "recall --width 8 --heads 2 --layers 1 --tokens 12 --length 16 --pairs 2 --batch 2 --steps 2"),
    ],
)
def test_a_result_after_one_that_was_cut_off_is_a_line_of_its_own(tmp_path, name, action):
    (tmp_path / name).write_text('{"name": "cut o')
    say(*action.split(), "--folder", tmp_path)
    assert len(read_results(tmp_path, name)) == 1
    assert len((tmp_path / name).read_text().splitlines()) == 2


def test_recall_is_drawn_against_bytes(tmp_path, capsys):
    flags = "--width 8 16 --heads 2 --layers 1 --tokens 12 --length 16 --pairs 2 --batch 2 --sequences 4 --device cpu"
    say("recall", *flags.split(), "--steps", 2, "--folder", tmp_path)
    found = read_results(tmp_path, "recall.jsonl")
    assert [one["bytes"] for one in found] == [2 * 4 * 4 * 4, 2 * 8 * 8 * 4]
    assert (tmp_path / "recall.png").read_bytes().startswith(PNG)
    say("recall", *flags.split(), "--steps", 2, "--folder", tmp_path)
    assert len(read_results(tmp_path, "recall.jsonl")) == 2


def test_mistakes_are_told_in_a_sentence(capsys, tmp_path):
    assert "no action" in complaint(capsys, "fly")
    assert "nothing was measured there" in complaint(capsys, "draw", tmp_path)
    assert "argument of at least 1" in complaint(capsys, "run", "--attention", "dpfp", "--folder", tmp_path)
    assert "did you mean" in complaint(capsys, "test", "--update-rule", "Detla")


# ----------------------------------------------------------------------------------------------------- the report


def test_a_run_is_on_the_same_side_or_not(tmp_path):
    rows = compare(
        [
            result("linear sum", 20, 0.0004),
            result("linear sum", 60, 0.0004),
            result("dpfp2 ours", 100, 0.5, replace=1),
            result("mine", 20, 0.1),
        ]
    )
    sides = {(row.label, row.keys): row.same_side for row in rows}
    assert sides == {("linear sum", 20): True, ("linear sum", 60): False, ("dpfp2 ours", 100): None, ("mine", 20): None}


def test_a_run_that_is_not_a_number_does_not_spoil_the_figure(tmp_path):
    lines = [result("favor64 ours", 20, 0.1, replace=1), result("favor64 ours", 40, float("nan"), replace=1)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = write_retrieval(tmp_path)
    assert all(path.exists() for path in made)
    assert write_logs(tmp_path)[1].read_text() == "step,eval-loss\n100,nan\n"
    again = {path: path.read_bytes() for path in made}
    write_retrieval(tmp_path)
    assert {path: path.read_bytes() for path in made} == again


LABELS = {
    "short": [f"memory {i}" for i in range(9)],
    "as they are by default": ["EluPlusOne SumToOne Delta Plain Identity", "Rotary Unlimited Unscaled RMSNorm Scaled"],
    "as wide as letters are": ["W" * 200, "M" * 30],
    "many": [f"a rather long label, really, number {i}" for i in range(40)],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("replace", [0, 1])
def test_every_name_stands_within_the_figure_of_a_setting_and_below_its_plot(labels, replace):
    check_names(draw_setting([result(label, 20, 0.1, replace=replace) for label in labels], replace), labels)


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_every_name_stands_within_the_figure_of_recall_and_below_its_plot(labels):
    check_names(draw_recall([{"label": label, "bytes": 128, "accuracy": 0.5} for label in labels]), labels)


def check_names(figure, labels) -> None:
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    plot, names = axes.get_window_extent(), legend.get_texts()
    assert {"".join(label.split()) for label in labels} <= {"".join(name.get_text().split()) for name in names}
    for place in (name.get_window_extent() for name in names):
        assert figure.bbox.x0 <= place.x0 < place.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= place.y0 < place.y1 < plot.y0
    assert plot.height > 300


def test_without_matplotlib_the_numbers_are_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    say("test", "--keys", 3, "--seed", 1, "--folder", tmp_path, *QUICK.split())
    assert "pip install matplotlib" in capsys.readouterr().out
    assert (tmp_path / "comparison.csv").exists()
    with pytest.raises(UserError, match="matplotlib"):
        write_retrieval(tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_runs_are_runs_on_their_own(tmp_path):
    flags = ("--begin", 20, "--end", 40, "--legacy", "--folder", tmp_path, "--processes", 2)
    say("run", "--attention", "dpfp", "--argument", 1, "--device", "cuda", *flags)
    for one in read_results(tmp_path):
        (asked,) = CommandLine("dpfp", 1, begin=one["keys"], end=one["keys"]).original()
        alone = measure(Outcome(asked))
        assert one["steps"] == alone.scores[-1][0]
        assert one["loss"] == pytest.approx(alone.scores[-1][1].loss, rel=0.05)
