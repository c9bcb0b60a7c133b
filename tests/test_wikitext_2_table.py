"""The script that compares eight models on WikiText-2: its flags make them, and its table is of what is finished."""

import json
import sys
from math import log
from pathlib import Path

import pytest

from palimpsest.cli import recipes
from palimpsest.cli.overrides import override
from palimpsest.data.streams import Contiguous

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import wikitext_2_table as script


def test_the_eight_models_differ_in_nothing_but_map_rule_and_carrying():
    made = {}
    for point in script.POINTS:
        name, *flags = point.flags()
        made[point] = override(recipes.find_recipe(name), flags, "palimpsest train")
    assert len({*made.values()}) == len(made) == 8
    for point, recipe in made.items():
        memory = recipe.model.block.mixer
        assert type(memory.update_rule).__name__ == point.rule
        assert type(memory.feature_map).__name__ == script.MAPS[point.feature_map]
        assert recipe.run.carry == (point.reading == "carried")
    assert (
        len({(r.data, r.optimiser, r.schedule, r.run.steps, r.model.width, r.model.layers) for r in made.values()}) == 1
    )
    assert all(recipe.data.order == Contiguous() for recipe in made.values())


def test_the_table_has_mean_and_spread_of_the_finished_runs(tmp_path):
    point = script.Point("Delta", "DPFP", "carried")
    for seed, nats in {1: log(100) - 0.1, 3: log(100) + 0.1}.items():
        folder = point.folder(tmp_path, seed)
        folder.mkdir()
        (folder / "evaluation.json").write_text(json.dumps({"nats_per_token": nats}))
    *_, row = script.table(tmp_path, [1, 2, 3]).splitlines()
    assert row == "| Delta | DPFP | carried | 2 | 4.6052 | 0.1414 | 100.0 |"


@pytest.mark.parametrize("kept, verb", [("evaluation.json", None), ("recipe.json", "resume"), (None, "train")])
def test_what_is_finished_is_not_run_again_and_what_was_stopped_goes_on(kept, verb, tmp_path, monkeypatch):
    point, said = script.POINTS[0], []
    options, flags = script.parse(["--runs", str(tmp_path), "--steps", "7"])
    if kept:
        point.folder(tmp_path, 1).mkdir()
        (point.folder(tmp_path, 1) / kept).write_text("{}")
    monkeypatch.setattr(script.subprocess, "run", lambda command, **_: said.append(command) or Done())
    assert script.carry_out(point, 1, options, flags) == 0
    assert [command[3] for command in said] == ([verb] if verb else [])
    assert "--steps" in said[0] if verb == "train" else True


class Done:
    returncode, stderr = 0, ""
