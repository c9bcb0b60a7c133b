"""Laws of recipes: a value that JSON keeps whole, every one of which runs."""

import json
import sys
from dataclasses import dataclass

import pytest
import torch
from toys import metrics, quiet, toy

from palimpsest.cli import recipes
from palimpsest.cli.overrides import override
from palimpsest.data.standard import Standard
from palimpsest.errors import UserError
from palimpsest.experiment import Recipe, Translator, load, train
from palimpsest.experiment.estimate import estimate, saved_bytes, with_plain_vocabulary
from palimpsest.memory.feature_maps import FeatureMap
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.serialise import from_json, to_json
from palimpsest.spec import Spec

every_recipe = pytest.mark.parametrize("name", recipes.names())
every_part = pytest.mark.parametrize("part", Spec.variants(), ids=lambda part: part.__name__)


def round_trip(spec):
    return from_json(json.loads(json.dumps(to_json(spec))), type(spec))


@every_recipe
def test_every_recipe_equals_its_json_round_trip(name):
    recipe = recipes.find_recipe(name)
    assert round_trip(recipe) == recipe
    assert recipe.name == name


@every_part
def test_every_part_equals_its_json_round_trip(part):
    assert round_trip(part()) == part()


@every_recipe
def test_every_recipe_says_what_it_is_how_to_run_it_and_what_to_expect(name):
    words = recipes.module_of(name).__doc__
    assert recipes.summary(name)
    assert "palimpsest train" in words
    assert "nats" in words


@every_recipe
def test_every_recipe_trains_at_toy_size(name, tmp_path):
    run = train(toy(recipes.find_recipe(name)), tmp_path / "run", quiet())
    assert metrics(run)[-1]["step"] == 2
    trained = load(run)
    assert trained.translate(["a"]) if isinstance(trained, Translator) else trained.generate("a", length=3)


@every_recipe
def test_every_recipe_tells_what_it_would_take(name):
    recipe = toy(recipes.find_recipe(name))
    assert f"({recipe.data.shape})" in estimate(recipe)


def test_a_memory_of_hidden_states_takes_room():
    recipe = toy(recipes.find_recipe("transformer-xl-enwik8-base"))
    with torch.device("meta"):
        model, batch = with_plain_vocabulary(recipe.model).build(tokens=10), recipe.data.example()
    assert saved_bytes(model, batch, carry=True) > saved_bytes(model, batch, carry=False)


@every_recipe
def test_every_flag_that_a_recipe_speaks_of_changes_it(name):
    recipe = recipes.find_recipe(name)
    lines = [line.removeprefix("palimpsest train").split() for line in commands(name) if not line.startswith(OTHERS)]
    for flags in (line[line.index(first) :] for line in lines if (first := first_flag(line))):
        assert override(recipe, flags, "palimpsest train") != recipe


@every_recipe
def test_every_recipe_prepares_the_corpus_it_reads(name):
    corpus = recipes.find_recipe(name).data.corpus
    prepared = [line.split()[-1] for line in commands(name) if line.startswith("palimpsest data prepare")]
    assert prepared == ([corpus.shelf] if isinstance(corpus, Standard) else [])


OTHERS = ("palimpsest data", "palimpsest evaluate", "echo", "python")


def commands(name):
    """The indented lines of a recipe's words: commands, or flags alone."""
    lines = recipes.module_of(name).__doc__.splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


def first_flag(line):
    """The first that is a field of the recipe."""
    return next((word for word in line if word.startswith("--") and word != "--from"), None)


@dataclass(frozen=True)
class Cubed(FeatureMap):
    """A map that a user defined after everything was imported."""

    power: int = 3
    non_negative = False

    def map(self, x):
        return x**self.power


def with_mixer(mixer):
    return Recipe(model=LanguageModel(block=PreNorm(mixer=mixer)))


def test_a_part_defined_later_is_found_again():
    recipe = with_mixer(FastWeight(Cubed(power=5), update_rule=Sum(), key_scale=UnitNorm()))
    assert round_trip(recipe) == recipe
    assert to_json(Cubed())["part"] == f"{__name__}:Cubed"


def test_a_part_from_a_users_file_is_imported_when_it_is_needed(tmp_path, monkeypatch):
    (tmp_path / "my_map.py").write_text(
        "from dataclasses import dataclass\n"
        "from palimpsest.memory.feature_maps import FeatureMap\n"
        "@dataclass(frozen=True)\n"
        "class Fourth(FeatureMap):\n"
        '    """x⁴"""\n'
        "    non_negative = True\n"
        "    def map(self, x):\n"
        "        return x**4\n"
    )
    data = to_json(with_mixer(FastWeight()))
    data["model"]["block"]["mixer"]["feature_map"] = {"part": "my_map:Fourth"}
    with pytest.raises(UserError, match=r"my_map.*PYTHONPATH"):
        from_json(data, Recipe)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = from_json(data, Recipe)
    assert type(recipe.model.block.mixer.feature_map).__name__ == "Fourth"
    del sys.modules["my_map"]


def test_faults_in_a_recipe_are_all_named_at_once():
    data = to_json(Recipe())
    data["data"]["btach"] = 3
    data["run"]["steps"] = "many"
    with pytest.raises(UserError, match=r"(?s)btach.*steps|steps.*btach"):
        from_json(data, Recipe)


def test_an_unknown_part_gets_a_suggestion():
    data = to_json(Recipe())
    data["optimiser"] = {"part": "AdmaW"}
    with pytest.raises(UserError, match="AdamW"):
        from_json(data, Recipe)


def test_the_recipe_of_a_run_alone_rebuilds_it(tmp_path):
    first = train(toy(Recipe(name="again")), tmp_path / "first", quiet())
    again = train(Recipe.read(first / "recipe.json"), tmp_path / "again", quiet())
    assert metrics(first) == metrics(again)


def test_the_same_sentence_can_be_said_of_either_mixer():
    for mixer in (FastWeight(), SoftmaxAttention()):
        assert round_trip(with_mixer(mixer)).model.block.mixer == mixer
