"""Where an original is wrong, ours is right by default; where a published number depends on it, legacy has it too.

docs/originals.md is the same list as a table.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from closeness import close, states_close
from torch import Tensor, nn
from torch.autograd import gradcheck
from toys import TEXT, metrics, quiet, toy, train_until_the_power_goes

from palimpsest.attention.positions import SharedRelative, Sinusoidal
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.data.corpora import Text
from palimpsest.data.retrieval import Overwriting
from palimpsest.data.standard import Enwik8, OneBillionWord
from palimpsest.data.vocabulary import Words
from palimpsest.evaluation.perplexity import CachedMemory, CarriedState, Segments, SlidingWindow
from palimpsest.experiment import Recipe, load, resume, train
from palimpsest.gates import Gates
from palimpsest.kernels import memory_scan
from palimpsest.legacy.adaptive_span import PastAttention
from palimpsest.legacy.corpora import TransformerXLEnwik8, TransformerXLOneBillionWord
from palimpsest.legacy.favor import TransposedFavor
from palimpsest.legacy.from_lmtool_memory import BareQueryMemory
from palimpsest.legacy.lmtool_recurrent import Arranged, ForgetfulDeltaMLP, NormFirst
from palimpsest.legacy.protocols import AdaptiveSpanBlocks, LmtoolSlidingWindow, TransformerXLColumns
from palimpsest.legacy.retrieval import CommandLine, OriginalFavor, OriginalOverwriting
from palimpsest.legacy.schedules import TransformerXLConstant, TransformerXLCosine
from palimpsest.legacy.transformer_xl import CountdownSinusoidal, PreNormUnclosed, SwappedSegmentCache
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor
from palimpsest.memory.key_scales import SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Delta, NormalisedDelta, Sum
from palimpsest.mixers.delta_delta import DeltaDeltaNet, LearnedPage
from palimpsest.mixers.delta_lstm import DeltaLSTM
from palimpsest.mixers.delta_mlp import DeltaMLP
from palimpsest.mixers.delta_rnn import DeltaRNN
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.mixer import Mixer, MixerModule
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNet
from palimpsest.mixers.slow_lstm import SlowLSTM
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.norms import LayerNorm
from palimpsest.state import map_state, rows_of
from palimpsest.training.schedules import Constant, Cosine

WIDTH, HEADS = 8, 2
LINEAR = FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised(), heads=HEADS)
CARRYING = [
    LINEAR,
    FastWeight(heads=HEADS),
    FastWeight(update_rule=NormalisedDelta(), read_out=Normalised(), heads=HEADS),
    *(mixer(heads=HEADS) for mixer in (DeltaMLP, DeltaDeltaNet, DeltaRNN, DeltaLSTM, SlowLSTM, RecurrentDeltaNet)),
]
every_carrying_mixer = pytest.mark.parametrize("spec", CARRYING, ids=lambda spec: type(spec).__name__)


@pytest.fixture(autouse=True)
def exact():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def built(spec: Mixer, width: int = WIDTH, norm: nn.Module | None = None) -> MixerModule:
    mixer = spec.build(width, norm)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


# --------------------------------------------------------------------------------------------- memories


@pytest.mark.parametrize("length", (1, 5))
def test_the_gradient_of_a_sum_knows_what_was_carried(length):
    """lmtool-fwms: backward of the sum rule begins with an empty page, whatever forward began with."""

    def scan(queries: Tensor, keys: Tensor, values: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return memory_scan(queries, keys, values, Gates(), memory)

    queries, keys, values = (torch.randn(2, length, 2, size, requires_grad=True) for size in (3, 3, 2))
    memory = torch.randn(2, 2, 3, 2, requires_grad=True)
    assert gradcheck(scan, (queries, keys, values, memory))
    scan(queries, keys, values, memory)[0].sum().backward()
    close(queries.grad[:, 0], (memory.detach() + keys[:, 0, ..., None] * values[:, 0, :, None]).sum(-1))


@every_carrying_mixer
def test_a_state_outlives_its_use(spec):
    """lmtool-fwms: forward writes into the caller's state, and backward rewinds it."""
    mixer = built(spec)
    _, state = mixer(torch.randn(2, 3, WIDTH))
    kept = map_state(Tensor.clone, state)
    y, after = mixer(torch.randn(2, 4, WIDTH), state)
    kept_after = map_state(Tensor.clone, after)
    y.sum().backward()
    states_close(state, kept)
    states_close(after, kept_after)


@every_carrying_mixer
def test_a_batch_may_shrink_between_segments(spec):
    """lmtool-fwms: the Recurrent Delta Net and the slow LSTM cut their states wrongly, or not at all."""
    mixer, x = built(spec), torch.randn(3, 6, WIDTH)
    _, state = mixer(x[:, :2])
    whole, _ = mixer(x[:, 2:], state)
    fewer, _ = mixer(x[:2, 2:], rows_of(state, slice(2)))
    close(fewer, whole[:2])


def test_the_directions_of_favor_are_drawn_once_and_saved():
    """lmtool-fwms draws them at every step and never saves them; fast-weight-transformers draws them at every call."""
    one, other = (built(replace(LINEAR, feature_map=Favor(directions=5))) for _ in range(2))
    one.feature_map.initialise(torch.Generator().manual_seed(7))
    drawn, x = one.feature_map.matrix.clone(), torch.randn(1, 4, WIDTH)
    y, _ = one.train()(x)
    assert torch.equal(one.feature_map.matrix, drawn)
    other.load_state_dict(one.state_dict())
    close(other(x)[0], y)
    first, second = OriginalFavor(5, 4).draw(2, torch.Generator().manual_seed(7))
    assert not torch.equal(first, second)


def test_the_directions_of_favor_are_orthogonal_among_themselves():
    """lmtool-fwms makes the numbers of the input orthogonal instead."""
    ours, theirs = (spec.build(4).matrix for spec in (Favor(directions=4), TransposedFavor(directions=4)))
    for squared, expected in ((ours.T @ ours, True), (theirs @ theirs.T, True), (theirs.T @ theirs, False)):
        assert torch.allclose(squared, squared.diag().diag(), atol=1e-9) is expected


@pytest.mark.parametrize("head_width, nu", [(37, 3), (74, 1), (77, 1), (108, 1)])
@pytest.mark.parametrize("rule", [Sum(), Delta()], ids=repr)
def test_no_head_size_hangs(head_width, nu, rule):
    """lmtool-fwms: a page that nearly fills the shared memory of a GPU is never done with; a larger one is refused."""
    mixer = built(FastWeight(DPFP(nu), SumToOne(), rule, heads=1), head_width)
    x = torch.randn(1, 3, head_width, requires_grad=True)
    y, _ = mixer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_sum_of_no_features_divides_nothing():
    """The originals divide by the bare sum: 0/0 where a DPFP of odd width meets alternating signs."""
    x = torch.tensor([1.0, -1.0, 1.0], requires_grad=True)
    features = DPFP(nu=1).map(x)
    assert not features.any()
    scaled = SumToOne()(features)
    scaled.sum().backward()
    assert not scaled.any()
    assert x.grad.isfinite().all()
    assert (features / features.sum()).isnan().all(), "what the originals do"


@pytest.mark.parametrize("rule", [Sum(), Delta(), NormalisedDelta()], ids=repr)
def test_reads_from_keys_of_no_features_are_finite(rule):
    mixer = built(FastWeight(DPFP(nu=1), SumToOne(), rule, Normalised(), heads=1), 3)
    nn.init.zeros_(mixer.project.weight)
    y, _ = mixer(torch.randn(1, 4, 3))
    y.sum().backward()
    assert not y.any()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_a_delta_mlp_reads_what_it_carries():
    """lmtool-fwms returns its state and never looks at it again."""
    x, y = torch.randn(1, 3, WIDTH), torch.randn(1, 3, WIDTH)
    ours, theirs = built(DeltaMLP(heads=HEADS)), built(ForgetfulDeltaMLP(heads=HEADS))
    for mixer, forgets in ((ours, False), (theirs, True)):
        fresh, carried = mixer(y)[0], mixer(y, mixer(x)[1])[0]
        assert torch.allclose(fresh, carried) is forgets


def test_the_first_page_of_a_delta_delta_net_can_be_learned():
    """lmtool-fwms has one, and no gradient reaches it."""
    mixer = built(DeltaDeltaNet(first_page=LearnedPage(), heads=HEADS))
    mixer(torch.randn(1, 3, WIDTH))[0].sum().backward()
    assert mixer.first_page.page.grad.any()


# --------------------------------------------------------------------------------------------- blocks


def test_what_skips_a_part_under_pre_norm_is_the_bare_input():
    """lmtool-fwms: a fast weight layer norms its input for good, so the bare one is lost."""
    common = {"mixer": FastWeight(heads=HEADS), "feed_forward": None, "norm": LayerNorm()}
    x = torch.randn(1, 3, WIDTH)
    ours, theirs = PreNorm(**common).build(WIDTH), Arranged(**common, around_mixer=NormFirst()).build(WIDTH)
    for block, expected in ((ours, x), (theirs, nn.LayerNorm(WIDTH)(x))):
        nn.init.zeros_(block.mixer.out.weight)
        close(block(x)[0], expected)


def test_queries_under_pre_norm_are_made_of_the_normed_input():
    """Types 2 to 6 of the originals make them of the bare one."""
    x = torch.randn(1, 3, WIDTH)
    for kind, same in ((FastWeight, True), (BareQueryMemory, False)):
        mixer = built(kind(heads=HEADS), norm=nn.LayerNorm(WIDTH, eps=1e-12, elementwise_affine=False))
        assert torch.allclose(mixer(x)[0], mixer(7 * x)[0]) is same


def test_a_stack_under_pre_norm_is_closed_by_a_norm():
    """The originals have none."""
    assert isinstance(PreNorm(norm=LayerNorm()).closing_norm(WIDTH), nn.LayerNorm)
    assert isinstance(PreNormUnclosed().closing_norm(WIDTH), nn.Identity)


def test_the_code_of_a_place_does_not_depend_on_the_length_of_the_segment():
    """The originals count places from the end of the segment."""
    for positions, same in ((Sinusoidal(), True), (CountdownSinusoidal(), False)):
        waves, places = positions.build(WIDTH, 1, WIDTH), torch.arange(5)[None]
        long, short = (waves.add(torch.zeros(1, length, WIDTH), places[:, :length]) for length in (5, 3))
        assert torch.allclose(long[:, :3], short) is same


def test_what_is_kept_of_a_segment_is_all_but_the_tokens_to_be_read_again():
    """Transformer-XL swaps two lengths, and keeps the whole of its first segment."""
    seen = torch.tensor([5])
    ours, theirs = (kind(memory=8, extra=2).build(HEADS) for kind in (SegmentCache, SwappedSegmentCache))
    assert ours.kept(5, seen) == 3
    assert theirs.kept(5, torch.zeros(1)) == 5
    assert theirs.kept(5, seen) == 3


def test_empty_places_are_not_looked_at_and_the_present_is():
    """adaptive-span sees zeros where no token is, and no token sees itself."""
    x = torch.randn(1, 1, WIDTH).expand(1, 4, WIDTH)  # whatever is looked at, the same is read
    ours = built(SoftmaxAttention(SharedRelative(8), Adaptive(limit=8, ramp=2, initial=0.5), heads=HEADS))
    nn.init.constant_(ours.span.ratio, 0.5)
    y, _ = ours(x)
    assert y[:, 0].any()
    close(y, y[:, :1].expand_as(y))
    theirs, _ = built(PastAttention(limit=8, heads=HEADS))(x)
    assert not theirs[:, 0].any()
    assert (theirs[:, 1:] - theirs[:, :-1]).abs().amin() > 0


def test_a_place_that_no_head_looks_at_learns_nothing():
    """adaptive-span leaves it a rounding error, which its optimiser makes a whole step of."""
    mixer = built(SoftmaxAttention(SharedRelative(32), Adaptive(limit=32, ramp=2), heads=HEADS))
    nn.init.constant_(mixer.span.ratio, 0.25)
    mixer(torch.randn(1, 32, WIDTH))[0].square().sum().backward()
    (table,) = (parameter for parameter in mixer.parameters() if len(parameter) == 32)
    assert table.grad[:9].any(-1).all()
    assert not table.grad[10:].any()


# --------------------------------------------------------------------------------------------- training


def test_the_first_update_of_a_warm_up_is_small():
    """The originals set the rate after an update, for the next: the first of all is the largest."""
    for ours in (Cosine(warmup=9), Constant(warmup=9)):
        assert ours.share(0, 100) == pytest.approx(0.1)
    for theirs in (TransformerXLCosine(warmup=9), TransformerXLConstant(warmup=9)):
        assert theirs.share(0, 100) == 1


def test_a_warm_up_ends_with_the_whole_rate():
    """The originals' cosine has been going down all the while, and their constant rate stays one step short."""
    for ours in (Cosine(warmup=10), Constant(warmup=10)):
        assert ours.share(10, 100) == 1
    assert TransformerXLCosine(warmup=10).share(10, 100) < 1
    assert TransformerXLConstant(warmup=10).share(99, 100) == pytest.approx(0.9)


def test_a_seed_decides_and_another_decides_otherwise():
    """fast-weight-transformers ignores the one it is given; adaptive-span takes none."""
    spec = LanguageModel(width=WIDTH, layers=1)
    one, again, other = (spec.build(5, torch.Generator().manual_seed(seed)).head.project.weight for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert [run.seed for run in CommandLine("dpfp", 1).asked(seeds=(3, 4))] == [3, 4]
    assert [run.seed for run in CommandLine("dpfp", 1).original()] == [1]


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch):
    """The originals begin again with step, rate, chance, data and carried states, and with the best score unknown."""
    monkeypatch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)
    (tmp_path / "text.txt").write_text(TEXT)
    base = Recipe(name="toy", schedule=Cosine(warmup=1))
    data = replace(base.data, corpus=Text(tmp_path / "text.txt"))
    recipe = toy(replace(base, data=data), steps=3, validate_every=1)
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "cut", 1)
    resumed = resume(tmp_path / "cut", quiet())
    assert metrics(resumed) == metrics(whole)
    mine, theirs = (load(folder, "latest").model.state_dict() for folder in (resumed, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# --------------------------------------------------------------------------------------------- data and scores


@pytest.mark.parametrize("length", (23, 24, 40))
def test_all_tokens_but_the_first_are_scored(length):
    """The originals drop the first token of each row and what is left after the last."""
    ids = np.zeros(length, np.int64)

    def unscored(protocol) -> int:
        return sum(map(len, protocol.unscored(ids)))

    ours = (Segments(5), SlidingWindow(6, 2), CarriedState(5), CachedMemory(5, 5))
    theirs = (TransformerXLColumns(5, rows=3), LmtoolSlidingWindow(5, rows=3), AdaptiveSpanBlocks(5, rows=3))
    assert [unscored(protocol) for protocol in ours] == [1] * len(ours)
    assert all(unscored(protocol) >= 3 + length % 3 for protocol in theirs)


def test_newlines_are_kept(tmp_path):
    """Transformer-XL reads enwik8 without them: 204 symbols instead of 205, and a score for those alone."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(b"one\ntwo\n\n")
    assert Enwik8(tmp_path).read()["test"] == b"one\ntwo\n\n"
    assert TransformerXLEnwik8(tmp_path).read()["test"] == b"onetwo"


def test_what_is_tested_on_is_not_validated_on(tmp_path, monkeypatch):
    """Transformer-XL's One Billion Word validates on the test sentences."""
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path))
    folder = OneBillionWord().folder
    folder.mkdir(parents=True)
    for name in ("news.en-00001-of-00100", "valid.txt", "test.txt"):
        (folder / name).write_text(f"{name}\n")
    ours, theirs = (corpus().files() for corpus in (OneBillionWord, TransformerXLOneBillionWord))
    assert ours["valid"] != ours["test"]
    assert theirs["valid"] == theirs["test"] == ours["test"]


def test_a_word_that_was_never_seen_is_read():
    """The originals fail on it."""
    assert Words().learn(b"a b\n", []).decode(Words().learn(b"a b\n", []).encode("a c")) == "a <unk>"


def test_a_memory_that_may_change_its_mind_is_evaluated_as_it_was_trained():
    """fast-weight-transformers evaluates it on sequences of half the length."""
    for task, share in ((Overwriting(keys=6), 1.0), (OriginalOverwriting(keys=6), 0.5)):
        period = task.open(batch=2, seed=1).period(steps=1, sequences=2)
        assert period.evaluation.keys.shape[-1] == share * period.batches.keys.shape[-1]
