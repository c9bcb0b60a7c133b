"""Laws of modern training: an average is one of the weights, a z-loss is never seen, what is made again is the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from closeness import all_close, close, states_close
from test_training import check_resume, recipe, trainer_of, weights  # noqa: F401 (a fixture)
from torch import nn
from toys import TEXT, metrics, quiet, smaller_than

from palimpsest.attention.positions import SharedRelative, Sinusoidal
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.batch import Batch
from palimpsest.data.corpora import Text
from palimpsest.data.vocabulary import Characters
from palimpsest.errors import UserError
from palimpsest.experiment import Recipe, load, train
from palimpsest.experiment.estimate import estimate
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative, SparingAdaptiveSoftmax
from palimpsest.memory.feature_maps import Favor
from palimpsest.mixers import FastWeight, Mixer, SoftmaxAttention
from palimpsest.models.block import Hybrid, PostNorm, PreNorm
from palimpsest.models.embeddings import TokenEmbedding
from palimpsest.models.heads import AdaptiveSoftmax, Head, SoftmaxHead
from palimpsest.models.initialisations import Scaled
from palimpsest.models.language_model import LanguageModel
from palimpsest.serialise import from_json, to_json
from palimpsest.state import detach
from palimpsest.training.averages import ExponentialAverage
from palimpsest.training.optimisers import Muon
from palimpsest.training.schedules import LinearCooldown
from palimpsest.training.trainer import Trainer, hooks

TOKENS, WIDTH, ROWS, LENGTH = 14, 8, 3, 10


# the average


class Walk(nn.Module):
    """Weights that go somewhere at random, in a range, beside a buffer."""

    def __init__(self):
        super().__init__()
        self.ratio, self.matrix = nn.Parameter(torch.rand(5)), nn.Parameter(torch.randn(3, 2))
        self.register_buffer("drawn", torch.randn(4))

    @torch.no_grad()
    def step(self):
        self.ratio.copy_(torch.rand(5).round())
        self.matrix.normal_()


def walked(decay: float, steps: int):
    model = Walk()
    average, path = ExponentialAverage(decay).build(model), []
    for step in range(1, steps + 1):
        model.step()
        average.update(step)
        path.append(average.newest())
    return model, average, path


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_an_average_weighs_each_step_by_the_decay_to_the_power_of_its_age(decay, steps):
    _, average, path = walked(decay, steps)
    shares = [decay**age for age in reversed(range(steps))]
    for number, mean in enumerate(average.means):
        close(mean, sum(s * now[number] for s, now in zip(shares, path, strict=True)) / sum(shares), 1e-12)


def test_without_decay_the_average_is_the_newest_weights_bit_for_bit():
    _, average, path = walked(0.0, 9)
    assert all(map(torch.equal, average.means, path[-1]))


def test_weights_that_stay_are_their_own_average_bit_for_bit():
    model = Walk()
    average = ExponentialAverage(0.9).build(model)
    for step in range(1, 50):
        average.update(step)
    assert all(map(torch.equal, average.means, average.newest()))


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_average_of_a_span_stays_in_the_spans_range(precision):
    torch.set_default_dtype(precision)  # put back after each test
    _, average, _ = walked(0.7, 200)
    assert average.means[0].dtype == precision
    assert average.means[0].min() >= 0
    assert average.means[0].max() <= 1


def test_the_average_comes_and_goes_and_leaves_buffers_alone():
    model, average, path = walked(0.9, 5)
    drawn, means = model.drawn.clone(), [mean.clone() for mean in average.means]
    with average.in_place():
        assert all(map(torch.equal, model.parameters(), means))
    assert all(map(torch.equal, model.parameters(), path[-1]))
    assert all(map(torch.equal, average.means, means))
    assert torch.equal(model.drawn, drawn)


def test_windows_follow_the_spans_that_are_in_place():
    model = LanguageModel(WIDTH, 1, PreNorm(SoftmaxAttention(SharedRelative(256), Adaptive(256, 32), heads=2)))
    spans = next(module for module in model.build(TOKENS).modules() if hasattr(module, "ratio"))
    average = ExponentialAverage().build(spans)
    nn.init.constant_(spans.ratio, 1.0)
    assert spans.slots == 255
    with average.in_place():
        assert spans.slots < 255
    assert spans.slots == 255


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(UserError, match="without 1"):
        ExponentialAverage(decay)


def with_average(recipe: Recipe, decay: float = 0.8) -> Recipe:  # noqa: F811
    """A head that shares its table, and directions that are drawn anew as it goes."""
    block = PreNorm(FastWeight(feature_map=Favor(directions=4, redraw=3), heads=2), dropout=0.1)
    model = replace(recipe.model, block=block, head=SoftmaxHead(tied=True))
    return replace(recipe, model=model, run=replace(recipe.run, average=ExponentialAverage(decay), carry=False))


def test_a_checkpoint_holds_the_average_and_the_newest_weights(recipe, tmp_path, monkeypatch):  # noqa: F811
    path, buffers, advance = [], {}, Trainer.advance

    def watched(self):
        advance(self)
        path.append({name: weight.detach().clone() for name, weight in self.model.named_parameters()})
        buffers.update({name: buffer.clone() for name, buffer in self.model.named_buffers()})

    monkeypatch.setattr(Trainer, "advance", watched)
    run = train(with_average(recipe), tmp_path / "run", quiet())
    shares = [0.8**age for age in reversed(range(7))]
    expected = {name: sum(s * now[name] for s, now in zip(shares, path, strict=True)) / sum(shares) for name in path[0]}
    model = load(run, "latest").model
    all_close(dict(model.named_parameters()), expected, 1e-12)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    saved = torch.load(run / "checkpoints/step-00000007/training.pt", weights_only=True)
    assert all(map(torch.equal, saved["newest"], path[-1].values()))


def test_the_average_is_what_is_validated_and_not_what_is_trained(recipe, tmp_path):  # noqa: F811
    averaged = with_average(recipe, 0.5)
    plain = replace(averaged, run=replace(averaged.run, average=None))
    run, other = train(averaged, tmp_path / "run", quiet()), train(plain, tmp_path / "other", quiet())
    trained, others = ([one for one in metrics(folder) if one["event"] != "valid"] for folder in (run, other))
    assert trained == others
    valid, found = ([one["nats"] for one in metrics(folder) if one["event"] == "valid"] for folder in (run, other))
    assert not set(valid) & set(found)
    assert json.loads((run / "evaluation.json").read_text())["nats_per_token"] == min(valid)


def modern(recipe: Recipe) -> Recipe:  # noqa: F811
    head = SoftmaxHead(z_loss=1e-2, chunk=64)
    model = replace(recipe.model, head=head, recompute=True)
    run = replace(recipe.run, average=ExponentialAverage(0.7), accumulation=2)
    return replace(recipe, model=model, run=run, optimiser=Muon(), schedule=LinearCooldown(warmup=2, cooldown=0.5))


def test_resuming_is_invisible_with_everything_modern(recipe, tmp_path, monkeypatch):  # noqa: F811
    check_resume(modern(recipe), tmp_path, cut=5)
    assert_same_newest(tmp_path / "cut", tmp_path / "whole")


def test_resuming_is_invisible_to_an_average_under_redrawn_directions(recipe, tmp_path, monkeypatch):  # noqa: F811
    check_resume(with_average(recipe), tmp_path, cut=5)
    assert_same_newest(tmp_path / "cut", tmp_path / "whole")


def assert_same_newest(*folders):
    one, other = (
        torch.load(folder / "checkpoints/step-00000007/training.pt", weights_only=True)["newest"] for folder in folders
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("average", [None, ExponentialAverage(0.5)])
def test_fine_tuning_begins_with_the_average_and_a_new_one(recipe, tmp_path, average):  # noqa: F811
    source = train(with_average(recipe), tmp_path / "source", quiet())
    tuned = replace(with_average(recipe).run, start_from=source, steps=1, average=average, keep_optimiser=True)
    run = train(replace(with_average(recipe), run=tuned), tmp_path / "tuned", quiet())
    best, first = weights(source, "best"), weights(run, "step-00000000")
    assert all(torch.equal(best[name], first[name]) for name in best)
    if average is not None:
        newest = torch.load(run / "checkpoints/step-00000001/training.pt", weights_only=True)["newest"]
        assert all(map(torch.equal, load(run, "latest").model.parameters(), newest)), "one step is its own average"


def test_modern_choices_survive_json(recipe):  # noqa: F811
    assert from_json(json.loads(json.dumps(to_json(modern(recipe)))), Recipe) == modern(recipe)


# the schedule


def test_a_cooldown_is_warm_up_then_stable_then_decay():
    schedule = LinearCooldown(warmup=4, cooldown=0.5, floor=0.2)
    shares = [schedule.share(step, 24) for step in range(24)]
    assert shares[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert shares[4:15] == [1.0] * 11
    assert shares[14:] == pytest.approx([1 - 0.08 * step for step in range(10)])


# the z-loss


HEADS = [
    SoftmaxHead(),
    SoftmaxHead(tied=True, bias=True),
    AdaptiveSoftmax((5, 9)),
    AdaptiveSoftmax((5, 9), divisor=2, inner=WIDTH),
    SparingAdaptiveSoftmax((5, 9), divisor=2, inner=WIDTH),
]


def built_head(head: Head):
    layer = head.build(TOKENS, WIDTH, TokenEmbedding().build(TOKENS, WIDTH))
    torch.manual_seed(1)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def by_the_book(layer, hidden, target, z: float):
    """The loss of one target: its nats, and z log²Z of every softmax on the way to it."""
    if isinstance(layer.spec, SoftmaxHead):
        logits = layer.project(hidden)
        log_z = logits.exp().sum().log()
        return log_z - logits[target] + z * log_z**2
    cuts = [0, 5, 9, TOKENS]
    cluster = sum(target >= cut for cut in cuts[1:])
    (first, bias), *others = layer.matrices()
    inner = [hidden @ projection.weight for projection in layer.projections] or [hidden] * 3
    logits = first @ inner[0] + bias
    log_z = logits.exp().sum().log()
    if cluster == 0:
        return log_z - logits[target] + z * log_z**2
    rare, bias = others[cluster - 1]
    within = rare @ inner[cluster] + bias
    log_rare = within.exp().sum().log()
    nats = log_z - logits[4 + cluster] + log_rare - within[target - cuts[cluster]]
    return nats + z * log_z**2 + z * log_rare**2


def gradients(loss, hidden, layer):
    learned = {"hidden": hidden, **dict(layer.named_parameters())}
    return dict(zip(learned, torch.autograd.grad(loss, list(learned.values()), materialize_grads=True), strict=True))


@pytest.mark.parametrize("chunk", [1, 3 * TOKENS, 2**22])
@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_a_z_loss_moves_the_weights_as_the_textbook_says(head, chunk):
    layer = built_head(replace(head, chunk=chunk, z_loss=0.3))
    hidden, targets = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True), torch.randint(TOKENS, (ROWS, LENGTH))
    counted = torch.rand(ROWS, LENGTH) < 0.7
    loss = layer(hidden, targets).where(counted, 0.0).sum() / counted.sum()
    places = counted.nonzero().tolist()
    expected = sum(by_the_book(layer, hidden[b, t], int(targets[b, t]), 0.3) for b, t in places) / len(places)
    all_close(gradients(loss, hidden, layer), gradients(expected, hidden, layer), 1e-10)


@pytest.mark.parametrize("chunk", [1, 2**22])
@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_nats_do_not_show_a_z_loss(head, chunk):
    plain, charged = built_head(replace(head, chunk=chunk)), built_head(replace(head, chunk=chunk, z_loss=0.3))
    hidden, targets = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True), torch.randint(TOKENS, (ROWS, LENGTH))
    assert torch.equal(plain(hidden, targets), charged(hidden, targets))
    at_rest = [gradients(layer.eval()(hidden, targets).sum(), hidden, layer) for layer in (plain, charged)]
    all_close(*at_rest, 0.0)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_accumulation_is_invisible_to_a_z_loss_among_targets_that_do_not_count(tmp_path, pieces):
    model = built(LanguageModel(WIDTH, 1, head=SoftmaxHead(z_loss=0.3), initialisation=Scaled()))
    inputs, targets = torch.randint(TOKENS, (2, ROWS, LENGTH))
    counted = torch.rand(ROWS, LENGTH) < 0.6
    batch = Batch(inputs, targets, counted)
    trainer = trainer_of(model.train(), None, tmp_path, accumulation=pieces)
    total = trainer.take_step.differentiate(batch, batch.count(), None).nats.item()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    logits = model.head.project(model.read(inputs, None)[0])[counted]
    log_z = logits.exp().sum(-1).log()
    nats = log_z - logits[range(len(logits)), targets[counted]]
    (nats + 0.3 * log_z**2).mean().backward()
    all_close(found, {name: weight.grad for name, weight in model.named_parameters()}, 1e-10)
    assert total == pytest.approx(nats.sum().item())


# blocks that are made again


def built(spec: LanguageModel):
    return spec.build(TOKENS, torch.Generator().manual_seed(1))


MIXERS = [smaller_than(mixer()) for mixer in Mixer.variants()]
SPANS = SoftmaxAttention(SharedRelative(128), Adaptive(128, 8), heads=2, dropout=0.2)
DROPPED = SoftmaxAttention(DroppedSinusoidalRelative(dropout=0.3), SegmentCache(6), heads=2, dropout=0.2)
BLOCKS = [
    *(PreNorm(mixer, dropout=0.2) for mixer in MIXERS),
    *(PostNorm(mixer, dropout=0.2) for mixer in (SPANS, DROPPED, SoftmaxAttention(Sinusoidal(), heads=2, dropout=0.2))),
    Hybrid(PreNorm(FastWeight(heads=2), dropout=0.2), PreNorm(SPANS), every=2),
]


def brief(block) -> str:
    return f"{type(block).__name__}-{type(getattr(block, 'mixer', None)).__name__}"


def outcome(spec: LanguageModel, batches: list[Batch]):
    """Nats, gradients and state of segments that are learned from one after the other, as a trainer does it."""
    model, state, nats = built(spec), None, []
    torch.manual_seed(3)
    for batch in batches:
        found, state = model(batch, state)
        found.sum().backward()
        state = detach(state)
        nats.append(found.detach())
    for penalty in hooks(model, "penalty"):
        penalty().backward()
    chance = torch.rand(())
    return torch.stack(nats), {name: weight.grad for name, weight in model.named_parameters()}, state, chance


def assert_invisible(spec: LanguageModel, batches: list[Batch]):
    nats, slopes, state, chance = outcome(spec, batches)
    again, same_slopes, same_state, same_chance = outcome(replace(spec, recompute=True), batches)
    close(again, nats, 0.0)
    all_close(same_slopes, slopes, 1e-13)
    states_close(same_state, state)
    assert chance == same_chance, "what is drawn later is the same too"


@pytest.mark.parametrize("block", BLOCKS, ids=brief)
def test_making_blocks_again_is_invisible_along_carried_segments(block):
    spec = smaller_than(LanguageModel(24, 2, block, initialisation=Scaled()))
    assert_invisible(spec, [Batch(*torch.randint(TOKENS, (2, ROWS, LENGTH))) for _ in range(3)])


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.packs], ids=brief)
def test_making_blocks_again_is_invisible_among_packed_documents(block):
    ids, borders = np.random.default_rng(0).integers(TOKENS, size=30), np.array([0, 4, 5, 13, 25, 30])
    batches = [Batch.at(ids, np.arange(first, first + 15)[None], documents=borders) for first in (0, 15)]
    assert_invisible(smaller_than(LanguageModel(24, 2, block, initialisation=Scaled())), batches)


def kept(spec: LanguageModel) -> int:
    """The bytes of all that waits for the backward pass, weights aside."""
    model, sizes = built(spec), {}
    weights = {weight.data_ptr() for weight in model.parameters()}

    def count(tensor):
        if tensor.data_ptr() not in weights:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        waiting.append(tensor)  # so that no other takes its place in memory
        return tensor

    waiting = []
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(Batch(*torch.randint(TOKENS, (2, ROWS, 64))))
    return sum(sizes.values())


@pytest.mark.parametrize("mixer", [FastWeight(), SoftmaxAttention()], ids=lambda mixer: type(mixer).__name__)
def test_making_blocks_again_keeps_far_less(mixer):
    spec = LanguageModel(32, 4, PreNorm(mixer, dropout=0.1))
    inputs = 4 * ROWS * 64 * 32 * 8  # of each block
    whole, less = kept(spec), kept(replace(spec, recompute=True))
    assert inputs <= less <= whole / 4


def test_nothing_is_made_again_where_nothing_is_learned(monkeypatch):
    model, batch = built(LanguageModel(24, 2, recompute=True)).eval(), Batch(*torch.randint(TOKENS, (2, ROWS, LENGTH)))
    monkeypatch.setattr("palimpsest.models.language_model.checkpoint", None)
    model(batch)


def test_an_estimate_knows_what_is_not_kept(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    base = Recipe()
    data = replace(base.data, corpus=Text(tmp_path / "text.txt", valid=0.1, test=0.1), vocabulary=Characters())
    sizes = []
    for again in (False, True):
        told = estimate(replace(base, data=data, model=replace(base.model, recompute=again)))
        sizes.append(int(told.split("optimiser, ")[1].split(" MiB")[0].replace(",", "")))
    assert sizes[1] < sizes[0] / 2
