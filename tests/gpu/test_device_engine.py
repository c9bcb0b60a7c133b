"""The engine on a GPU: recorded steps are the steps they were recorded from, and compiled ones nearly so."""

from dataclasses import replace

import pytest
import torch
from toys import metrics, quiet, toy

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, Fixed, SegmentCache
from palimpsest.cli import recipes
from palimpsest.errors import UserError
from palimpsest.evaluation.perplexity import Segments
from palimpsest.experiment import load, resume, train
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.memory.feature_maps import DPFP
from palimpsest.mixers import FastWeight, SoftmaxAttention
from palimpsest.models.block import PostNorm, PreNorm
from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.training.averages import ExponentialAverage
from palimpsest.training.compilation import Blocks, Whole
from palimpsest.training.optimisers import SGD, Adagrad, AdamW, Muon
from palimpsest.training.precision import BFloat16, Float16, Single
from palimpsest.training.schedules import Constant

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MIXERS = {
    "delta": FastWeight(heads=2),
    "dpfp": FastWeight(DPFP(nu=2), heads=2),
    "rotary": SoftmaxAttention(span=Fixed(16), heads=2),
    "transformer-xl": SoftmaxAttention(SinusoidalRelative(), SegmentCache(16), heads=2, dropout=0.1),
    "spans": SoftmaxAttention(SharedRelative(64), Adaptive(64, ramp=8, initial=0.3), heads=2),
}
# with rates that float32, in which recorded steps find them, has exactly
OPTIMISERS = {"adamw": AdamW(2**-10), "sgd": SGD(2**-6, momentum=0.9), "adagrad": Adagrad(2**-7, clip=0.03)}
every_mixer = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)


@pytest.fixture
def recipe():
    found = toy(recipes.find_recipe("tiny-shakespeare-transformer-xl"), steps=12, device="cuda", log_every=4)
    run = replace(found.run, validate_every=6, save_every=5, average=ExponentialAverage(0.5))
    data = replace(found.data, batch=4, segment=32)
    return replace(found, data=data, run=run, evaluation=Segments(32), schedule=Constant())


def ended(recipe, folder):
    """What a run told, and its weights."""
    train(recipe, folder, quiet())
    told = [(line["step"], line["nats"]) for line in metrics(folder) if line["event"] == "train"]
    return told, load(folder, "latest", device="cpu").model.state_dict()


def assert_alike(one, other, tolerance):
    for (step, mine), (same, theirs) in zip(one[0], other[0], strict=True):
        assert step == same
        assert mine == pytest.approx(theirs, rel=tolerance)
    for name, weight in other[1].items():
        difference = (one[1][name].double() - weight.double()).norm()
        assert difference <= tolerance * weight.double().norm() + 1e-9, name


def plain_and_recorded(recipe, mixer, tmp_path):
    recipe = replace(recipe, model=replace(recipe.model, block=PostNorm(mixer, dropout=0.1)))
    runs = {"plain": recipe.run, "recorded": replace(recipe.run, replay=True)}
    return [ended(replace(recipe, run=run), tmp_path / name) for name, run in runs.items()]


@pytest.fixture
def in_float64():
    """Where rounding is too small to be seen after a dozen steps of optimisers that divide by it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
@every_mixer
def test_a_recorded_step_is_the_step_it_was_recorded_from(recipe, tmp_path, mixer, optimiser, in_float64):
    plain, recorded = plain_and_recorded(replace(recipe, optimiser=optimiser), mixer, tmp_path)
    assert_alike(recorded, plain, 1e-8)


@every_mixer
def test_a_recorded_step_of_fused_kernels_is_the_step_it_was_recorded_from(recipe, tmp_path, mixer):
    plain, recorded = plain_and_recorded(replace(recipe, optimiser=SGD(rate=0.01)), mixer, tmp_path)
    assert_alike(recorded, plain, 1e-4)


def test_a_recorded_step_of_muon_which_rounds_to_bfloat16_is_nearly_the_step(recipe, tmp_path):
    plain, recorded = plain_and_recorded(replace(recipe, optimiser=Muon()), MIXERS["delta"], tmp_path)
    for (_, mine), (_, theirs) in zip(recorded[0], plain[0], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


def test_a_recorded_run_resumes_as_if_it_had_never_been_stopped(recipe, tmp_path):
    recipe = replace(recipe, optimiser=SGD(momentum=0.9), run=replace(recipe.run, replay=True, accumulation=2))
    whole = ended(recipe, tmp_path / "whole")
    train(replace(recipe, run=replace(recipe.run, steps=5)), tmp_path / "cut", quiet())
    text = (tmp_path / "cut" / "recipe.json").read_text()
    (tmp_path / "cut" / "recipe.json").write_text(text.replace('"steps": 5', '"steps": 12'))
    resume(tmp_path / "cut", quiet())
    one, other = (load(tmp_path / run, "latest", device="cpu").model.state_dict() for run in ("cut", "whole"))
    for name, weight in other.items():
        torch.testing.assert_close(one[name], weight, rtol=1e-3, atol=1e-5)
    assert whole[0][-1][0] == 12


@pytest.mark.parametrize("part", [Whole(), Blocks()], ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("replay", [False, True], ids=["called", "recorded"])
def test_a_compiled_run_learns_what_others_learn(recipe, tmp_path, part, replay):
    mixer = MIXERS["dpfp"]
    words = AdaptiveSoftmax(cutoffs=(8, 20), tied=True)
    model = replace(recipe.model, block=PreNorm(mixer), embedding=AdaptiveEmbedding((8, 20)), head=words)
    recipe = replace(recipe, model=model, optimiser=SGD(rate=0.01))
    plain = ended(recipe, tmp_path / "plain")
    run = replace(recipe.run, compile=part, replay=replay)
    assert_alike(ended(replace(recipe, run=run), tmp_path / "compiled"), plain, 1e-3)


@pytest.mark.parametrize("precision", [Single(), BFloat16()], ids=lambda part: type(part).__name__)
def test_plain_forms_are_compiled_where_fused_ones_are_not_trusted(recipe, tmp_path, monkeypatch, precision):
    monkeypatch.setenv("PALIMPSEST_TRUST", "none")
    monkeypatch.setattr("palimpsest.kernels.trust.VERDICTS", {})
    recipe = replace(recipe, model=replace(recipe.model, block=PreNorm(MIXERS["delta"])), optimiser=SGD(rate=0.01))
    plain = ended(recipe, tmp_path / "plain")
    run = replace(recipe.run, compile=Blocks(), precision=precision)
    compiled = ended(replace(recipe, run=run), tmp_path / "compiled")
    assert compiled[0][-1][1] == pytest.approx(plain[0][-1][1], rel=0.02)


@pytest.mark.parametrize("precision", [BFloat16(), Float16(scale=256.0)], ids=lambda part: type(part).__name__)
@every_mixer
def test_half_precision_learns_nearly_what_float32_learns(recipe, tmp_path, mixer, precision):
    recipe = replace(recipe, model=replace(recipe.model, block=PostNorm(mixer)))
    single, half = (
        ended(replace(recipe, run=replace(recipe.run, precision=one)), tmp_path / type(one).__name__)
        for one in (Single(), precision)
    )
    assert half[0][-1][1] == pytest.approx(single[0][-1][1], rel=0.02)


def test_what_waits_for_the_device_within_a_step_cannot_be_recorded(recipe, tmp_path):
    waiting = replace(recipe.model, block=PostNorm(AdaptivePastAttention(limit=16, heads=2)))
    with pytest.raises(UserError, match="cannot be recorded"):
        train(replace(recipe, model=waiting, run=replace(recipe.run, replay=True)), tmp_path / "run", quiet())


def test_spans_that_are_on_their_way_to_the_host_arrive():
    spans = Adaptive(64, ramp=4).build(3).cuda()
    with torch.no_grad():
        spans.ratio.copy_(torch.tensor([0.0, 0.5, 2.0]))
    spans.after_step()
    assert spans.spans() == [4, 36, 64]
    with torch.no_grad():
        spans.ratio.zero_()
    assert spans.spans() == [4, 4, 4], "what was read before is not what is there now"
