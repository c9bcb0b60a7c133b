"""Recipes, and the flags they speak of, say what the importer makes of the settings of the originals' scripts."""

import pytest

from palimpsest.attention.positions import NoPositions
from palimpsest.cli import recipes
from palimpsest.cli.overrides import override
from palimpsest.legacy.from_transformer_xl import DEFAULTS, block_of
from palimpsest.legacy.settings import Settings

SMALL = {"n_head": 8, "d_head": 16, "d_model": 128, "d_inner": 2048, "dropout": 0.1, "proj_dim": 8, "n_roll": 2}
MEDIUM = SMALL | {"d_head": 32, "d_model": 256, "proj_dim": 16}
SKIP = {"skip_attn_normalization": True}
RECURRENT = SMALL | SKIP | {"pre_lnorm": True}
MAPS = {"elu": 4, "favor": 5, "dpfp": 6}
NORMALISED = "--read-out Normalised --read-out.epsilon 1e-5"

SCRIPTS = {  # recipe, flags: settings
    **{(f"lmtool-delta-{name}-small", ""): SMALL | SKIP | {"attn_type": 20 + kind} for name, kind in MAPS.items()},
    **{(f"lmtool-delta-{name}-medium", ""): MEDIUM | SKIP | {"attn_type": 20 + kind} for name, kind in MAPS.items()},
    **{(f"lmtool-delta-{name}-small", NORMALISED): SMALL | {"attn_type": 20 + kind} for name, kind in MAPS.items()},
    **{(f"lmtool-sum-{name}-small", ""): SMALL | {"attn_type": 30 + kind} for name, kind in MAPS.items()},
    **{(f"lmtool-sum-{name}-medium", ""): MEDIUM | {"attn_type": 30 + kind} for name, kind in MAPS.items()},
    **{
        (f"lmtool-delta-{name}-medium", f"--update-rule NormalisedDelta {NORMALISED}"): MEDIUM
        | {"attn_type": 40 + kind}
        for name, kind in MAPS.items()
    },
    ("lmtool-delta-dpfp-small", "--nu 3"): SMALL | SKIP | {"attn_type": 26, "n_roll": 3},
    ("lmtool-delta-elu-medium-carried", ""): MEDIUM | SKIP | {"attn_type": 24},
    ("lmtool-delta-elu-medium-carried", NORMALISED): MEDIUM | {"attn_type": 24},
    ("lmtool-delta-elu-medium-carried", f"--update-rule Sum --key-scale Unscaled {NORMALISED}"): MEDIUM
    | {"attn_type": 34},
    ("recurrent-fwp-delta-net", ""): RECURRENT | {"attn_type": 24},
    ("recurrent-fwp-delta-net", "--mixer SlowLSTM"): RECURRENT | {"attn_type": 324},
    ("recurrent-fwp-delta-mlp", ""): RECURRENT | {"attn_type": 54},
    ("recurrent-fwp-delta-mlp", "--depth 2"): RECURRENT | {"attn_type": 54, "fast_net_depth": 2},
    ("recurrent-fwp-delta-delta-net", ""): RECURRENT | {"attn_type": 64},
    ("recurrent-fwp-delta-rnn", ""): RECURRENT | {"attn_type": 134},
    ("recurrent-fwp-delta-rnn", "--block PostNorm"): SMALL | SKIP | {"attn_type": 134},
    (
        "recurrent-fwp-delta-rnn",
        "--feature-map Softmax --key-scale Unscaled --feedback SoftmaxState --feedback.epsilon 0 "
        "--read-out.scale 1 --out.dropout 0.1",
    ): RECURRENT | {"attn_type": 124},
    ("recurrent-fwp-delta-lstm", ""): RECURRENT | {"attn_type": 254},
    (
        "recurrent-fwp-delta-lstm",
        "--feedback SoftmaxState --feedback.epsilon 0 --candidate SigmoidCandidate --mixer.scale 1 --out.dropout 0.1",
    ): RECURRENT | {"attn_type": 224},
    ("recurrent-fwp-delta-lstm", "--candidate SigmoidCandidate"): RECURRENT | {"attn_type": 234},
    ("recurrent-fwp-delta-lstm", "--candidate SkippingCandidate"): RECURRENT | {"attn_type": 244},
    ("recurrent-fwp-recurrent-delta-net", ""): RECURRENT | {"attn_type": 934},
    ("recurrent-fwp-lstm", ""): RECURRENT | {"attn_type": 90},
    ("recurrent-fwp-lstm", "--mixer RNN"): RECURRENT | {"attn_type": 80},
}


@pytest.mark.parametrize("name, flags", SCRIPTS)
def test_a_recipe_is_the_originals_script_in_our_words(name, flags):
    recipe = recipes.find_recipe(name)
    recipe = override(recipe, flags.split(), "palimpsest train") if flags else recipe
    assert recipe.model.block == block_of(Settings(DEFAULTS | SCRIPTS[name, flags], "lmtool-fwms"))


@pytest.mark.parametrize("name", sorted({name for name, _ in SCRIPTS}))
def test_a_model_that_carries_its_memory_on_has_no_positions_and_is_scored_so(name):
    recipe = recipes.find_recipe(name)
    assert recipe.run.carry == (recipe.model.embedding.positions == NoPositions())
    assert recipe.run.carry == (type(recipe.evaluation).__name__ == "CarriedState")


def test_the_flags_for_all_words_before_as_context_make_a_model_whose_segments_do_not_matter():
    flags = "--block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState"
    for name in ("recurrent-fwp-delta-rnn", "recurrent-fwp-recurrent-delta-net", "recurrent-fwp-lstm"):
        recipe = override(recipes.find_recipe(name), flags.split(), "palimpsest train")
        assert recipe.run.carry
        assert recipe.model.segment_invariant
