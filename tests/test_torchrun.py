"""torchrun starts, restarts and stops a run as it is told to."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import carried_out, on_ranks
from toys import TEXT, metrics

from palimpsest.experiment import Recipe, load
from palimpsest.training.checkpoint import Checkpoints

FLAGS = (
    "--batch 4 --segment 16 --width 24 --layers 2 --order Contiguous --carry --log-every 1 "
    "--validate-every 10 --save-every 5 --device cpu --threads 1 --resume auto"
)


def torchrun(text: Path, folder: Path, *flags: str) -> subprocess.Popen[str]:
    start = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 2 --monitor-interval 0.1"
    words = [*start.split(), "-m", "palimpsest", "train", str(text), "--folder", str(folder), *FLAGS.split(), *flags]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def process_of(rank: int, launcher: int) -> int:
    """Of those that torchrun has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and f"RANK={rank}\0" in f"\0{(folder / 'environ').read_text()}".replace("_RANK", ""):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"there is no process of rank {rank}")


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    path = folder / "metrics.jsonl"
    while not (path.exists() and f'"step": {step},' in path.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("spread", ["Sharded", "Replicated"])
def test_a_run_of_which_one_process_is_killed_ends_like_one_that_nobody_killed(tmp_path, spread):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(TEXT)
    process = torchrun(text, run, "--steps", "20", "--spread", spread)
    wait_for_step(run, 8, process)
    os.kill(process_of(1, process.pid), signal.SIGKILL)
    told, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert told.splitlines() == [str(run)], "one speaks for all"
    assert "resumed from step-000000" in said
    on_ranks(2, carried_out, Recipe.read(run / "recipe.json"), tmp_path / "whole")
    assert metrics(run) == metrics(tmp_path / "whole"), "bit for bit"
    mine, theirs = (load(folder, "latest").model.state_dict() for folder in (run, tmp_path / "whole"))
    assert all((mine[name] == theirs[name]).all() for name in mine)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("told", ["torchrun", "one of its processes"])
def test_a_signal_to_torchrun_or_to_one_process_saves_the_last_step_of_all(tmp_path, told):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(TEXT)
    process = torchrun(text, run, "--steps", "100000", "--spread", "Sharded")
    wait_for_step(run, 8, process)
    os.kill(process.pid if told == "torchrun" else process_of(1, process.pid), signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == (1 if told == "torchrun" else 0), said  # torchrun tells that it was stopped
    assert f"palimpsest resume {run}" in said
    saved = Checkpoints(run / "checkpoints").find("latest").name
    assert saved == f"step-{metrics(run)[-1]['step']:08d}"


@pytest.mark.slow
def test_the_script_that_kills_a_run_again_and_again_finds_it_as_it_would_have_been():
    script = Path(__file__).parents[1] / "scripts" / "stress_kills.py"
    told = subprocess.run([sys.executable, script, "--kills", "2", "--steps", "12"], capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "bit for bit" in told.stdout
