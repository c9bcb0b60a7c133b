"""Tuning on a GPU: what a recipe asks for is tried with other settings, and what is found is used and agrees."""

import json
from dataclasses import replace

import pytest
import torch
from toys import toy

from palimpsest.cli import main, tune
from palimpsest.cli.recipes import find_recipe
from palimpsest.kernels import trust
from palimpsest.training.precision import BFloat16

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _nothing_was_found_before(monkeypatch, tmp_path):
    from palimpsest.kernels.fused import tuned

    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path))
    monkeypatch.setenv(trust.CHOICE, "all")
    monkeypatch.setattr(trust, "VERDICTS", {})
    tuned.read_again()
    yield
    tuned.read_again()


def calls_of(name):
    recipe = toy(find_recipe(name), device="cuda")
    recipe = replace(recipe, run=replace(recipe.run, precision=BFloat16()))
    return tune.calls_of(recipe, None, torch.device("cuda", 0))


@pytest.mark.parametrize("name", ["tiny-shakespeare", "tiny-shakespeare-transformer-xl"])
def test_what_is_found_is_used_and_agrees(name, tmp_path):
    from palimpsest.kernels.candidates import TUNABLE
    from palimpsest.kernels.fused import attention, scan, tuned
    from palimpsest.kernels.tuning import compare, replay, run

    used = {
        "memory_scan": lambda inputs: scan.problem({}, scan.Inputs(*inputs)).settings,
        "relative_attention": lambda inputs: attention.Problem({}, *inputs).settings,
    }
    call = calls_of(name)[0]
    tunable = TUNABLE[call.kernel]
    shipped = tunable.shipped(call.inputs)
    expected = replay(call, shipped)
    warps = next(name for name in tuned.numbers_of(shipped) if name.endswith("warps"))
    other = tuned.with_numbers(shipped, {warps: 8 if tuned.numbers_of(shipped)[warps] != 8 else 4})
    tuned.remember(call.kernel, call.inputs, other)
    assert used[call.kernel](call.inputs) == other
    compare(replay(call, other), expected, call.allowed)
    made, gradients = run(call)
    assert torch.equal(made[0], replay(call, other).results[0])
    assert len(gradients) > 1
    tuned.forget()
    assert used[call.kernel](call.inputs) == shipped


def test_a_recipe_is_tuned(capsys, tmp_path):
    few = ["--batch", "8", "--segment", "128", "--width", "48", "--layers", "2", "--precision", "BFloat16"]
    main(["tune", "tiny-shakespeare", *few, "--seconds", "20", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {each["kernel"] for each in told["found"]} == {"memory_scan"}
    for each in told["found"]:
        assert each["times_faster"] >= 1.0
        assert each["shipped"]["milliseconds"] > 0
        assert each["calls"] == 2
    better = [each for each in told["found"] if each["times_faster"] > 1.0]
    kept = [json.loads(file.read_text())["problems"] for file in (tmp_path / "tuned").glob("*.json")]
    assert {problem for problems in kept for problem in problems} == {each["problem"] for each in better}
