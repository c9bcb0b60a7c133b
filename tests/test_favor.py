"""FAVOR+ in all its forms: as the originals have it and stabilised, of directions that stay and that are redrawn."""

from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO

import pytest
import torch
from closeness import close
from torch import Tensor
from toys import metrics, quiet, toy, train_until_the_power_goes

from palimpsest.cli import main
from palimpsest.data.retrieval import Capacity
from palimpsest.data.streams import Contiguous
from palimpsest.errors import UserError
from palimpsest.evaluation.perplexity import CarriedState
from palimpsest.experiment import Recipe, load, resume, train
from palimpsest.experiment.retrieval import Retrieval
from palimpsest.legacy.favor import TransposedFavor
from palimpsest.legacy.from_lmtool_memory import translate_mixer
from palimpsest.legacy.from_transformer_xl import DEFAULTS
from palimpsest.legacy.settings import Settings
from palimpsest.memory.feature_maps import Favor, FeatureMap, StabilisedFavor
from palimpsest.memory.key_scales import SumToOne, UnitNorm, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.memory.update_rules import Decay, Delta, GatedSum, Sum
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.recall import recall_of
from palimpsest.models.block import Hybrid, PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.retrieval_model import ProjectedPairs

WIDTH, LENGTH = 32, 40
BARE = Favor(epsilon=0.0)
STABLE = StabilisedFavor(epsilon=0.0)
PERFORMER = FastWeight(BARE, Unscaled(), Sum(), Normalised(epsilon=1e-18), heads=1)
STABLE_PERFORMER = replace(PERFORMER, feature_map=STABLE)


def performing(spec: FastWeight, x: Tensor, width: int = WIDTH) -> Tensor:
    """What is read where queries, keys and values are what came in."""
    torch.manual_seed(1)  # for gates
    mixer = spec.build(width).to(x.dtype)
    with torch.no_grad():
        mixer.project.weight.copy_(torch.eye(width).repeat(3, 1))
        mixer.out.weight.copy_(torch.eye(width))
        return mixer(x)[0]


def exactly(x: Tensor) -> Tensor:
    """What random features read in float64, from the logarithms of their kernel."""
    projected = x.double() @ BARE.build(WIDTH).matrix.to(x.dtype).double()
    x = x.double()
    logs = torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2
    scores = torch.logsumexp(logs[:, :, None] + logs[:, None], dim=-1)
    return scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf).softmax(-1) @ x


def text(square: float, **options) -> Tensor:
    """Tokens that are vectors of this squared length, give or take a tenth."""
    x = torch.randn(2, LENGTH, WIDTH, **options)
    return x / x.norm(dim=-1, keepdim=True) * (square * torch.empty(2, LENGTH, 1).uniform_(0.9, 1.1)).sqrt()


# ------------------------------------------------------------------------------------------------ the stabilised form


@pytest.mark.parametrize("rule", [Sum(), Decay(), GatedSum()], ids=repr)
def test_a_stabilised_performer_is_the_performer(rule):
    x = text(8.0, dtype=torch.float64)
    ours, theirs = (replace(spec, update_rule=rule) for spec in (STABLE_PERFORMER, PERFORMER))
    close(performing(ours, x), performing(theirs, x))


@pytest.mark.parametrize("scale", [SumToOne(floor=0.0), UnitNorm(epsilon=0.0)], ids=repr)
def test_scaled_keys_are_the_same_with_and_without_the_stabiliser(scale):
    x = text(8.0, dtype=torch.float64)
    spec = FastWeight(BARE, scale, Delta(), Plain(), heads=1)
    close(performing(replace(spec, feature_map=STABLE), x), performing(spec, x))


@pytest.mark.parametrize("square", (1, 16, 144))
def test_the_stabilised_form_is_right_in_float32_where_the_bare_one_vanishes(square):
    x = text(square)
    right, bare = exactly(x), performing(PERFORMER, x)
    close(performing(STABLE_PERFORMER, x), right, 1e-4)
    if square <= 16:
        close(bare, right, 1e-4)
    else:
        assert bare.norm() < 0.5 * right.norm()


def test_the_stabilised_form_is_finite_where_the_bare_one_overflows():
    """A feature may be as large as exp(|ω|²/2), which grows with the width of a head."""
    wide = 256
    x = BARE.build(wide).matrix.T[None, :8]  # keys that are directions
    assert performing(PERFORMER, x, wide).isnan().any()
    assert performing(STABLE_PERFORMER, x, wide).isfinite().all()


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("square", (16, 64, 144))
def test_half_precision_costs_the_stabilised_form_no_more_than_its_own_rounding(square):
    x = text(square).bfloat16()
    with torch.backends.mkldnn.flags(enabled=False):  # which on some machines does not know this type
        close(performing(STABLE_PERFORMER, x), exactly(x), 2**-7)


def test_keys_may_grow_along_a_segment_beyond_all_that_a_number_can_hold():
    """Early keys are written, and read, before the later ones outweigh them by hundreds of orders of magnitude."""
    lengths = torch.linspace(16.0, 1.0, LENGTH)[:, None]  # the longer a key, the smaller its features
    x = text(1.0) * lengths
    close(performing(STABLE_PERFORMER, x), exactly(x), 1e-4)


def test_the_gradient_of_the_stabilised_form_is_right_in_float32():
    def gradient(spec, dtype):
        torch.manual_seed(1)
        mixer, x = spec.build(WIDTH).to(dtype), text(16.0).to(dtype).requires_grad_()
        mixer(x)[0].square().sum().backward()
        return x.grad

    close(gradient(STABLE_PERFORMER, torch.float32), gradient(PERFORMER, torch.float64), 1e-4)


@pytest.mark.parametrize("feature_map, alive", [(Favor(), False), (StabilisedFavor(), True)], ids=repr)
def test_long_keys_still_learn_where_they_are_stabilised(feature_map, alive):
    mixer = replace(PERFORMER, feature_map=feature_map, read_out=Normalised()).build(WIDTH)
    with torch.no_grad():
        mixer.project.weight.copy_(torch.eye(WIDTH).repeat(3, 1))
    mixer(text(1024.0))[0].square().sum().backward()
    gradient = mixer.project.weight.grad[: 2 * WIDTH]
    assert gradient.isfinite().all()
    assert gradient.any() == alive


def test_a_page_in_other_units_is_recalled_alike():
    questions = torch.randn(2, 6, WIDTH), torch.randint(5, (2, 6)), torch.randn(2, 3, WIDTH)
    heard = torch.randn(2, 6, 7), torch.randn(2, 3, 7)
    ours, theirs = (recall_of(spec, 7, WIDTH, 5)(*questions, *heard) for spec in (STABLE_PERFORMER, PERFORMER))
    close(ours, theirs, 1e-5)


# ------------------------------------------------------------------------------------------------- directions redrawn


def test_directions_are_redrawn_after_so_many_steps_and_at_no_other_time():
    features = Favor(redraw=2).build(4)
    first, x = features.matrix.clone(), torch.randn(3, 4)
    for _ in range(3):
        features.train()(x)
        features.eval()(x)
    features.after_step()
    assert torch.equal(features.matrix, first)
    features.after_step()
    second = features.matrix.clone()
    assert not torch.equal(second, first)
    features.after_step()
    assert torch.equal(features.matrix, second)


def test_directions_stay_unless_they_are_to_be_redrawn():
    features, chance = Favor().build(4), torch.get_rng_state()
    first = features.matrix.clone()
    features.after_step()
    assert torch.equal(features.matrix, first)
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize("feature_map", [Favor(6, redraw=1), TransposedFavor(6, redraw=1)], ids=repr)
def test_redrawn_directions_are_drawn_as_the_first_ones(feature_map):
    features = feature_map.build(6)
    features.after_step()
    squared = features.matrix @ features.matrix.T
    if type(feature_map) is Favor:
        squared = features.matrix.T @ features.matrix
    close(squared, squared.diag().diag(), 1e-6)


def test_directions_are_redrawn_no_more_often_than_every_step():
    with pytest.raises(UserError, match="every 1, 2, 3"):
        Favor(redraw=0)


@pytest.mark.parametrize("one, other", [(None, 3), (3, None)])
def test_directions_that_stay_and_directions_that_do_not_can_start_from_each_other(one, other):
    source, target = (Favor(redraw=redraw).build(4) for redraw in (one, other))
    source.initialise(torch.Generator().manual_seed(5))
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.matrix, source.matrix)


def performer(feature_map: FeatureMap, **run) -> Recipe:
    model = LanguageModel(block=PreNorm(mixer=replace(PERFORMER, feature_map=feature_map, heads=4)))
    return toy(Recipe(name="toy", model=model), **{"steps": 4, "save_every": 1, "validate_every": 4} | run)


def matrices(folder) -> list[Tensor]:
    weights = load(folder, "latest").model.state_dict()
    return [weight for name, weight in weights.items() if name.endswith("matrix")]


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)


def test_a_run_that_redraws_goes_on_where_it_was(tmp_path, briefly):
    recipe = performer(Favor(directions=5, redraw=2))
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "cut", 3)
    resumed = resume(tmp_path / "cut", quiet())
    assert metrics(resumed) == metrics(whole)
    assert all(torch.equal(*pair) for pair in zip(matrices(resumed), matrices(whole), strict=True))


def test_every_layer_redraws_its_own_directions_and_each_step_others(tmp_path, briefly):
    early, late = (
        matrices(train(performer(Favor(5, redraw=1), steps=steps), tmp_path / f"{steps}", quiet())) for steps in (1, 2)
    )
    drawn = [*early, *late]
    assert len(drawn) == 4
    assert not any(torch.equal(one, other) for i, one in enumerate(drawn) for other in drawn[:i])


def test_the_pieces_of_a_batch_are_read_under_one_matrix(tmp_path, briefly):
    whole, cut = (
        train(performer(Favor(5, redraw=1), accumulation=pieces), tmp_path / f"{pieces}", quiet()) for pieces in (1, 2)
    )
    assert all(torch.equal(*pair) for pair in zip(matrices(whole), matrices(cut), strict=True))
    assert metrics(whole)[-1]["nats"] == pytest.approx(metrics(cut)[-1]["nats"], rel=1e-5)


# --------------------------------------------------------------------------------------------- … and a state carried


def carried(feature_map: FeatureMap) -> Recipe:
    recipe = performer(Favor())
    data, run = replace(recipe.data, order=Contiguous()), replace(recipe.run, carry=True)
    return replace(recipe, data=data, run=run, model=performer(feature_map).model)


def test_a_state_is_not_carried_while_directions_are_redrawn():
    assert carried(Favor()).run.carry
    with pytest.raises(UserError, match=r"cannot be carried while Favor is drawn anew.*--redraw None"):
        carried(Favor(redraw=100))


def test_it_is_refused_wherever_in_the_model_they_are():
    inner = PreNorm(mixer=FastWeight(StabilisedFavor(redraw=1), Unscaled(), Sum(), Normalised()))
    recipe = carried(Favor())
    with pytest.raises(UserError, match="StabilisedFavor"):
        replace(recipe, model=replace(recipe.model, block=Hybrid(PreNorm(), Hybrid(PreNorm(), inner, every=2))))


def test_the_command_line_says_why_and_what_to_do():
    flags = ["train", "tiny-shakespeare-performer", "--redraw", "10", "--carry", "--order", "Contiguous", "--dry-run"]
    with redirect_stderr(StringIO()) as said, pytest.raises(SystemExit) as end:
        main(flags)
    assert end.value.code
    assert "a page written under one draw cannot be read under the next" in " ".join(said.getvalue().split())
    for way_out in ("--redraw None", "--no-carry"):
        main([*flags, *way_out.split()])


def test_a_model_that_was_trained_so_is_evaluated_with_its_state_carried(tmp_path, briefly):
    recipe = replace(performer(Favor(5, redraw=1)), evaluation=CarriedState(8))
    run = train(recipe, tmp_path / "run", quiet())
    before = matrices(run)
    assert load(run).generate("a", length=3)
    assert all(torch.equal(*pair) for pair in zip(matrices(run), before, strict=True))


def test_a_retrieval_run_does_not_redraw_and_says_so():
    with pytest.raises(UserError, match="leave redraw at None"):
        Retrieval(Capacity(), ProjectedPairs(replace(PERFORMER, feature_map=Favor(redraw=1))))


@pytest.mark.parametrize("carry, redraw", [(False, 1), (True, None)])
def test_the_originals_directions_stay_where_its_pages_are_carried(carry, redraw):
    settings = DEFAULTS | {"attn_type": 25, "n_head": 2, "d_head": 4, "proj_dim": 8, "carry_over_fast_weight": carry}
    assert translate_mixer(Settings(settings, "lmtool-fwms")).feature_map == TransposedFavor(8, redraw=redraw)
