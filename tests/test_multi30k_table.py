"""The script that compares seven recipes on Multi30k: they differ in their attentions, and it makes a table."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from palimpsest.cli.overrides import override
from palimpsest.cli.recipes import find_recipe
from palimpsest.experiment import TranslationRecipe
from palimpsest.models.block import PreNorm
from palimpsest.models.translation_model import TranslationModel

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import multi30k_table as script


def recipe_of(point: script.Point) -> TranslationRecipe:
    """As `palimpsest train` understands what the script tells it."""
    name, *flags = point.flags()
    return override(find_recipe(name), flags, "palimpsest train")  # pyright: ignore[reportReturnType]


def test_the_recipes_differ_in_nothing_but_their_attentions():
    recipes = [recipe_of(point) for point in script.POINTS]
    assert len({recipe.model for recipe in recipes}) == len(script.POINTS)
    plain = TranslationModel()
    same = {
        replace(
            recipe,
            name="",
            model=replace(
                recipe.model,
                encoder=plain.encoder,
                cross=plain.cross,
                block=replace(recipe.model.block, mixer=PreNorm().mixer),
            ),
        )
        for recipe in recipes
    }
    assert len(same) == 1


def finished(folder: Path, bleu: float) -> None:
    folder.mkdir()
    test = {"bleu": bleu, "chrf": 60.0, "nats_per_token": 1.5}
    (folder / script.SCORED).write_text(json.dumps(test))
    (folder / script.FINISHED).write_text(json.dumps({**test, "bleu": bleu + 1}))
    (folder / "environment.json").write_text("{}")
    lines = [
        {"event": "train", "step": 5, "tokens": 10, "nats": 2.0, "seconds": 90.0, "tokens_per_second": 1000.0},
        {"event": "valid", "step": 5, "tokens": 10, "nats": 1.6, "bleu": 30.0},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_table_has_mean_and_spread_of_the_finished_runs(tmp_path):
    softmax, linear, *_ = script.POINTS
    finished(softmax.folder(tmp_path, 1), bleu=38.0)
    finished(softmax.folder(tmp_path, 2), bleu=39.0)
    finished(linear.folder(tmp_path, 1), bleu=35.0)
    _, _, *rows = script.table(tmp_path, [1, 2, 3]).splitlines()
    assert rows == [
        "| softmax | 2 | 38.50 ± 0.71 | 60.00 ± 0.00 | 1.500 ± 0.000 | 1.5 | 1,000 |",
        "| linear, elu + 1 | 1 | 35.00 | 60.00 | 1.500 | 1.5 | 1,000 |",
    ]
    (found,) = script.collected(tmp_path, [1, 3])["multi30k-softmax"].values()
    assert (found["test"]["bleu"], found["valid"]["bleu"]) == (38.0, 39.0)
    script.draw(tmp_path, [1], tmp_path / "curves.svg")
    assert "nats per sub-word" in (tmp_path / "curves.svg").read_text()


@pytest.mark.parametrize("point", [point for point in script.POINTS if point.recipe == "multi30k-favor"])
def test_features_of_favor_are_as_many_as_the_table_says(point):
    model = recipe_of(point).model
    for part in (model.encoder, model.cross, model.block.mixer):
        assert f"FAVOR+, {2 * part.feature_map.directions} features" == point.label


@pytest.mark.parametrize("kept, verb", [("evaluation.json", None), ("recipe.json", "resume"), (None, "train")])
def test_what_is_finished_is_not_run_again_and_what_was_stopped_goes_on(kept, verb, tmp_path, monkeypatch):
    point, said = script.POINTS[0], []
    options, flags = script.parse(["--runs", str(tmp_path), "--steps", "7"])
    if kept:
        point.folder(tmp_path, 1).mkdir()
        (point.folder(tmp_path, 1) / kept).write_text("{}")
    monkeypatch.setattr("subprocess.run", lambda command, **_: said.append(command) or Done())
    assert script.carry_out(point, 1, options, flags) == 0
    assert [command[3] for command in said] == ([verb] if verb else [])


class Done:
    returncode, stderr = 0, ""
