"""The engine: numbers of half precision, compilers and recorded steps change the time, not what is learned."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from closeness import close
from toys import TEXT, metrics, quiet, toy, train_until_the_power_goes

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative, waves, waves_apart
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.batch import Batch
from palimpsest.data.corpora import Text
from palimpsest.data.streams import Contiguous
from palimpsest.errors import Diverged, UserError
from palimpsest.experiment import Recipe, load, resume, train
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.mixers import (
    LSTM,
    RNN,
    DeltaLSTM,
    FastWeight,
    Mixer,
    RecurrentDeltaNet,
    SlowLSTM,
    SoftmaxAttention,
)
from palimpsest.models.block import PreNorm
from palimpsest.models.dropout import Dropout, stirred
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import detach, leaves
from palimpsest.training import compilation
from palimpsest.training.compilation import Compilation
from palimpsest.training.optimisers import SGD
from palimpsest.training.precision import BFloat16, Float16, Precision, Single, TensorFloat32
from palimpsest.training.spread import Sharded
from palimpsest.training.step import ScaledStep, Step
from palimpsest.world import ALONE

TOKENS, ROWS, LENGTH = 11, 4, 12


def brief(part) -> str:
    return type(part).__name__


HALVES = [BFloat16(), Float16(scale=8.0, double_after=2)]  # so that there is a scale to come back to
every_half = pytest.mark.parametrize("precision", HALVES, ids=brief)
quick = {compilation.Blocks}  # the others take a compiler too long for every day
COMPILATIONS = [pytest.param(part, marks=() if part in quick else pytest.mark.slow) for part in Compilation.variants()]
every_compilation = pytest.mark.parametrize("part", COMPILATIONS, ids=lambda part: part.__name__)
# torch's own nets, and those that go through their tokens in order, which on a GPU are one operation
REFUSED = {RNN, LSTM, SlowLSTM, DeltaLSTM, RecurrentDeltaNet}
OURS = [variant for variant in Mixer.variants() if not variant.__module__.startswith("palimpsest.legacy")]


@pytest.fixture(autouse=True)
def without_matrix_instructions(monkeypatch):
    """Some virtual machines claim to have those of bfloat16, and have not."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    (tmp_path / "text.txt").write_text(TEXT)
    base = Recipe(name="toy", model=LanguageModel(block=PreNorm(dropout=0.1)))
    data = replace(base.data, corpus=Text(tmp_path / "text.txt", valid=0.1, test=0.1), order=Contiguous())
    return toy(replace(base, data=data), steps=6, carry=True, validate_every=3, save_every=2, log_every=2)


def model_of(mixer: Mixer, layers: int = 2):
    return LanguageModel(16, layers, PreNorm(mixer)).build(TOKENS, torch.Generator().manual_seed(1))


def some_batch() -> Batch:
    return Batch(*torch.randint(TOKENS, (2, ROWS, LENGTH), generator=torch.Generator().manual_seed(2)))


def step_of(model, precision: Precision, rate: float = 0.1, passing=None) -> Step:
    scaling = precision.scaling()
    parts = model, passing or model, SGD(rate).build(model), ALONE, precision, 2, 1.0, True
    return Step(*parts) if scaling is None else ScaledStep(*parts, scaling=scaling)


# numbers


@every_half
def test_resuming_is_invisible_bit_for_bit_in_half_precision(recipe, tmp_path, precision):
    recipe = replace(recipe, run=replace(recipe.run, precision=precision))
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "cut", 5)
    resumed = resume(tmp_path / "cut", quiet())
    assert metrics(resumed) == metrics(whole)
    mine, theirs = (load(run, "latest").model.state_dict() for run in (resumed, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("precision", [TensorFloat32(), BFloat16(), Float16(scale=256.0)], ids=brief)
def test_every_precision_moves_float32_weights_nearly_as_float32_does(precision):
    moved = {}
    for name, one in {"single": Single(), "this": precision}.items():
        model, batch = model_of(FastWeight()), some_batch()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        outcome = step_of(model, one)(batch, batch.count(), None)
        moved[name] = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert all(leaf.dtype in (torch.float32, torch.int64, torch.bool) for leaf in leaves(outcome.state))
    assert (moved["this"] - moved["single"]).norm() < 0.05 * moved["single"].norm()


def test_bfloat16_is_really_used():
    model, batch, seen = model_of(FastWeight()), some_batch(), []
    model.blocks[0].mixer.project.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    step_of(model, BFloat16())(batch, batch.count(), None)
    assert seen == [torch.bfloat16] * 2, "of each piece"


@pytest.mark.parametrize("precision", [Single(), Float16()], ids=brief)
def test_gradients_are_found_in_the_thread_that_asks_for_them(precision):
    model, batch, elsewhere = model_of(FastWeight()), some_batch(), []
    penalised = model.blocks[0].mixer.project.weight
    model.blocks[0].mixer.penalty = lambda: penalised.square().sum()
    penalised.register_hook(lambda _: elsewhere.append(torch.autograd.is_multithreading_enabled()))
    step_of(model, precision)(batch, batch.count(), None)
    assert elsewhere == [False] * 3, "of each piece, and of the penalty"
    assert torch.autograd.is_multithreading_enabled(), "for others it is as it was"


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_scaled_loss_shows_neither_in_gradients_nor_in_nats(pieces):
    found = []
    for scale in (1.0, 2.0**10):
        model, batch = model_of(FastWeight()).double(), some_batch()
        scaling = Float16(scale).scaling()
        parts = model, model, SGD(0.1).build(model), ALONE, Single(), pieces, 0.5, True
        outcome = ScaledStep(*parts, scaling=scaling)(batch, batch.count(), None)
        found.append((outcome.nats, outcome.norm, *(parameter.grad for parameter in model.parameters())))
    for one, other in zip(*found, strict=True):
        close(one, other, 1e-12)


def test_a_step_whose_gradient_overflows_moves_nothing_and_halves_the_scale():
    model, batch = model_of(FastWeight()), some_batch()
    step = step_of(model, Float16(scale=1e38))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    outcome = step(batch, batch.count(), None)
    assert outcome.nats.isfinite()
    assert outcome.norm == 0
    assert all(torch.equal(now, then) for now, then in zip(model.parameters(), before, strict=True))
    assert step.scaling.scale == 5e37


def test_a_scale_doubles_after_steps_without_overflow_and_a_fixed_one_stays():
    scaling, fixed = Float16(4.0, double_after=3).scaling(), Float16(4.0, double_after=None).scaling()
    scales = []
    for finite in (True, True, True, True, False, True, True, True):
        assert scaling.judge(finite) == finite
        fixed.judge(finite)
        scales.append(scaling.scale)
    assert scales == [4, 4, 8, 8, 4, 4, 4, 8]
    assert fixed.scale == 4


def test_an_overflow_under_a_fixed_scale_ends_the_run(recipe, tmp_path):
    precision = Float16(scale=1e38, double_after=None)
    with pytest.raises(Diverged, match="the gradient after step 0"):
        train(replace(recipe, run=replace(recipe.run, precision=precision)), tmp_path / "run", quiet())


# compilers


def as_traced(monkeypatch, backend: str) -> None:
    """What is compiled is only followed through, which is what can fail: making code of it takes a minute."""
    monkeypatch.setattr(
        compilation,
        "compiled",
        lambda function: torch.compile(function, fullgraph=True, dynamic=False, backend=backend),
    )


@every_compilation
def test_a_compiled_step_is_the_same_step(part, monkeypatch):
    as_traced(monkeypatch, "aot_eager")
    torch._dynamo.reset()
    adaptive = SoftmaxAttention(SharedRelative(8), Adaptive(8, ramp=4, initial=0.5), heads=2)
    batch, found = some_batch(), []
    for compiled in (False, True):
        model = model_of(adaptive, layers=3).double()
        step, state = step_of(model, Single(), passing=part().build(model) if compiled else None), None
        for _ in range(3):
            outcome = step(batch, batch.count(), state)
            state = outcome.state
        found.append([outcome.nats, *leaves(state), *model.parameters()])
    for one, other in zip(*found, strict=True):
        close(one, other, 1e-12)


@every_compilation
def test_no_gradient_comes_from_the_state_after_a_compiled_pass(part, monkeypatch):
    as_traced(monkeypatch, "eager")
    torch._dynamo.reset()
    model = model_of(FastWeight(convolution=ShortConvolution(3)), layers=2)
    nats, state = part().build(model)(some_batch(), None)
    assert nats.requires_grad
    assert leaves(state)
    assert not any(leaf.requires_grad for leaf in leaves(state))


def test_graphs_that_torch_keeps_are_for_one_version_of_our_kernels_alone(monkeypatch, tmp_path):
    import torch.compiler.config as keys

    monkeypatch.setattr(compilation, "PALIMPSEST", tmp_path)
    found = []
    with keys.patch("cache_key_tag", "a user's own, "):
        for line in ("chunk = 16", "chunk = 16", "chunk = 32"):
            (tmp_path / "kernel.py").write_text(line)
            compilation.prepared(torch.nn.Identity(), torch.sin)
            found.append(keys.cache_key_tag)
    assert found[0] == found[1] != found[2]
    assert all(tag.startswith("a user's own, ") for tag in found)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", OURS, ids=lambda part: part.__name__)
def test_a_mixer_is_compiled_without_a_break_or_refused_in_a_line(mixer, monkeypatch):
    as_traced(monkeypatch, "eager")
    torch._dynamo.reset()
    model, batch = model_of(mixer(), layers=1), some_batch()
    passing, state = compilation.Whole().build(model), None
    refused = pytest.raises(UserError, match="add --compile None") if mixer in REFUSED else nullcontext()
    with refused:
        for _ in range(2):
            nats, state = passing(batch, state)
            nats.sum().backward()
            state = detach(state)


def test_documents_that_are_read_one_by_one_are_not_compiled_and_that_is_said_in_a_line(monkeypatch):
    as_traced(monkeypatch, "eager")
    torch._dynamo.reset()
    batch, starts = some_batch(), torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    starts[:, LENGTH // 2] = True
    passing = compilation.Whole().build(model_of(DeltaLSTM(), layers=1))
    with pytest.raises(UserError, match=r"cannot follow this model .* add --compile None"):
        passing(batch._replace(starts=starts), None)


def test_where_there_is_no_compiler_for_it_that_is_said_in_a_line(monkeypatch):
    def without_a_compiler(graph, inputs):
        raise RuntimeError("No working C++ compiler found\nand more about it")

    torch._dynamo.reset()
    monkeypatch.setattr(compilation, "compiled", lambda function: torch.compile(function, backend=without_a_compiler))
    passing = compilation.Whole().build(model_of(FastWeight(), layers=1))
    with pytest.raises(UserError, match=r"\(No working C\+\+ compiler found\): add --compile None"):
        passing(some_batch(), None)


def test_what_a_compiler_or_a_recorder_would_not_see_is_refused(recipe, tmp_path):
    drawn = SoftmaxAttention(DroppedSinusoidalRelative(dropout=0.1), SegmentCache(8))
    model = replace(recipe.model, block=PreNorm(drawn))
    for run in (replace(recipe.run, compile=compilation.Whole()), replace(recipe.run, replay=True)):
        with pytest.raises(UserError, match="SharedDraw draws before each pass"):
            train(replace(recipe, model=model, run=run), tmp_path / "run", quiet())


def test_steps_are_recorded_only_where_they_can_be(recipe, tmp_path):
    with pytest.raises(UserError, match="recorded on CUDA devices"):
        train(replace(recipe, run=replace(recipe.run, replay=True)), tmp_path / "run", quiet())


def test_weights_that_are_shared_out_are_not_compiled():
    with pytest.raises(UserError, match="use Replicated"):
        Sharded().refuse_compilation()


def test_what_a_compiler_sees_of_dropout_is_dropout(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    dropout, x = Dropout(0.3), torch.ones(64, 32, 32, dtype=torch.float64, requires_grad=True)
    one, other = dropout(x), dropout(x)
    assert set(one.unique().tolist()) == {0.0, 1 / 0.7}
    kept, again = (one > 0).double(), (other > 0).double()
    spread = (0.3 * 0.7 / x.numel()) ** 0.5
    assert abs(kept.mean() - 0.7) < 4 * spread
    assert abs(((kept - 0.7) * (again - 0.7)).mean()) < 4 * 0.21 / x.numel() ** 0.5, "each call draws anew"
    for along in range(3):
        beside = kept.roll(1, along)
        assert abs(((kept - 0.7) * (beside - 0.7)).mean()) < 4 * 0.21 / x.numel() ** 0.5
    (slope,) = torch.autograd.grad(one.sum(), x)
    assert torch.equal(slope, one.detach())
    assert torch.equal(dropout.eval()(x), x)


def test_places_however_far_apart_are_dropped_by_chances_of_their_own():
    places, chance = torch.arange(2**20, dtype=torch.int32), torch.Generator().manual_seed(0)
    for _ in range(4):
        first, second = torch.randint(-(2**31), 2**31 - 1, (2,), generator=chance, dtype=torch.int32)
        sign = torch.where(stirred(places, first, second) < 0, -1.0, 1.0)
        assert abs(sign.mean()) < 5 / len(sign) ** 0.5
        for bit in range(19):
            together = sign[2**bit :] * sign[: -(2**bit)]
            assert abs(together.mean()) < 5 / len(together) ** 0.5, f"those {2**bit} apart"


@pytest.mark.parametrize("size", [1, 4])
def test_what_a_compiler_sees_of_a_convolution_is_the_convolution(size):
    layer = ShortConvolution(size).build(6).double()
    torch.nn.init.normal_(layer.taps)
    given = [torch.randn(2, length, 6).double().requires_grad_() for length in (9, size - 1)]
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    plain, seen = layer(*given), compiled(*given)
    slopes = [torch.randn_like(found) for found in plain]
    learned = [*given, layer.taps]
    plain, seen = ((*found, *torch.autograd.grad(found, learned, slopes)) for found in (plain, seen))
    for one, other in zip(seen, plain, strict=True):
        close(one, other, 1e-12)


def test_what_a_compiler_sees_of_waves_are_the_waves(monkeypatch):
    places, dtypes = torch.arange(40).view(2, 20) * 1000, (torch.float32, torch.float64, torch.bfloat16)
    plain = [waves(places, 7, 100.0, dtype) for dtype in dtypes]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for dtype, waving in zip(dtypes, plain, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(waves(places, 7, 100.0, dtype), waving, strict=True))
    torch.library.opcheck(waves_apart, (places, 7, 100.0, torch.float32))


@pytest.mark.slow
def test_relative_positions_are_compiled_too(monkeypatch):
    as_traced(monkeypatch, "eager")
    torch._dynamo.reset()
    model, batch = model_of(SoftmaxAttention(SinusoidalRelative(), SegmentCache(8), heads=2)), some_batch()
    passing, state = compilation.Whole().build(model), None
    for _ in range(3):
        nats, state = passing(batch, state)
    assert nats.isfinite().all()
