"""Published models have as many parameters as the originals' own code gives them, with the vocabularies they had."""

from pathlib import Path

import pytest
import torch

from palimpsest.attention.positions import QueryBiases
from palimpsest.cli import recipes
from palimpsest.cli.overrides import override

SCORES = Path(__file__).parent.parent / "docs" / "scores.md"
WIKITEXT_103, ONE_BILLION_WORD = 267_735, 793_471
COUNTS = {  # tokens, parameters
    "transformer-xl-enwik8-base": (204, 41_055_436),
    "transformer-xl-enwik8-large": (204, 277_231_820),
    "transformer-xl-text8-base": (27, 40_964_635),
    "transformer-xl-text8-large": (27, 277_050_395),
    "transformer-xl-wt103-base": (WIKITEXT_103, 151_107_538),
    "transformer-xl-wt103-large": (WIKITEXT_103, 285_170_506),
    "transformer-xl-lm1b-base": (ONE_BILLION_WORD, 357_812_082),
    "transformer-xl-lm1b-large": (ONE_BILLION_WORD, 841_295_982),
    "lmtool-standard-small": (WIKITEXT_103, 44_018_394),
    "lmtool-standard-medium": (WIKITEXT_103, 89_833_434),
    "lmtool-transformer-xl-medium": (WIKITEXT_103, 90_882_522),
    "lmtool-delta-elu-small": (WIKITEXT_103, 44_034_778),
    "lmtool-sum-elu-small": (WIKITEXT_103, 44_018_394),
    "lmtool-delta-dpfp-small": (WIKITEXT_103, 44_034_778),
    "lmtool-sum-dpfp-small": (WIKITEXT_103, 44_018_394),
    "lmtool-delta-favor-small": (WIKITEXT_103, 44_034_778),
    "lmtool-sum-favor-small": (WIKITEXT_103, 44_018_394),
    "lmtool-delta-elu-medium": (WIKITEXT_103, 89_866_202),
    "lmtool-sum-elu-medium": (WIKITEXT_103, 89_833_434),
    "lmtool-delta-dpfp-medium": (WIKITEXT_103, 89_866_202),
    "lmtool-sum-dpfp-medium": (WIKITEXT_103, 89_833_434),
    "lmtool-delta-favor-medium": (WIKITEXT_103, 89_866_202),
    "lmtool-sum-favor-medium": (WIKITEXT_103, 89_833_434),
    "lmtool-delta-elu-medium-carried": (WIKITEXT_103, 89_866_202),
    "recurrent-fwp-delta-net": (WIKITEXT_103, 44_034_778),
    "recurrent-fwp-delta-mlp": (WIKITEXT_103, 46_148_826),
    "recurrent-fwp-delta-delta-net": (WIKITEXT_103, 44_575_450),
    "recurrent-fwp-delta-rnn": (WIKITEXT_103, 44_575_450),
    "recurrent-fwp-delta-lstm": (WIKITEXT_103, 47_262_426),
    "recurrent-fwp-recurrent-delta-net": (WIKITEXT_103, 44_135_130),
    "recurrent-fwp-lstm": (WIKITEXT_103, 45_345_498),
    "adaptive-span-enwik8-small": (205, 6_480_621),
    "adaptive-span-enwik8": (205, 38_538_541),
    "adaptive-span-enwik8-large": (205, 208_910_221),
    "adaptive-span-text8": (28, 38_357_116),
    "adaptive-span-text8-large": (28, 208_638_172),
    "adaptive-span-enwik8-pers-small": (205, 38_501_725),
    "adaptive-span-enwik8-pers": (205, 114_017_773),
    "adaptive-span-wt103-pers": (WIKITEXT_103, 132_493_746),
}
# in our layers is also what all of them share, the query biases and the vectors of distances: theirs stand beside them
IN_LAYERS = {
    "transformer-xl-enwik8-base": 40_949_760,
    "transformer-xl-enwik8-large": 277_020_672,
    "transformer-xl-text8-base": 40_949_760,
    "transformer-xl-text8-large": 277_020_672,
    "transformer-xl-wt103-base": 41_066_400,
    "transformer-xl-wt103-large": 245_532_672,
    "transformer-xl-lm1b-base": 245_532_672,
    "transformer-xl-lm1b-large": 700_274_688,
}
IN_ONE_LAYER = {
    "adaptive-span-enwik8-small": 788_740,
    "adaptive-span-enwik8": 3_150_344,
    "adaptive-span-enwik8-large": 8_658_696,
    "adaptive-span-enwik8-pers-small": 2_098_184,
    "adaptive-span-enwik8-pers": 3_146_760,
}


OTHERS = {  # points of the originals' tables that are reached by flags
    ("lmtool-delta-dpfp-small", "--nu 3"): 44_034_778,
    ("lmtool-delta-elu-small", "--update-rule NormalisedDelta --read-out Normalised"): 44_034_778,
    ("recurrent-fwp-delta-net", "--mixer SlowLSTM"): 56_327_898,
    ("recurrent-fwp-delta-rnn", "--feature-map Softmax --key-scale Unscaled --feedback SoftmaxState"): 44_575_450,
    ("recurrent-fwp-delta-lstm", "--feedback SoftmaxState --candidate SigmoidCandidate"): 47_262_426,
    ("recurrent-fwp-delta-lstm", "--candidate SkippingCandidate"): 47_262_426,
    ("recurrent-fwp-lstm", "--mixer RNN"): 43_760_346,
}
UNPUBLISHED = ("enwik8-", "tiny-shakespeare", "wikitext-2", "enwiki", "shopping-lists", "multi30k", "wmt14")


def build(name):
    with torch.device("meta"):
        return recipes.find_recipe(name).model.build(COUNTS[name][0])


def count(module):
    """Of parameters that several parts share, each counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_a_published_model_has_the_parameters_of_the_original(name):
    assert count(build(name)) == COUNTS[name][1]


@pytest.mark.parametrize("name, flags", OTHERS, ids=" ".join)
def test_a_published_model_that_flags_make_has_the_parameters_of_the_original(name, flags):
    recipe = override(recipes.find_recipe(name), flags.split(), "palimpsest train")
    with torch.device("meta"):
        assert count(recipe.model.build(COUNTS[name][0])) == OTHERS[name, flags]


def test_a_delta_mlp_lacks_the_keys_and_values_that_the_original_makes_in_vain():
    model = recipes.find_recipe("recurrent-fwp-delta-mlp").model
    keys_and_values = 2 * (model.width + 4 * model.width) * model.width
    assert COUNTS["recurrent-fwp-delta-mlp"][1] + model.layers * keys_and_values == 48_770_266


@pytest.mark.parametrize("name", IN_LAYERS)
def test_the_layers_of_transformer_xl_have_the_parameters_of_the_original(name):
    blocks = build(name).blocks
    beside_theirs = sum(count(part) for part in blocks.modules() if isinstance(part, QueryBiases))
    assert count(blocks) - beside_theirs == IN_LAYERS[name]


@pytest.mark.parametrize("name", IN_ONE_LAYER)
def test_a_layer_of_adaptive_span_has_the_parameters_of_the_original(name):
    block = build(name).blocks[-1]
    assert count(block) - count(block.mixer.vectors) == IN_ONE_LAYER[name]


@pytest.mark.parametrize("name", COUNTS)
def test_a_published_model_is_spoken_of_with_its_count(name):
    parameters = f"{COUNTS[name][1]:,}"
    assert f"{parameters} parameters" in recipes.module_of(name).__doc__
    (row,) = (line for line in SCORES.read_text().splitlines() if f"`{name}`" in line)
    assert parameters in row


def test_every_recipe_of_a_published_model_is_counted():
    assert {*COUNTS} == {name for name in recipes.names() if not name.startswith(UNPUBLISHED)}
