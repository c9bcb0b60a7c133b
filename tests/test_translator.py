"""What people do with translation: train a small model, translate lines, score them, stop and go on."""

import io
import json
import sys
from dataclasses import replace

import pytest
from toys import metrics, quiet, toy, train_until_the_power_goes

from palimpsest.cli import main
from palimpsest.cli.overrides import override
from palimpsest.cli.recipes import find_recipe, from_run
from palimpsest.data.parallel import LanguageFiles, TabSeparated
from palimpsest.data.shopping_lists import ShoppingLists
from palimpsest.data.vocabulary import SubWords
from palimpsest.errors import UserError
from palimpsest.evaluation.decoding import BeamSearch, Greedy
from palimpsest.evaluation.translation import bleu, chrf
from palimpsest.experiment import ParallelData, Recipe, TranslationRecipe, Translator, load, resume, train
from palimpsest.report import read_run
from palimpsest.training.checkpoint import Checkpoints

TINY = replace(
    find_recipe("shopping-lists"),
    data=ParallelData(ShoppingLists(pairs=2000), SubWords(500), tokens=768),
)
FLAGS = "--width 48 --inner 96 --scale 7 --encoder-layers 1 --layers 1 --rate 0.006 --steps 270 --threads 1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The small recipe made smaller still, trained in a few seconds."""
    recipe = override(TINY, FLAGS.split(), "palimpsest train")
    recipe = replace(recipe, run=replace(recipe.run, validate_every=90, save_every=60, keep=3, device="cpu"))
    return train(recipe, tmp_path_factory.mktemp("translation") / "run", quiet())


@pytest.fixture
def typed(monkeypatch):
    """What stands on standard input."""

    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


def test_a_tiny_recipe_translates_far_better_than_copying_the_source(run):
    trained = load(run)
    assert isinstance(trained, Translator)
    sides = trained.recipe.data.corpus.sides()["test"]
    source, references = ([line.decode() for line in side] for side in sides)
    translations = trained.translate(source, BeamSearch(beam=3))
    assert bleu(translations, references).score > bleu(source, references).score + 30
    assert chrf(translations, references).score > chrf(source, references).score + 30


def test_a_run_says_how_it_was_scored_and_shows_translations(run):
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert evaluation["protocol"]["part"] == "BeamSearch"
    assert "tok:13a" in evaluation["signatures"]["bleu"]
    assert "version:" in evaluation["signatures"]["chrf"]
    assert evaluation["nats_per_token"] * evaluation["tokens"] == pytest.approx(evaluation["nats"])
    validations = [line for line in metrics(run) if line["event"] == "valid"]
    assert all({"nats", "bleu"} <= line.keys() for line in validations)
    assert validations[-1]["nats"] == pytest.approx(evaluation["nats_per_token"], rel=1e-5)
    assert read_run(run).valid[-1].bleu == validations[-1]["bleu"]
    page = (run / "report.html").read_text()
    assert "<h2>BLEU</h2>" in page
    assert '<th scope="col">BLEU</th>' in page
    assert (run / "samples.txt").read_text().count("→") == 5


def test_lines_are_translated_in_order_and_empty_ones_stay_empty(run, typed, capsys):
    lines = [
        "We need two pears.",
        "",
        "She has sold three red eggs and twenty-two old books.",
        "  ",
        "We need two pears.",
    ]
    typed("\n".join(lines))
    main(["translate", str(run), "--device", "cpu"])
    found = capsys.readouterr().out.split("\n")
    assert found == [*load(run).translate(lines), ""]
    assert found[0] == found[4] != ""
    assert found[1] == found[3] == ""


def test_the_first_lines_come_out_before_the_last_go_in(run, monkeypatch, capsys):
    seen = []

    class Slowly(io.StringIO):
        def reconfigure(self, **_):
            pass

        def __next__(self):
            seen.append(capsys.readouterr().out)
            return super().__next__()

    monkeypatch.setattr(sys, "stdin", Slowly("We need two pears.\n" * 3))
    main(["translate", str(run), "--batch", "1", "--device", "cpu"])
    assert all(seen[1:])


def test_of_several_processes_the_first_alone_reads_the_lines_and_translates_them(run, typed, monkeypatch, capsys):
    said = {}
    for rank in ("1", "0"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        typed("We need two pears.\n")
        main(["translate", str(run), "--device", "cpu"])
        said[rank] = capsys.readouterr().out, sys.stdin.read()
    assert said["1"] == ("", "We need two pears.\n"), "which leaves them to the first"
    assert said["0"] == (f"{load(run).translate(['We need two pears.'])[0]}\n", "")


def test_several_translations_are_numbered_and_scored(run, typed, capsys):
    typed("We need two pears.\nShe has sold three eggs.\n")
    main(["translate", str(run), "--n-best", "3", "--beam", "4", "--scores", "--device", "cpu"])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] * 3
    scores = [float(row[1]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3:] == sorted(scores[3:], reverse=True)


def test_translations_can_be_had_as_json(run, typed, capsys):
    typed("We need two pears.\n")
    main(["translate", str(run), "--json", "--decoding", "greedy", "--device", "cpu"])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["source"] == "We need two pears."
    assert found["translations"][0]["text"] == load(run).translate(["We need two pears."], Greedy())[0]
    assert found["translations"][0]["log_probability"] < 0


def test_sampled_translations_follow_their_seed(run, typed, capsys):
    found = []
    for seed in ("1", "1", "2"):
        typed("She has sold three red eggs and twenty-two old books.\n" * 8)
        main(["translate", str(run), "--decoding", "sampled", "--temperature", "2", "--seed", seed, "--device", "cpu"])
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] != found[2]


def test_a_run_is_scored_by_any_decoding_and_on_pairs_of_ones_own(run, tmp_path, capsys):
    (tmp_path / "a.en").write_text("We need two pears.\n")
    (tmp_path / "a.de").write_text("Wir brauchen zwei Birnen.\n")
    own = ["--source", str(tmp_path / "a.en"), "--reference", str(tmp_path / "a.de")]
    main(["evaluate", str(run), *own, "--protocol", "beam-search", "--beam", "1", "2", "--json", "--device", "cpu"])
    one, two = json.loads(capsys.readouterr().out)
    assert (one["protocol"]["beam"], two["protocol"]["beam"]) == (1, 2)
    assert one["sentences"] == 1
    main(["evaluate", str(run), "--split", "test", "--protocol", "greedy", "--device", "cpu"])
    told = capsys.readouterr().out
    assert "chrf" in told
    assert "nrefs:1|case:mixed" in told


@pytest.mark.parametrize(
    "line, message",
    [
        ("generate RUN", "translates, and goes on with no text: palimpsest translate"),
        ("inspect RUN", "translates, and reads two texts"),
        ("evaluate RUN --text x.txt", "give --source and --reference"),
        ("evaluate RUN --source x.txt", "go together"),
        ("evaluate RUN --protocol sliding-window", "unknown decoding 'slidingwindow'"),
        ("translate RUN --temperature 2", "--temperature means nothing to BeamSearch: --decoding sampled knows it"),
        ("translate RUN --decoding greedy --beam 2", "--decoding beam-search knows it"),
        ("translate RUN --n-best 9", "take a beam of as many: --beam 9"),
        ("translate RUN --n-best 0", "at least 1"),
        ("translate RUN --checkpoint last-9", "has 3 checkpoints, not 9: train with --run.keep 9"),
        ("train shopping-lists --carry", "no state to carry"),
    ],
)
def test_what_cannot_be_had_of_a_translator_is_refused_in_one_line(run, line, message, capsys):
    with pytest.raises(SystemExit) as refused:
        main(line.replace("RUN", str(run)).split())
    told = capsys.readouterr().err
    assert refused.value.code == 2
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("line", "place"), [(b"We n\xffed", "0xff at offset 4"), (b"\xff\xfeW\0", "0xff at offset 0")])
def test_a_line_that_is_not_text_is_refused_in_one_line(run, monkeypatch, capsys, line, place):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"We need two pears.\n" + line + b"\n")))
    with pytest.raises(SystemExit):
        main(["translate", str(run), "--device", "cpu"])
    told = capsys.readouterr().err
    assert f"the text is not UTF-8: byte {place}. Convert it to UTF-8, or train with --vocabulary Bytes" in told


def test_a_language_model_does_not_translate(tmp_path, capsys):
    folder = train(toy(Recipe(name="no")), tmp_path / "run", quiet())
    with pytest.raises(SystemExit):
        main(["translate", str(folder)])
    assert "is a language model and does not translate" in capsys.readouterr().err


def test_the_mean_of_the_newest_checkpoints_is_their_mean(run):
    paths = Checkpoints(run / "checkpoints").all()[-2:]
    one, other = (load(run, path.name).model.state_dict() for path in paths)
    both = load(run, "last-2")
    assert both.checkpoint == f"the mean of {paths[0].name} to {paths[1].name}"
    for name, mean in both.model.state_dict().items():
        assert mean.allclose((one[name] + other[name]) / 2, atol=1e-6)
    assert load(run, "last-1").checkpoint == paths[-1].name


def test_a_run_that_lost_its_power_goes_on_as_if_it_had_not(tmp_path, monkeypatch):
    monkeypatch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)
    recipe = toy(replace(TINY, translated=4), steps=7, save_every=2, validate_every=3)
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "cut", step=5)
    assert metrics(resume(tmp_path / "cut", quiet())) == metrics(whole)


def test_accumulation_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)
    recipe = toy(replace(TINY, translated=0), steps=4)
    once, thrice = (
        metrics(train(replace(recipe, run=replace(recipe.run, accumulation=n)), tmp_path / str(n), quiet()))
        for n in (1, 3)
    )
    for one, other in zip(once, thrice, strict=True):
        assert one["nats"] == pytest.approx(other["nats"], rel=1e-4)
        assert one["tokens"] == other["tokens"]


def test_pairs_of_ones_own_are_given_by_their_path_alone(tmp_path):
    (tmp_path / "mine.tsv").write_text("a\tb\n" * 40)
    recipe = find_recipe(str(tmp_path / "mine.tsv"))
    assert isinstance(recipe, TranslationRecipe)
    assert recipe.name == "mine"
    assert recipe.data.corpus == TabSeparated((tmp_path / "mine.tsv").resolve())


def test_a_translators_weights_begin_another_run_on_other_pairs(run, tmp_path):
    for name in ("train", "valid"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("We need two pears.\n" * 9)
    recipe = from_run(run, str(tmp_path))
    assert recipe.data.corpus == LanguageFiles(tmp_path.resolve())
    recipe = replace(recipe, run=replace(recipe.run, steps=1))
    assert load(train(recipe, tmp_path / "other", quiet())).codec == load(run).codec


def test_without_sacrebleu_one_is_told_how_to_get_it_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    for ask in (lambda: bleu(["a"], ["a"]), lambda: train(toy(TINY), tmp_path / "run", quiet())):
        with pytest.raises(UserError, match=r"pip install palimpsest\[translation\]"):
            ask()
    assert not (tmp_path / "run").exists()
