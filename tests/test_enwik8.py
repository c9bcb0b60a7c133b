"""The benchmark that compares three models on enwik8: they differ in their mixers alone, and what was found is kept."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys import quiet, toy

from palimpsest.cli import recipes
from palimpsest.evaluation.perplexity import SlidingWindow
from palimpsest.experiment import load, train

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import enwik8 as benchmark


def test_the_three_models_differ_in_nothing_but_their_mixers_and_how_many_steps_fit():
    made = [recipes.find_recipe(name) for name in benchmark.COLOURS]
    assert len({(r.data, r.optimiser, r.schedule, r.evaluation, r.model.width, r.model.layers) for r in made}) == 1
    softmax, delta, hybrid = (recipe.model.block for recipe in made)
    assert (hybrid.usual, hybrid.other) == (delta, softmax)
    assert replace(delta, mixer=softmax.mixer) == softmax
    for recipe in made:
        with torch.device("meta"):
            network = recipe.model.build(tokens=256)
        assert sum(parameter.numel() for parameter in network.parameters()) <= 45_000_000


def test_newlines_are_left_out_of_the_second_number_and_of_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "CONTEXT", 16)
    monkeypatch.setattr(benchmark, "STRIDE", 8)
    run = train(toy(recipes.find_recipe("enwik8-softmax")), tmp_path / "run", quiet())
    found = benchmark.score_of(run)
    test = load(run, "latest").tokens().splits["test"]
    newlines = bytes(test.ids.tolist()).count(b"\n")
    assert found["targets"] == test.targets
    assert found["targets_without_newlines"] == test.targets - newlines
    score = load(run, "latest").evaluate(test, SlidingWindow(16, 8))
    assert found["bits_per_byte"] == pytest.approx(score.nats_per_token / math.log(2), rel=1e-6)


def test_what_was_found_before_stays(tmp_path, monkeypatch, capsys):
    one = {"parameters": 10, "bits_per_byte": 1.5, "bits_per_byte_without_newlines": 1.6, "seconds": {"all": 7.0}}
    one |= {event: [{"step": 1, "tokens": 20, "seconds": 5.0, "nats": 1.0}] for event in ("train", "valid")}
    results, given = tmp_path / "found.json", ["enwik8.py", "--output", str(tmp_path / "found.json")]
    results.write_text(json.dumps({"enwik8-delta": one}))
    monkeypatch.setattr(benchmark, "carry_out", lambda name, runs, flags, begun: one | {"bits_per_byte": len(flags)})
    monkeypatch.setattr(
        sys, "argv", [*given, "--recipes", "enwik8-hybrid", "--steps", "3", "--curves", str(tmp_path / "a.svg")]
    )
    benchmark.main()
    assert [(name, each["bits_per_byte"]) for name, each in json.loads(results.read_text()).items()] == [
        ("enwik8-delta", 1.5),
        ("enwik8-hybrid", 2),
    ]
    assert "| enwik8-delta | 10 | 1.5000 | 1.6000 | 20 | 7 |" in capsys.readouterr().out
    assert (tmp_path / "a.svg").stat().st_size > 1000
