"""What the README says is true: its commands run, in its order, with a few steps."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from toys import TEXT

from palimpsest.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FEW = ["--steps", "2", "--batch", "2", "--segment", "16", "--width", "24", "--layers", "1", "--threads", "1"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("palimpsest ")]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """A folder with the text that the README speaks of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-novel.txt").write_text(re.sub(r"\d", "one", TEXT))  # in the alphabet of Tiny Shakespeare
    return tmp_path


def test_every_command_and_every_python_block_runs_in_its_order(desk, capsys):
    verbs = set()
    for command in commands():
        verbs.add(command[0])
        main(command + (FEW if command[0] == "train" else []))
    assert verbs == {"train", "evaluate", "generate", "inspect", "compare", "resume", "ls", "doctor"}
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("target, ends", [("train", "palimpsest train"), ("test", "pytest")])
def test_the_two_make_commands_install_and_run(target, ends):
    assert re.search(rf"^make {target}\b", "\n".join(blocks("bash")), re.MULTILINE)
    command = ["make", "--no-print-directory", "-n", "-B", target]
    # it may be make that runs us, which hands on what it was told
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "ARGS"}
    plan = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    assert "requirements.lock" in plan
    assert plan.strip().splitlines()[-1].strip().endswith(ends)


def test_every_path_the_readme_links_to_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
