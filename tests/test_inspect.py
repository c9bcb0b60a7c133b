"""Looking into a run, as a person does it: from Python, from the command line, in the report."""

import base64
import io
import json
import re

import pytest
from matplotlib.image import imread
from toys import TEXT, quiet, toy

import palimpsest
from palimpsest.cli import main
from palimpsest.cli.recipes import find_recipe
from palimpsest.experiment import train
from palimpsest.report import read_run, write_report
from palimpsest.report.instruments import png


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(toy(find_recipe("tiny-shakespeare")), tmp_path_factory.mktemp("inspect") / "run", quiet())


def say(capsys, *arguments):
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def test_from_python_a_run_is_looked_at_over_any_text(run):
    seen = palimpsest.inspect(run, TEXT[:30])
    assert "".join(seen.tokens) == TEXT[:30]
    assert [len(layer.heads) for layer in seen.layers] == [3, 3]
    assert palimpsest.load(run).inspect(TEXT[:30]).to_json() == seen.to_json()
    assert len(palimpsest.inspect(run).tokens) == 128


def test_the_verb_prints_a_line_for_every_head_and_puts_pictures_into_the_report(run, capsys):
    assert "<h2>Memory</h2>" not in (run / "report.html").read_text("utf-8")
    shown = say(capsys, "inspect", run, "--length", 20)
    heading, *lines = shown.splitlines()
    assert heading.split() == ["layer", "head", "keep", "erase", "write", "written", "erased", "collisions", "rank"]
    assert [line.split()[:2] for line in lines[:6]] == [[layer, head] for layer in "12" for head in "123"]
    assert str(run / "report.html") in shown
    page = (run / "report.html").read_text("utf-8")
    pictures = re.findall(r'href="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 6
    assert all(imread(io.BytesIO(base64.b64decode(picture))).shape == (20, 20, 4) for picture in pictures)
    assert "<h2>Memory</h2>" in page
    assert "effective rank of the page against tokens read" in page
    assert "Memory in numbers" in page
    assert read_run(run).instruments == json.loads((run / "instruments.json").read_text("utf-8"))


def test_a_text_of_ones_own_can_be_given_and_json_asked_for(run, capsys, tmp_path):
    (tmp_path / "mine.txt").write_text(TEXT[:12])
    report = (run / "report.html").read_bytes()
    seen = json.loads(say(capsys, "inspect", run, "--text", tmp_path / "mine.txt", "--json"))
    assert "".join(seen["tokens"]) == TEXT[:12]
    assert (run / "report.html").read_bytes() == report
    seen = json.loads(say(capsys, "inspect", run, "--text", tmp_path / "mine.txt", "--length", 10**8, "--json"))
    assert len(seen["tokens"]) == 12, "never more than there are"


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--text", "nowhere.txt"), "the text cannot be read from nowhere.txt"),
        (("--length", "0"), "a length is at least 1; found 0"),
        (("--text", "long.txt", "--length", "100000000"), "1,025 tokens are too many to look at"),
        (("--text", "empty.txt"), "nothing to look at"),
        (("--text", "greek.txt"), "the vocabulary has no 'μ'"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(run, capsys, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "greek.txt").write_text("μῆνιν")
    (tmp_path / "long.txt").write_text(TEXT[:1025])
    with pytest.raises(SystemExit) as left:
        main(["inspect", str(run), *flags])
    assert left.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_damaged_file_leaves_the_report_without_its_part(run, tmp_path):
    (tmp_path / "recipe.json").write_bytes((run / "recipe.json").read_bytes())
    (tmp_path / "instruments.json").write_text('{"tokens": ["a", ')
    assert "<h2>Memory</h2>" not in write_report(tmp_path).read_text("utf-8")


def test_a_picture_has_blue_above_zero_orange_below_and_nothing_where_nothing_is():
    pixels = imread(io.BytesIO(png([[100], [-100, 50]])))
    (red, _, blue, opacity), nothing = pixels[0, 0], pixels[0, 1]
    assert blue > red
    assert opacity == 1
    assert nothing[3] == 0
    red, _, blue, opacity = pixels[1, 0]
    assert red > blue
    assert opacity == 1
    assert pixels[1, 1][3] == pytest.approx(0.5, abs=0.01)
