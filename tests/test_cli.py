"""The command line, as a person meets it."""

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module

import pytest
import torch
from test_import import WORDS, transformer_xl
from toys import TEXT, palimpsest

from palimpsest import cli
from palimpsest.cli import VERBS, main
from palimpsest.cli.answers import print_json
from palimpsest.cli.overrides import override
from palimpsest.data.standard import Text8
from palimpsest.experiment import Recipe
from palimpsest.legacy.corpora import vocabulary_from
from palimpsest.memory.feature_maps import DPFP
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.training.optimisers import SGD
from palimpsest.training.schedules import Plateau

SMALL = "--steps 4 --batch 2 --segment 16 --width 24 --layers 1 --validate-every 4 --save-every 2 --threads 1"


def slowly(value):
    """One that is tried with the slow tests, as it starts a process or several."""
    return pytest.param(value, marks=pytest.mark.slow)


def say(*arguments):
    return main([str(argument) for argument in arguments])


def complaint(capsys, *arguments):
    """What is said of a mistake, after leaving with 2 and without a traceback."""
    with pytest.raises(SystemExit) as left:
        say(*arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return " ".join(error.split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "novel.txt").write_text(TEXT)
    say("train", folder / "novel.txt", "--folder", folder / "run", *SMALL.split())
    return folder / "run"


def test_help_does_not_wait_for_torch(tmp_path):
    program = "import sys; from palimpsest.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(verb in done.stdout for verb in VERBS)


def test_every_verb_explains_itself(capsys):
    for verb in VERBS:
        with pytest.raises(SystemExit) as left:
            say(verb, "--help")
        assert left.value.code == 0
        assert verb in capsys.readouterr().out
        assert import_module(f"palimpsest.cli.{verb}").__doc__


def test_a_run_folder_holds_all_it_should(run):
    names = {path.name for path in run.iterdir()}
    assert names == {
        "recipe.json", "environment.json", "vocabulary.json", "corpus.json", "metrics.jsonl", "checkpoints",
        "evaluation.json", "samples.txt", "curves.png", "report.html",
    }  # fmt: skip
    assert json.loads((run / "evaluation.json").read_text())["nats_per_token"] > 0


def test_evaluate_prints_the_number_of_the_run(run, capsys):
    say("evaluate", run, "--json")
    score = json.loads(capsys.readouterr().out)
    assert score == json.loads((run / "evaluation.json").read_text())
    say("evaluate", run)
    assert f"{score['nats_per_token']:.4f}" in capsys.readouterr().out


@pytest.mark.parametrize("protocol", ["segments", "sliding-window", "carried-state", "lmtool-sliding-window"])
def test_evaluate_knows_every_protocol_and_split(run, capsys, protocol):
    say("evaluate", run, "--protocol", protocol, "--context", 8, "--split", "all", "--json")
    valid, test = json.loads(capsys.readouterr().out)
    assert (valid["split"], test["split"]) == ("valid", "test")
    assert valid["protocol"]["part"].rpartition(":")[-1].lower() == protocol.replace("-", "")
    assert 8 in valid["protocol"].values()


def test_the_fields_of_a_protocol_are_flags_and_several_values_make_a_table(run, capsys):
    say("evaluate", run, "--protocol", "carried-state", "--segment", 8, "--rows", 1, 2, 4, "--json")
    scores = json.loads(capsys.readouterr().out)
    assert [score["protocol"] for score in scores] == [
        {"part": "CarriedState", "segment": 8, "rows": rows} for rows in (1, 2, 4)
    ]
    say("evaluate", run, "--protocol", "CarriedState", "--segment", 8, "--rows", 1, 2, 4)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["split", "rows", "targets"]
    for line, score in zip(lines, scores, strict=True):
        assert line.split()[1] == str(score["protocol"]["rows"])
        assert f"{score['nats_per_token']:.4f}" in line
    say("evaluate", "--length", 8, 16, run, "--json")  # of the recipe's own protocol
    assert [score["protocol"]["length"] for score in json.loads(capsys.readouterr().out)] == [8, 16]


def test_a_text_of_which_a_protocol_scores_less_is_that_much_shorter(run, capsys):
    say("evaluate", run, "--protocol", "adaptive-span-blocks", "--segment", 7, "--rows", 4, "--json")
    score = json.loads(capsys.readouterr().out)
    assert score["characters"] == score["bytes"] == score["tokens"]


def test_the_memory_is_chosen_at_evaluation(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text(TEXT)
    model = "--mixer SoftmaxAttention --model.block.mixer.positions SinusoidalRelative --span SegmentCache --memory 16"
    say("train", tmp_path / "novel.txt", "--folder", tmp_path / "run", *model.split(), *SMALL.split())
    flags = "--protocol cached-memory --segment 16 --memory 0 8 64 --clamp 400 --rows 8 --json"
    capsys.readouterr()
    say("evaluate", tmp_path / "run", *flags.split())
    scores = json.loads(capsys.readouterr().out)
    assert [score["protocol"]["memory"] for score in scores] == [0, 8, 64]
    assert len({score["nats"] for score in scores}) == 3


def test_another_text_can_be_scored_if_the_vocabulary_knows_it(run, capsys, tmp_path):
    (tmp_path / "other.txt").write_text(TEXT[:200])
    say("evaluate", run, "--text", tmp_path / "other.txt", "--json")
    assert json.loads(capsys.readouterr().out)["tokens"] == 199
    (tmp_path / "greek.txt").write_text("μῆνιν ἄειδε θεὰ")
    assert "the vocabulary has no 'μ'" in complaint(capsys, "evaluate", run, "--text", tmp_path / "greek.txt")


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--protocol cached-memry", "did you mean CachedMemory?"),
        ("--protocol carried-state --segmnt 8", "did you mean --segment?"),
        ("--splt test", "did you mean --split?"),
        ("--protocol carried-state --rows 0", "rows of CarriedState is at least 1; found 0"),
        ("--protocol carried-state --rows many", "--rows"),
        ("--protocol sliding-window --context 8 --stride 9", "a stride lies between 1 and the context of 8"),
        ("--protocol cached-memory", "memory"),
        ("--protocol adaptive-span-blocks --rows 1000", "ask for fewer rows"),
    ],
)
def test_a_protocol_that_cannot_be_had_is_refused(run, capsys, flags, words):
    assert words in complaint(capsys, "evaluate", run, *flags.split())


def test_generate_goes_on_from_the_prompt(run, capsys, tmp_path, monkeypatch):
    say("generate", run, "--prompt", "line 1", "--length", 20)
    text = capsys.readouterr().out
    assert text.startswith("line 1")
    assert len(text) == len("line 1") + 20 + 1
    (tmp_path / "prompt.txt").write_text("line 1")
    say("generate", run, "--prompt-file", tmp_path / "prompt.txt", "--length", 20)
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys, "stdin", open(tmp_path / "prompt.txt"))  # noqa: SIM115
    say("generate", run, "--prompt", "-", "--length", 20, "--json")
    assert json.loads(capsys.readouterr().out)["text"] == text[len("line 1") : -1]


def test_a_prompt_that_the_vocabulary_lacks_is_refused_before_anything_is_printed(run, capsys):
    with pytest.raises(SystemExit) as left:
        say("generate", run, "--prompt", "line #")
    shown = capsys.readouterr()
    assert (left.value.code, shown.out) == (2, "")
    assert "the vocabulary has no '#'" in shown.err


def test_resuming_a_finished_run_changes_nothing(run):
    before = (run / "metrics.jsonl").read_text()
    say("resume", run)
    assert (run / "metrics.jsonl").read_text() == before


def test_a_run_is_not_resumed_and_not_scored_on_another_text(run, capsys, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    recipe = json.loads((copy / "recipe.json").read_text())
    (tmp_path / "other.txt").write_text(TEXT[:-20])
    recipe["data"]["corpus"]["path"] = str(tmp_path / "other.txt")
    (copy / "recipe.json").write_text(json.dumps(recipe))
    assert "is not what it was" in complaint(capsys, "resume", copy)
    for verb in ("evaluate", "inspect"):
        assert "score another with --text FILE" in complaint(capsys, verb, copy)
    say("evaluate", copy, "--text", tmp_path / "other.txt")


def test_a_run_knows_its_text_wherever_one_stands(tmp_path, monkeypatch, capsys):
    """Another of the same name is not taken for it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "elsewhere/a.txt").write_text(TEXT[::-1])
    monkeypatch.chdir(tmp_path)
    flags = f"--corpus Text --path a.txt --folder run --resume auto --sample 0 {SMALL}".split()
    say("train", *flags)
    assert Recipe.read(tmp_path / "run/recipe.json").data.corpus.path == tmp_path / "a.txt"
    say("train", *flags)  # the same line is the same recipe
    scored = json.loads((tmp_path / "run/evaluation.json").read_text())
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    say("evaluate", "../run", "--json")
    assert json.loads(capsys.readouterr().out)["nats_per_token"] == scored["nats_per_token"]
    say("resume", "../run")


def test_a_run_can_be_tuned_on_another_text(run, tmp_path, capsys):
    (tmp_path / "more.txt").write_text(TEXT[::-1])
    say("train", tmp_path / "more.txt", "--from", run, "--folder", tmp_path / "tuned", "--steps", 2)
    recipe = Recipe.read(tmp_path / "tuned" / "recipe.json")
    assert recipe.run.start_from == run.resolve()
    assert recipe.data.corpus.name == "more"


def test_a_dry_run_speaks_of_the_vocabulary_that_would_be_used(run, tmp_path, capsys):
    (tmp_path / "few.txt").write_text("aba" * 1000)
    say("train", tmp_path / "few.txt", "--from", run, "--dry-run")
    known = len(set(TEXT))
    assert re.search(rf"vocabulary +{known} characters", capsys.readouterr().out)


def test_a_dry_run_refuses_what_cannot_be_built(capsys):
    assert "cannot be shared by 5 heads" in complaint(capsys, "train", "--heads", 5, "--dry-run")


def test_ls_shows_recipes_parts_and_corpora(capsys):
    say("ls")
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in ("tiny-shakespeare", "TinyShakespeare", "DPFP(nu=1)", "Delta(beta=0.5, ", "Muon")
    )
    say("ls", "corpora", "--json")
    assert list(json.loads(capsys.readouterr().out)) == ["corpora"]


def test_a_dry_run_tells_what_it_would_take_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    say("train", "--dry-run", "--steps", 10)
    shown = capsys.readouterr().out
    assert '"part": "GatedDelta"' in shown
    assert re.search(r"parameters +[\d,]+", shown)
    assert re.search(r"tokens a step +2,048", shown)
    assert re.search(r"memory, roughly +[1-9][\d,]* MiB", shown)
    assert not list(tmp_path.iterdir())


def test_parts_are_exchanged_by_name_and_fields_by_the_end_of_their_path():
    flags = "--feature-map DPFP --nu 2 --update-rule sum --key-scale=SumToOne --steps 7 --model.block.dropout 0.1"
    recipe = override(Recipe(), flags.split(), "test")
    mixer = recipe.model.block.mixer
    assert mixer.feature_map == DPFP(nu=2)
    assert mixer.update_rule == Sum()
    assert recipe.run.steps == 7
    assert recipe.model.block.dropout == 0.1


def test_a_part_may_need_what_is_said_beside_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some words. " * 400)
    flags = ["--order", "ShuffledDocuments", "--documents", ". "]
    for ordered in (flags, flags[2:] + flags[:2]):
        say("train", "text.txt", "--dry-run", *ordered)
        assert "ShuffledDocuments" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["---", "-x", "--rate=3", "-", "a=-b", "-a_b=c"])
def test_a_value_that_is_tied_to_its_flag_may_begin_and_go_on_as_it_likes(end):
    recipe = override(Recipe(), ["--feature-map=DPFP", f"--documents={end}", "--nu", "2"], "test")
    assert recipe.data.corpus.documents == end
    assert recipe.model.block.mixer.feature_map == DPFP(nu=2)


@pytest.mark.parametrize("flags", ["--seed -5", "--seed=-5", "--threshold -.5", "--threshold=-.5", "--threshold=-5e-1"])
def test_numbers_below_zero_are_values(flags):
    recipe = override(Recipe(schedule=Plateau()), flags.split(), "test")
    assert -5 in (recipe.run.seed, 10 * recipe.schedule.threshold)


def test_the_fields_of_a_part_that_may_be_absent_can_be_changed():
    flags = "--inner 99 --tracking WandB --project mine --carry --order Contiguous --no-keep-optimiser --clip None"
    recipe = override(Recipe(), flags.split(), "test")
    assert recipe.model.block.feed_forward.inner == 99
    assert recipe.run.tracking.project == "mine"
    assert recipe.run.carry
    assert recipe.run.clip is None


def test_parts_that_only_fit_together_can_be_exchanged_together():
    recipe = override(Recipe(), ["--feature-map", "Silu", "--key-scale", "UnitNorm"], "test")
    back = override(recipe, ["--key-scale", "SumToOne", "--feature-map", "EluPlusOne"], "test")
    assert back.model.block.mixer == Recipe().model.block.mixer


def test_what_an_exchanged_part_has_in_common_with_the_new_one_is_kept():
    changed, exchanged = "--heads 8 --inner 99 --rate 0.5", "--block PostNorm --optimiser SGD --schedule Constant"
    recipe = override(override(Recipe(), changed.split(), "test"), exchanged.split(), "test")
    assert recipe.model.block.mixer.heads == 8
    assert recipe.model.block.feed_forward.inner == 99
    assert recipe.optimiser == SGD(), "rates of different optimisers mean different things"
    assert override(recipe, ["--mixer", "SoftmaxAttention"], "test").model.block.mixer.heads == 8


def test_outer_parts_are_exchanged_before_inner_ones_whatever_the_order():
    flags = "--span Fixed --model.block.mixer.span.length 9 --mixer SoftmaxAttention --feed-forward none"
    recipe = override(Recipe(), flags.split(), "test")
    assert isinstance(recipe.model.block.mixer, SoftmaxAttention)
    assert recipe.model.block.mixer.span.length == 9
    assert recipe.model.block.feed_forward is None


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--updat-rule Sum", "did you mean --update-rule?"),
        ("--update-rule Smu", "did you mean Sum?"),
        ("--model.block.dropuot 0.1", "did you mean --model.block.dropout?"),
        ("--dropout 0.1", "--model.block.dropout, --model.embedding.dropout, --model.head.dropout: say which"),
        ("--steps many", "--run.steps"),
        ("--steps 0", "at least 1"),
        ("--sample -1", "sample of Run is 0 or more; found -1"),
        (
            "--feature-map Tanh --key-scale SumToOne",
            "SumToOne divides by a sum of features, and Tanh has negative ones",
        ),
        ("--heads 5", "cannot be shared by 5 heads"),
        ("--heads 0", "heads of FastWeight is at least 1; found 0"),
        ("--width 0", "width of LanguageModel is at least 1; found 0"),
        ("--feature-map DPFP --nu 0", "nu of DPFP is at least 1; found 0"),
        (
            "--update-rule NormalisedDelta --beta 1",
            "beta of NormalisedDelta is above 0 and below 1, or None; found 1.0",
        ),
        ("--model.block.dropout 1.5", "dropout of PreNorm is from 0 up to and without 1; found 1.5"),
        ("--mixer SoftmaxAttention --mixer.dropout 1.5", "dropout of SoftmaxAttention is from 0 up to and without 1;"),
        ("--mixer SoftmaxAttention --head-width 0", "head width of SoftmaxAttention is at least 1, or None; found 0"),
        ("--carry", "--order Contiguous"),
        ("--order ShuffledDocuments", "say what each of them ends with, --documents"),
        ("--clip -1", "clip of Run is 0 or more, or None; found -1.0"),
        ("--rate nan", "rate of Muon is 0 or more; found nan"),
        ("--cooldown 20", "cooldown of LinearCooldown is from 0 to 1; found 20.0"),
        ("--warmup -5", "warmup of LinearCooldown is 0 or more; found -5"),
        ("--threads 0", "threads of Run is at least 1, or None; found 0"),
        ("--device warp", "the device 'warp' cannot be used"),
        ("--device meta", "the device 'meta' cannot be used"),
        ("--device hpu", "the device 'hpu' cannot be used"),
        ("--optimiser AdamW --beta1 1.5", "beta1 of AdamW is from 0 up to and without 1; found 1.5"),
        ("--optimiser SGD --momentum -1", "momentum of SGD is from 0 up to and without 1; found -1.0"),
        ("--keep-optimiser", "say of which, --from RUN"),
        ("--tracking WandB", "pip install 'palimpsest[wandb]'"),
        ("--batch 1000000", "--batch"),
    ],
)
def test_a_mistake_gets_one_clear_line(capsys, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert words in complaint(capsys, "train", *flags.split())
    assert not [*tmp_path.iterdir()], "a recipe that cannot be begun leaves nothing behind"


def test_an_optimiser_that_torch_does_not_take_leaves_nothing_behind(capsys, tmp_path, monkeypatch):
    def refused(spec, groups):
        raise ValueError("no such momentum")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SGD, "over", refused)
    assert "there is no such SGD (no such momentum)" in complaint(capsys, "train", "--optimiser", "SGD")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--layers 2", "do not fit the recipe"),
        ("--keep-optimiser --optimiser SGD", "was trained with Muon, and SGD remembers other things"),
        ("--keep-optimiser --optimiser AdamW", "or add --optimiser Muon"),
    ],
)
def test_a_run_that_cannot_start_from_another_leaves_nothing_behind(run, capsys, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    assert words in complaint(capsys, "train", "--from", run, *flags.split())
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["tran"], "did you mean train?"),
        (["train", "tiny-shakespear"], "did you mean tiny-shakespeare?"),
        (["train", "nowhere.txt"], "no"),
        (["evaluate", "nowhere"], "there is no run nowhere"),
        (["resume", "."], "is not a run: there is no recipe.json"),
        (["resume", "file"], "file is not a run: there is no recipe.json"),
        (["train", "--from", "file"], "file is not a run: there is no recipe.json"),
        (["train", "--folder", "file"], "file cannot be made"),
        (["train", "--name", "x" * 256], "cannot be made (File name too long)"),
        (["train", "x" * 256 + ".txt"], "xxx.txt"),  # too long, or, since Python 3.14, not there
        (["train", "caf\udce9.txt"], r"caf\udce9.txt' is not UTF-8"),
        (["train", "--folder", "caf\udce9"], r"caf\udce9' is not UTF-8"),
        (["train", "--name", "caf\udce9"], r"caf\udce9' is not UTF-8"),
        (["generate", "nowhere", "--prompt", "a", "--prompt-file", "b"], "not by both"),
        (["generate", "nowhere", "--temperature", "nan"], "0 or more; found nan"),
    ],
)
def test_what_is_not_there_is_said_to_be_missing(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    for name in ("file", "caf\udce9.txt"):
        (tmp_path / name).write_text(TEXT)
    assert words in complaint(capsys, *arguments)
    assert not [*tmp_path.glob("**/*.json")]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("recipe.json", b'{"part', "recipe.json is not JSON"),
        ("recipe.json", b"\xe9", "recipe.json is not JSON"),
        ("corpus.json", b'{"train', "corpus.json is not JSON"),
        ("vocabulary.json", b'{"codec', "vocabulary.json is not JSON"),
        ("vocabulary.json", None, "vocabulary.json cannot be read (No such file or directory)"),
    ],
)
def test_a_file_of_a_run_that_is_cut_or_gone_is_named(run, capsys, tmp_path, name, content, words):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    assert words in complaint(capsys, "resume", copy)
    assert words in complaint(capsys, "evaluate", copy)


def test_a_folder_that_may_only_be_read_is_one_line(run, capsys, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", f"{run}/.lock")

    monkeypatch.setattr(os, "open", refused)
    assert f"{run}/.lock: Permission denied; " in complaint(capsys, "resume", run)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "empty"),
        (b"short", "no valid split"),
        (b"short " * 50, "--batch"),
        ("café".encode("latin-1") * 1000, "--vocabulary Bytes"),
    ],
    ids=["empty", "short", "shorter than a batch", "latin-1"],
)
def test_a_text_that_cannot_be_learned_from_is_refused_and_leaves_nothing_behind(
    capsys, tmp_path, monkeypatch, content, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(content)
    assert words in complaint(capsys, "train", "text.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_text_that_is_not_utf8_can_be_read_as_bytes(tmp_path):
    (tmp_path / "text.txt").write_bytes("café noir ".encode("latin-1") * 300)
    say("train", tmp_path / "text.txt", "--folder", tmp_path / "run", "--vocabulary", "Bytes", *SMALL.split())
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["bits_per_character"] is None


def test_runs_are_numbered_and_stdout_holds_the_result_alone(tmp_path):
    (tmp_path / "novel.txt").write_text(TEXT)
    for number in (1, 2):
        done = palimpsest("train", "novel.txt", *SMALL.split(), cwd=tmp_path)
        assert done.stdout.strip() == f"runs/novel-00{number}", done.stderr
    assert "nats" in done.stderr


RECIPE_OF_A_USER = """
from dataclasses import dataclass, replace
from palimpsest.memory.feature_maps import FeatureMap
from palimpsest.mixers import FastWeight
from palimpsest.recipes.tiny_shakespeare import with_mixer

@dataclass(frozen=True)
class Square(FeatureMap):
    \"\"\"x²\"\"\"
    power: int = 2
    non_negative = True

    def map(self, x):
        return x ** self.power

recipe = with_mixer("mine", FastWeight(Square()))
"""


def test_a_recipe_in_a_users_own_file_with_a_part_of_its_own_is_trained_and_found_again(tmp_path):
    (tmp_path / "my_recipe.py").write_text(RECIPE_OF_A_USER)
    done = palimpsest("train", "my_recipe.py", "--power", 4, *SMALL.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    part = json.loads((tmp_path / "runs/mine-001/recipe.json").read_text())["model"]["block"]["mixer"]["feature_map"]
    assert part == {"part": "my_recipe:Square", "power": 4}
    # -P, as for an installed script: Python itself does not look for modules where it is started
    command = [sys.executable, "-P", "-m", "palimpsest", "evaluate", "runs/mine-001"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "nats per token" in again.stdout, again.stderr


@pytest.mark.parametrize("name", ["json.py", slowly("os.py"), slowly("my-recipe.v2.py")])
def test_a_recipe_may_be_called_anything(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text(RECIPE_OF_A_USER)
    done = palimpsest("train", f"mine/{name}", "--folder", "run", *SMALL.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = palimpsest("evaluate", "run", cwd=tmp_path)
    assert "nats per token" in again.stdout, again.stderr
    (tmp_path / "mine" / name).unlink()
    assert "bring that file back" in palimpsest("evaluate", "run", cwd=tmp_path).stderr


# ------------------------------------------------------------------------------------------------------ for programs

FEW = "--every 5 --steps 10 --sequences 2 --batch 4 --processes 1 --device cpu --keys 3 --seed 1"
TINY = "--width 8 --heads 2 --layers 1 --tokens 12 --length 16 --pairs 2 --batch 2 --sequences 4 --steps 2 --device cpu"
SILENT = {"completion"}  # has nothing to report
IN_JSON = {  # what is asked, and what must be among the answer
    f"train novel.txt --folder new {SMALL}": {"run", "finished", "evaluation"},
    "train novel.txt --dry-run": {"recipe", "estimate"},
    "resume run": {"run", "finished", "evaluation"},
    "evaluate run": {"split", "protocol", "nats_per_token"},
    "evaluate run --split all": [0, 1],
    "generate run --length 5": {"prompt", "text", "checkpoint"},
    "inspect run --length 8": {"tokens", "layers"},
    "compare run other": {"page"},
    "retrieve run --legacy --processes 1 --device cpu --folder lines --minutes 0": {"results", "left", "files"},
    "retrieve sweep --settings 2 --rules fwm --end 20 --processes 1 --device cpu --folder lines --minutes 0": {
        "results",
        "left",
        "files",
    },
    f"retrieve test --folder memories {FEW}": {"folder", "results", "left", "files"},
    f"retrieve recall --folder memories {TINY}": {"folder", "results", "left", "files"},
    "retrieve draw memories": {"folder", "files", "agreement"},
    "data ls": {"text8", "enwik8"},
    "data": {"text8", "enwik8"},
    "data prepare text8": {"text8"},
    "import model.pt --from transformer-xl --data words --dataset wt103 --set mem_len=6 --folder imported": {"run"},
    "ls": {"recipes", "corpora", "update rule"},
    "doctor": {"works", "problems", "self_test"},
    "tune --forget": {"folder", "removed"},
}


@pytest.fixture(scope="module")
def desk(run, tmp_path_factory):
    """A folder with everything that those lines speak of; what one line makes, a later one may need."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(run, folder / "run")
    shutil.copytree(run, folder / "other")
    shutil.copytree(WORDS, folder / "words")
    (folder / "novel.txt").write_text(TEXT)
    torch.save(transformer_xl(vocabulary_from(WORDS, "wt103").size), folder / "model.pt")
    return folder


@pytest.fixture
def text8_is_prepared():
    made = not Text8.prepared().exists()
    Text8.prepared().mkdir(parents=True, exist_ok=True)
    yield
    if made:
        Text8.prepared().rmdir()


@pytest.mark.usefixtures("text8_is_prepared")
def test_with_json_standard_output_is_one_json_value(desk, capsys, monkeypatch):
    monkeypatch.chdir(desk)
    monkeypatch.setattr("palimpsest.cli.examination.OPTIONAL", {})
    monkeypatch.setattr("palimpsest.kernels.self_test.LENGTH", 20)
    assert {line.split()[0] for line in IN_JSON} == {*VERBS} - SILENT - {"translate"}  # which takes another kind of run
    for line, expected in IN_JSON.items():
        say(*line.split(), "--json")
        answer = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        found = {*answer} if isinstance(answer, dict) else {*range(len(answer))}
        assert found >= {*expected}, line


def test_what_is_trained_ends_with_its_evaluation(desk, capsys):
    say("resume", desk / "run", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer["finished"]
    assert answer["evaluation"] == json.loads((desk / "run" / "evaluation.json").read_text())
    assert answer["run"] == str(desk / "run")


def test_what_retrieve_measured_is_told(tmp_path, capsys):
    for _ in range(2):  # what is known is told as well as what is found
        say("retrieve", "test", "--folder", tmp_path, *FEW.split(), "--json")
        answer = json.loads(capsys.readouterr().out)
        assert [(one["keys"], one["seed"]) for one in answer["results"]] == [(3, 1)]
        assert answer["left"] == 0
        assert str(tmp_path / "report.html") in answer["files"]


def test_recall_stops_when_its_time_is_up_and_goes_on(tmp_path, capsys):
    for minutes, left in ((0, 1), (10, 0)):
        say("retrieve", "recall", "--folder", tmp_path, *TINY.split(), "--minutes", minutes, "--json")
        answer = json.loads(capsys.readouterr().out)
        assert (len(answer["results"]), answer["left"]) == (1 - left, left)


@pytest.mark.parametrize("action", ["test", "recall"])
def test_help_tells_what_belongs_to_the_action_itself(action, capsys):
    with pytest.raises(SystemExit):
        say("retrieve", action, "--help")
    told = capsys.readouterr().out
    assert all(f"--{name}" in told for name in ("label", "parts", "folder", "device", "processes", "minutes", "json"))


def test_a_number_that_is_none_is_null(capsys):
    print_json({"losses": [1.5, math.nan, (math.inf, -math.inf)]})
    assert json.loads(capsys.readouterr().out) == {"losses": [1.5, None, [None, None]]}


# -------------------------------------------------------------------------------------------------------- exit codes


def test_the_help_tells_every_exit_code():
    told = re.findall(r"^  (\d+) ", cli.HELP.partition("exit codes:")[2], re.MULTILINE)
    assert told == ["0", "1", "2", "130"]
    for code in told:
        assert re.search(rf"\b{code}\b", cli.__doc__ or "")


WILD = "--optimiser AdamW --rate 1e38"


def test_a_run_that_diverges_leaves_with_1(tmp_path, capsys):
    (tmp_path / "novel.txt").write_text(TEXT)
    with pytest.raises(SystemExit) as left:
        say("train", tmp_path / "novel.txt", "--folder", tmp_path / "run", *SMALL.split(), *WILD.split(), "--json")
    assert left.value.code == 1
    shown = capsys.readouterr()
    assert "palimpsest: " in shown.err
    assert not shown.out


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def outside(request):
    """Runs a line in a process of its own, whose output goes where it is sent."""

    def started(*arguments, **streams):
        command = [sys.executable, "-m", "palimpsest", *map(str, arguments)]
        environment = os.environ | {"PYTHONUNBUFFERED": request.param}
        return subprocess.run(command, env=environment, text=True, timeout=120, **streams)

    return started


@pytest.fixture
def unread():
    """A pipe from which nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize("line", ["--help", slowly("generate --help"), "ls"])
def test_what_nobody_reads_any_more_is_no_failure(outside, unread, line):
    done = outside(*line.split(), stdout=unread, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_run_goes_on_to_its_end_when_nobody_reads_what_it_tells(outside, unread, tmp_path):
    (tmp_path / "novel.txt").write_text(TEXT)
    line = "train", tmp_path / "novel.txt", "--folder", tmp_path / "run", *SMALL.split()
    assert outside(*line, stdout=unread, stderr=unread).returncode == 0
    assert (tmp_path / "run/evaluation.json").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is nothing that is always full")
@pytest.mark.parametrize("line", ["--help", slowly("generate --help"), slowly("ls"), slowly("evaluate RUN --json")])
def test_output_that_cannot_be_written_is_one_line(outside, run, line):
    with open("/dev/full", "w") as full:
        done = outside(*line.replace("RUN", str(run)).split(), stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert re.fullmatch(r"palimpsest: .*standard output.*No space left on device.*\n", done.stderr)
        assert outside("tran", stdout=full, stderr=full).returncode == 2


def printed_in(encoding, *arguments):
    command = [sys.executable, "-m", "palimpsest", *map(str, arguments)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.slow
def test_a_character_that_an_encoding_lacks_is_a_question_mark_and_any_other_is_itself(tmp_path):
    assert b"palimpsest VERB ?" in printed_in("ascii")
    assert "palimpsest VERB …".encode() in printed_in("utf-8")
    assert "palimpsest VERB …".encode("cp1252") in printed_in("cp1252")
    (tmp_path / "novel.txt").write_text("naïve λ\n" * 200)
    line = "train", tmp_path / "novel.txt", "--folder", tmp_path / "run", *SMALL.split(), "--sample", 0
    say(*line)
    written = {
        code: printed_in(code, "generate", tmp_path / "run", "--prompt", "naïve λ", "--length", 0)
        for code in ("utf-8", "latin-1", "ascii:backslashreplace")
    }
    assert written["utf-8"] == "naïve λ\n".encode()
    assert written["latin-1"] == "naïve ?\n".encode("latin-1")
    assert written["ascii:backslashreplace"] == b"na\\xefve \\u03bb\n"


def test_an_interrupt_with_nothing_to_save_leaves_with_130(monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("palimpsest.cli.ls.main", interrupted)
    with pytest.raises(SystemExit) as left:
        say("ls")
    assert left.value.code == 130


def test_a_run_that_is_stopped_and_saved_leaves_with_0_and_says_that_it_is_not_finished(tmp_path, monkeypatch, capsys):
    from palimpsest.training.log import Log

    tick = Log.tick
    monkeypatch.setattr(
        Log, "tick", lambda log, step: (tick(log, step), step == 2 and signal.raise_signal(signal.SIGINT))
    )
    (tmp_path / "novel.txt").write_text(TEXT)
    say("train", tmp_path / "novel.txt", "--folder", tmp_path / "run", *SMALL.split(), "--json")
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"run": str(tmp_path / "run"), "finished": False, "evaluation": None}
    monkeypatch.undo()
    say("resume", tmp_path / "run", "--json")
    assert json.loads(capsys.readouterr().out)["finished"]


def test_evaluate_says_when_it_computes_in_other_numbers_than_float32(run, capsys, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some virtual machines only claim to have bfloat16
    say("evaluate", run, "--precision", "bfloat-16", "--json")
    rounded = json.loads(capsys.readouterr().out)
    exact = json.loads((run / "evaluation.json").read_text())
    assert (rounded["precision"], exact["precision"]) == ("BFloat16", "Single")
    assert rounded["nats"] != exact["nats"]
    assert rounded["nats"] == pytest.approx(exact["nats"], rel=0.01)
    say("evaluate", run, "--precision", "bfloat-16")
    assert "BFloat16" in capsys.readouterr().out
