"""`palimpsest tune`, as a person meets it."""

import json
import re
from dataclasses import dataclass, replace

import pytest
import torch
from toys import toy

from palimpsest.cli import main, tune
from palimpsest.cli.recipes import find_recipe
from palimpsest.data.streams import Contiguous
from palimpsest.errors import UserError
from palimpsest.kernels.fused import tuned
from palimpsest.kernels.trust import HAS_TRITON

with_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cut:
    columns: int
    warps: int = 4


def complaint(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """One with a GPU on which two things were found."""
    from palimpsest.kernels.tuning import Call, Improvement

    asked = {}
    call = Call("memory_scan", (torch.zeros(2, 3), None), count=12)
    found = [Improvement(call, Cut(32), Cut(16, 2), 0.6, 0.4, tried=9, failed=2, off=1)]
    found += [Improvement(replace(call, kernel="relative_attention", count=1), Cut(32), Cut(32), 0.6, 0.6, tried=9)]

    def search(recipe, run, seconds):
        asked.update(recipe=recipe, run=run, seconds=seconds)
        return found

    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tune, "refuse", lambda: None)
    monkeypatch.setattr(tune, "search", search)
    return asked


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses_in_one_line(capsys):
    said = complaint(capsys, "tune")
    assert re.search(
        r"tune` times kernels on an NVIDIA GPU, and torch \S+ finds none here: run it on the machine", said
    )


def test_without_triton_it_refuses_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tune, "HAS_TRITON", False)
    assert "Triton, which is not installed here: pip install triton" in complaint(capsys, "tune")


@pytest.mark.parametrize("seconds", ["0", "-3", "soon", "nan"])
def test_seconds_are_a_number_above_zero(capsys, seconds):
    assert f"--seconds takes a number above 0, not '{seconds}'" in complaint(capsys, "tune", "--seconds", seconds)


def test_a_flag_that_nothing_has_is_told(capsys):
    assert "unknown flag --second: did you mean" in complaint(capsys, "tune", "--second", 3)


@with_triton
def test_it_tells_what_was_found_and_where_that_is_written(machine, capsys):
    main(["tune"])
    first, problem, second, _, last = capsys.readouterr().out.splitlines()
    assert first == (
        "memory_scan, 12 a step: 0.600 → 0.400 ms, 1.50 times faster: columns 32 → 16, warps 4 → 2 "
        "(9 tried, 2 not to be had, 1 off)"
    )
    assert problem == "  float32[2×3] -"
    assert second == "relative_attention, 1 a step: 0.600 → 0.600 ms, as shipped (9 tried)"
    assert re.fullmatch(r"written to \S+/cache/tuned", last)
    assert machine["seconds"] == tune.SECONDS
    assert machine["recipe"] == find_recipe("tiny-shakespeare")


@with_triton
def test_for_programs_it_prints_json(machine, capsys):
    main(["tune", "--json", "--seconds", "5"])
    told = json.loads(capsys.readouterr().out)
    assert told["found"][0]["found"] == {"settings": {"columns": 16, "warps": 2}, "milliseconds": 0.4}
    assert told["found"][0]["times_faster"] == pytest.approx(1.5)
    assert machine["seconds"] == 5.0


@with_triton
def test_fields_of_the_recipe_are_flags(machine):
    main(["tune", "tiny-shakespeare", "--batch", "3", "--precision", "BFloat16"])
    assert machine["recipe"].data.batch == 3
    assert type(machine["recipe"].run.precision).__name__ == "BFloat16"


@with_triton
def test_a_run_is_tuned_with_its_own_recipe_and_vocabulary(machine, tmp_path):
    (tmp_path / "novel.txt").write_text("a novel, and so on. " * 200)
    few = [
        "--steps",
        "1",
        "--batch",
        "2",
        "--segment",
        "16",
        "--width",
        "24",
        "--layers",
        "1",
        "--threads",
        "1",
        "--sample",
        "0",
    ]
    main(["train", str(tmp_path / "novel.txt"), "--folder", str(tmp_path / "run"), *few])
    main(["tune", str(tmp_path / "run")])
    assert machine["run"] == tmp_path / "run"
    assert machine["recipe"].data.segment == 16
    steps = tune.first_steps(machine["recipe"], machine["run"], CPU)
    next(steps)


def test_what_was_found_can_be_forgotten(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path))
    (tmp_path / tuned.SHELF).mkdir()
    (tmp_path / tuned.SHELF / "memory_scan-0123.json").write_text("{}")
    main(["tune", "--forget"])
    assert capsys.readouterr().out.startswith(f"1 table removed from {tmp_path / tuned.SHELF}: ")
    main(["tune", "--forget", "--json"])
    assert json.loads(capsys.readouterr().out)["removed"] == 0


@pytest.mark.parametrize("name", ["tiny-shakespeare", "tiny-shakespeare-transformer-xl", "shopping-lists"])
def test_steps_are_those_of_training_and_leave_nothing_behind(name, monkeypatch, tmp_path):
    recipe = toy(find_recipe(name))
    monkeypatch.chdir(tmp_path)
    steps = tune.first_steps(recipe, None, CPU)
    for _ in range(2):
        next(steps)
    assert not [*tmp_path.iterdir()]


def test_state_is_carried_where_the_recipe_carries_it(monkeypatch):
    recipe = toy(find_recipe("tiny-shakespeare"))
    data, run = replace(recipe.data, order=Contiguous()), replace(recipe.run, carry=True)
    handed, usual = [], tune.Step.__call__

    def seen(step, batch, count, state):
        handed.append(state)
        return usual(step, batch, count, state)

    monkeypatch.setattr(tune.Step, "__call__", seen)
    steps = tune.first_steps(replace(recipe, data=data, run=run), None, CPU)
    for _ in range(2):
        next(steps)
    assert handed[0] is None
    assert handed[1] is not None


@with_triton
def test_a_step_that_asks_for_no_fused_kernel_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(tune, "calls_of", lambda *given: [])
    with pytest.raises(UserError, match=r"a step of \S+ asks for none of memory_scan, .*there is nothing to tune"):
        tune.search(find_recipe("tiny-shakespeare"), None, 1.0)
