"""What the docs say is true: their python blocks run, each by itself, their commands are understood, their links lead
somewhere, and every module is in the reference."""

import gc
import json
import re
import shlex
from pathlib import Path

import pytest
from toys import TEXT

from palimpsest.cli import main
from palimpsest.evaluation.perplexity import Protocol, Score
from palimpsest.experiment import Trained, Translator

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN, TRANSLATOR = "runs/tiny-shakespeare-001", "runs/shopping-lists-001"


def blocks(page: Path, *languages: str) -> list[str]:
    return [block for language, block in CODE.findall(page.read_text()) if language in languages]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


BLOCKS = [
    pytest.param(page, block, id=f"{name_of(page)}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "python"), start=1)
]


@pytest.mark.parametrize("page, block", BLOCKS)
def test_every_python_block_runs(page, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
    gc.collect()  # parts that were shown are not among the variants of other tests


def test_every_way_to_use_a_part_alone_is_checked_where_it_is_shown():
    shown = blocks(DOCS / "parts-alone.md", "python")
    assert len(shown) == 5
    assert all(re.search(r"^assert ", block, re.MULTILINE) for block in shown)


def commands(page: Path) -> list[str]:
    """Lines of bash blocks, and of those that are merely indented; not those that stand for many."""
    indented = re.findall(r"^    (palimpsest .*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    lines = [re.sub(r"^(srun )?torchrun .* -m palimpsest ", "palimpsest ", line) for line in lines]  # one of many
    return [
        line
        for line in indented + lines
        if line.startswith("palimpsest ") and not re.search("…|VERB|FIELD|/[A-Z]", line)
    ]


COMMANDS = list(dict.fromkeys(line for page in PAGES for line in commands(page)))
PARTS = """
from dataclasses import dataclass
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.mixers import RNN

@dataclass(frozen=True)
class Squares(EluPlusOne):
    pass

@dataclass(frozen=True)
class MyMixer(RNN):
    pass
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A folder with all that the commands speak of."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "my-novel.txt").write_text(TEXT)
    (folder / "my-texts.txt").write_text(TEXT.replace("\n", "\n\n"))
    (folder / "chats.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines()))
    (folder / "my_parts.py").write_text(PARTS)
    (folder / "pairs.tsv").write_text("a\tb\n" * 40)
    for language in ("en", "de"):
        (folder / f"a.{language}").write_text("a\n" * 40)
    few = ["--steps", "2", "--batch", "2", "--segment", "16", "--width", "24", "--layers", "1", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["train", "my-novel.txt", "--folder", RUN, *few])
        few = ["--steps", "2", "--pairs", "60", "--width", "24", "--layers", "1", "--threads", "1"]
        main(["train", "shopping-lists", "--folder", TRANSLATOR, *few])
    return folder


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    words = [run_of(word) if word == "RUN" or word.startswith("runs/") else word for word in words]
    return ["tiny-shakespeare" if word == "RECIPE" else word for word in words]


def run_of(word: str) -> str:
    return TRANSLATOR if word == TRANSLATOR else RUN


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.split()[1] == "train"])
def test_every_recipe_that_is_shown_can_be_made(line, desk, monkeypatch, capsys):
    monkeypatch.setattr("palimpsest.cli.train.estimate", lambda recipe: "")  # its corpus may not be prepared here
    monkeypatch.chdir(desk)
    main([*words_of(line), "--dry-run"])
    assert re.search('"part": "(Translation)?Recipe"', capsys.readouterr().out)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.split()[1] == "evaluate"])
def test_every_score_that_is_shown_can_be_asked_for(line, desk, monkeypatch, capsys):
    asked = []
    for kind in (Trained, Translator):
        monkeypatch.setattr(kind, "evaluate", lambda _, split, protocol: asked.append(protocol) or score_by(protocol))
    monkeypatch.chdir(desk)
    main(words_of(line))
    assert asked
    assert capsys.readouterr().out


def score_by(protocol: Protocol) -> Score:
    return Score(protocol, nats=1.0, tokens=1, characters=1, bytes=1, by_position=[])


@pytest.mark.parametrize("line", [line for line in COMMANDS if re.match("palimpsest retrieve (test|recall)", line)])
def test_every_memory_that_is_shown_can_be_tested(line, desk, monkeypatch, capsys):
    monkeypatch.chdir(desk)
    monkeypatch.syspath_prepend(desk)
    with pytest.raises(SystemExit) as done:  # a flag that nothing has is refused before help is given
        main([*words_of(line), "--help"])
    assert done.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS if not re.match("palimpsest (train|evaluate|-|retrieve (test|recall))", line)]
)
def test_every_flag_that_is_shown_is_known(line, capsys):
    words = words_of(line)
    with pytest.raises(SystemExit) as done:
        main([*words[: 2 if words[0] in ("retrieve", "data") else 1], "--help"])
    assert done.value.code == 0
    told = capsys.readouterr().out
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert not [flag for flag in flags if not re.search(rf"{flag}\b", told)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_a_page_links_to_exists(page):
    prose = re.sub(r"`[^`\n]+`", "", CODE.sub("", page.read_text()))
    links = re.findall(r"\]\((?!http|#)([^)#]+)", prose)
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_place_a_page_links_to_has_one_name_on_the_site_and_on_github(page):
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", CODE.sub("", page.read_text()))
    for path, anchor in links:
        headings = re.findall(
            r"^#+ (.+)$", CODE.sub("", (page.parent / path if path else page).read_text()), re.MULTILINE
        )
        kept = [re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings]
        assert anchor in {title.replace(" ", "-") for title in kept}, "GitHub has a hyphen for every space"
        assert anchor in {re.sub(r"[\s-]+", "-", title) for title in kept}, "the site one for several"


def test_every_module_that_has_a_door_is_in_the_reference():
    told = {name for page in DOCS.glob("api/*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)}
    rooms = ("experiment", "mixers", "memory", "attention", "models", "data", "training", "evaluation")
    files = [file for room in rooms for file in (ROOT / "palimpsest" / room).glob("[!_]*.py")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    assert names <= told
    assert all((ROOT / name.replace(".", "/")).with_suffix(".py").exists() for name in told)
