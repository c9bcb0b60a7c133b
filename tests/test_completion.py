"""The shell completes verbs, recipes, runs, flags and parts, and does not wait for torch to do so."""

import re
import shutil
import stat
import subprocess
import sys

import pytest

from palimpsest.cli import VERBS, main
from palimpsest.cli.completion import GRAMMARS, SCRIPTS, complete
from palimpsest.cli.overrides import spelled, walk
from palimpsest.cli.recipes import find_recipe, names
from palimpsest.evaluation.decoding import Decoding
from palimpsest.evaluation.perplexity import Protocol
from palimpsest.experiment import Recipe

TAKE_NO_FLAGS = {"data", "retrieve", "completion"}  # those of the first two belong to their actions


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with two runs, and with one that is none."""
    for name in ("runs/novel-001", "runs/novel-002", "elsewhere/old"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.json").touch()
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ours(kind):
    """The parts of a kind, those aside that other tests define."""
    return {part.__name__ for part in kind.variants() if part.__module__.startswith("palimpsest.")}


@pytest.mark.parametrize(
    "line, words",
    [
        ("ev", ["evaluate"]),
        ("--v", ["--version"]),
        ("train tiny-shakespeare-kimi", ["tiny-shakespeare-kimi-delta"]),
        ("train --upd", ["--update-rule"]),
        ("train --update-rule Gated", ["GatedSum", "GatedDelta"]),
        ("train --update-rule=GatedS", ["--update-rule=GatedSum"]),
        ("train --update-rule = GatedS", ["GatedSum"]),  # as bash cuts it
        ("train --model.block.feed", ["--model.block.feed-forward"]),
        ("train --model.block.mixer.update-rule Dec", ["Decay"]),
        ("train --feed-forward n", ["none"]),
        ("train --dry", ["--dry-run"]),
        ("train --steps 2", []),
        ("train --from ", ["runs/novel-001", "runs/novel-002"]),
        ("resume ", ["runs/novel-001", "runs/novel-002"]),
        ("evaluate --split test runs/novel-002", ["runs/novel-002"]),
        ("evaluate --split te", ["test"]),
        ("evaluate --protocol sl", ["sliding-window"]),
        ("evaluate elsewhere/", ["elsewhere/old"]),
        ("evaluate --ch", ["--checkpoint"]),
        ("evaluate runs/novel-001 --json ", ["runs/novel-001", "runs/novel-002"]),
        ("compare runs/novel-001 ", ["runs/novel-001", "runs/novel-002"]),
        ("generate --checkpoint b", ["best"]),
        ("inspect --device c", ["cpu", "cuda"]),
        ("data p", ["prepare"]),
        ("data prepare wiki", ["wikitext-103", "wikitext-2"]),
        ("data prepare --fr", ["--from"]),
        ("import model.pt --from adap", ["adaptive-span"]),
        ("retrieve sw", ["sweep"]),
        ("retrieve run --attention d", ["dpfp"]),
        ("retrieve test --fol", ["--folder"]),
        ("retrieve test --feature-map DP", ["DPFP"]),
        ("ls r", ["recipes"]),
        ("doctor --c", ["--compile"]),
        ("tune runs/", ["runs/novel-001", "runs/novel-002"]),
        ("tune --sec", ["--seconds"]),
        ("tune --precision BF", ["BFloat16"]),
        ("completion f", ["fish"]),
        ("nonsense ", []),
    ],
)
def test_a_word_becomes_what_it_could_be(desk, line, words):
    assert complete(line.split(" ")) == words


def test_every_field_of_every_recipe_is_a_flag_and_every_part_a_word():
    flags = {*complete(["train", "--"])}
    fields = {(path, kind) for recipe in [Recipe(), *map(find_recipe, names())] for path, kind, *_ in walk(recipe)}
    for path, kind in fields:
        short, whole = f"--{spelled(path[-1:])}", f"--{spelled(path)}"
        assert {short, short.replace("--", "--no-")} & flags, whole
        if kind is not None:
            assert whole in complete(["train", whole])
            assert {*complete(["train", whole, ""])} >= ours(kind), whole


def test_every_protocol_is_offered_and_understood():
    offered = [word for word in complete(["evaluate", "--protocol", ""]) if word != "recipe"]
    names = {part.lower() for part in ours(Protocol) | ours(Decoding)}
    assert {word.replace("-", "") for word in offered} == names


def test_every_verb_has_a_grammar():
    assert {name.split()[0] for name in GRAMMARS} == {*VERBS}


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name not in TAKE_NO_FLAGS])
def test_the_flags_that_are_offered_are_those_of_the_help(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = {*re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)}
    offered = {*complete([*name.split(), "--"])}
    if GRAMMARS[name].spec is None:
        assert offered == {flag for flag in shown if flag.replace("--no-", "--") not in shown - {flag}}
    else:
        assert offered & {"--json", "--help"} == {"--json", "--help"}


def test_completing_does_not_wait_for_torch():
    words = ["train", "--update-rule", ""]
    program = f"import sys; from palimpsest.cli import main; main(['completion', '--words', *{words}])"
    check = "assert not {'torch', 'numpy', 'tyro', 'rich'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", f"{program}; {check}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Delta" in done.stdout.split()


def test_an_unknown_shell_is_told_the_known_ones(capsys):
    with pytest.raises(SystemExit) as left:
        main(["completion", "tcsh"])
    assert left.value.code == 2
    assert "There are: bash, fish, zsh" in capsys.readouterr().err


# each shell is asked what it would offer after a line, its own machinery aside where it needs a terminal
ASK = {
    "bash": "COMP_WORDS=({line}); COMP_CWORD={last}; _palimpsest; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
    "zsh": "words=({line}); CURRENT={last}+1; _palimpsest",
    "fish": 'complete -C "{plain}"',
}
BEFORE = {
    "bash": "",
    "zsh": "compdef() {{ }}; compadd() {{ print -l ${{(P)2}} }}; _files() {{ print a file }}\n",
    "fish": "",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_in_the_shell_itself(shell, desk, capsys):
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} on this machine")
    command = desk / "bin" / "palimpsest"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m palimpsest "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    main(["completion", shell])
    script = BEFORE[shell].format() + capsys.readouterr().out

    def ask(*words):
        line = " ".join(f"'{word}'" for word in ("palimpsest", *words))
        asked = ASK[shell].format(line=line, last=len(words), plain=" ".join(("palimpsest", *words)))
        environment = {"PATH": f"{command.parent}:/usr/bin:/bin", "HOME": str(desk)}
        done = subprocess.run(
            [program, "-c", f"{script}\n{asked}"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert not done.stderr
        return {word.split("\t")[0] for word in done.stdout.split("\n") if word}  # fish says more after a tab

    assert ask("gen") == {"generate"}
    assert ask("train", "--update-rule", "Gated") == {"GatedSum", "GatedDelta"}
    assert ask("evaluate", "") == {"runs/novel-001", "runs/novel-002"}
