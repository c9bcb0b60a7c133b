"""How a run shows that it moves: a bar on a terminal, one line in a notebook, plain lines in a file."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from palimpsest.training.log import Log, NotebookCell

STEPS = 500
NOTEBOOK = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch
import palimpsest
from palimpsest.recipes.tiny_shakespeare import recipe
from toys import toy
torch.set_num_threads(1)
palimpsest.train(toy(recipe, steps=40, validate_every=20, save_every=40), Path({folder!r}))
"""


@pytest.fixture
def shown(monkeypatch):
    """What IPython is asked to show: a list of the states of each output."""
    outputs: list[list[str]] = []

    def display(data, raw, display_id):
        outputs.append([data["text/plain"]])
        update = lambda data, raw: outputs[-1].append(data["text/plain"])  # noqa: E731
        return SimpleNamespace(update=update)

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return outputs


def follow(path, console):
    with Log(path / "metrics.jsonl", STEPS, console) as log:
        for step in range(1, STEPS + 1):
            log.tick(step)
            if step % 10 == 0:
                log.write("train", step, nats=1.0, tokens_per_second=1000.0)
        log.write("valid", STEPS, nats=2.0)


def test_a_file_gets_a_plain_line_for_each_record(tmp_path):
    file = io.StringIO()
    follow(tmp_path, Console(file=file, force_jupyter=False))
    lines = file.getvalue().splitlines()
    assert len(lines) == STEPS // 10 + 1
    assert lines[0].split()[:3] == ["train", "step", f"10/{STEPS}"]
    assert "\x1b" not in file.getvalue()


def test_a_notebook_gets_one_line_that_is_not_written_too_often(tmp_path, shown, monkeypatch):
    console = Console(force_jupyter=True)
    printed = []
    monkeypatch.setattr(console, "print", lambda line, **_: printed.append(line))
    follow(tmp_path, console)
    (states,) = shown
    assert len(states) < 20
    assert f"{STEPS}/{STEPS} 1.0000 nats" in states[-1]
    assert len(printed) == 1
    assert "valid" in printed[0]


def test_every_tick_is_shown_to_who_waits_long_enough(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(NotebookCell, "PAUSE", 0.0)
    console = Console(force_jupyter=True)
    monkeypatch.setattr(console, "print", lambda line, **_: None)
    follow(tmp_path, console)
    (states,) = shown
    assert len(states) == STEPS + 1
    bars = [state.count("━") for state in states]
    assert bars == sorted(bars)
    assert bars[0] < bars[-1]


@pytest.mark.slow
def test_training_in_a_notebook_leaves_a_few_lines(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = NOTEBOOK.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "run"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    texts = [output["data"]["text/plain"] for output in notebook.cells[0].outputs if "data" in output]
    assert len(texts) == len(notebook.cells[0].outputs) < 12
    (bar,) = [text for text in texts if text.startswith("training")]
    assert "40/40" in bar
    assert len([text for text in texts if text.startswith(" valid")]) == 2
