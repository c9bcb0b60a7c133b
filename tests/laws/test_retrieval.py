"""The laws of retrieval: what is drawn can be answered, and what is answered is what the last page says."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch
from closeness import all_close, close

from palimpsest.data.retrieval import MQAR, Capacity, Overwriting, RecallTask, RetrievalTask
from palimpsest.errors import UserError
from palimpsest.evaluation.retrieval import Score, score, squared_errors, verdict
from palimpsest.experiment import sweep as sweeping
from palimpsest.experiment.recollection import Recollection
from palimpsest.experiment.retrieval import Outcome, Retrieval, Run, Shelf, measure, place_of
from palimpsest.experiment.sweep import SteppedRun, read_results, sweep, sweep_together, together
from palimpsest.kernels import Gates, memory_scan
from palimpsest.legacy.retrieval import CommandLine, OriginalCapacity, OriginalFavor, OriginalOverwriting, OriginalPairs
from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import DPFP, EluPlusOne
from palimpsest.memory.key_scales import SumToOne, UnitNorm, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain, ReadOut
from palimpsest.memory.update_rules import Delta, NormalisedDelta, UpdateRule
from palimpsest.mixers.bounded_memory import BoundedMemory, bounded_pages, last_bounded_page
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.mixer import Mixer
from palimpsest.mixers.recall import FastWeightRecall, LeftAfterErasing, recall_of
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.models.retrieval_model import PairTokens, ProjectedPairs, RetrievalModel
from palimpsest.serialise import from_json, to_json

CPU = torch.device("cpu")
TASKS = [variant(keys=keys) for variant, keys in product(RetrievalTask.variants(), (1, 2, 7))]
every_task = pytest.mark.parametrize("task", TASKS, ids=repr)
every_model = pytest.mark.parametrize("model", [variant() for variant in RetrievalModel.variants()], ids=repr)
SMALL = {"batch": 3, "every": 4, "sequences": 2, "steps": 12, "criterion": 0.0}


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------------------------------- tasks


@every_task
def test_the_target_is_the_last_value_of_the_key(task):
    for drawn in (task.draw(20, chance()), task.draw_all(5, chance())):
        rows = zip(*(field.tolist() for field in drawn), strict=True)
        for keys, values, queries, targets, weights in rows:
            assert len(keys) == task.length
            assert {*keys, *values} <= set(range(task.keys))
            known = dict(zip(keys, values, strict=True))  # later ones replace earlier ones
            asked = [(query, target) for query, target, weight in zip(queries, targets, weights, strict=True) if weight]
            assert all(known[query] == target for query, target in asked)
        assert drawn.weights.sum() == pytest.approx(1)


@every_task
def test_everything_that_was_shown_is_asked_for_and_counts_alike(task):
    drawn = task.draw_all(6, chance())
    for keys, queries, weights in zip(drawn.keys, drawn.queries, drawn.weights, strict=True):
        assert {*keys.tolist()} == {*queries[weights > 0].tolist()}
    assert len({*drawn.weights[drawn.weights > 0].tolist()}) == 1


@pytest.mark.parametrize("task", [Capacity(9), OriginalCapacity(9)], ids=repr)
def test_without_replacement_every_key_and_every_value_comes_once(task):
    drawn = task.open(batch=4, seed=1).period(3, 2).batches
    for field in (drawn.keys, drawn.values):
        assert (np.sort(field, axis=-1) == np.arange(9)).all()
    assert len(np.unique(drawn.keys.reshape(-1, 9), axis=0)) > 8


@pytest.mark.parametrize("task", [Overwriting(9), OriginalOverwriting(9)], ids=repr)
def test_with_replacement_a_key_is_asked_as_often_as_it_is_shown(task):
    drawn = task.open(batch=2000, seed=1).period(1, 1).batches
    shown = (drawn.keys == drawn.queries).mean() * task.length
    # a key that is drawn by its place is shown once, and by each other place with chance 1/keys
    assert shown == pytest.approx(1 + (task.length - 1) / task.keys, rel=0.03)


@every_task
def test_a_source_goes_on_from_where_it_was(task):
    whole, source = task.open(3, seed=5), task.open(3, seed=5)
    whole.period(2, 2)
    source.seek(whole.position())
    for one, other in zip(whole.period(3, 2), source.period(3, 2), strict=True):
        assert all((mine == yours).all() for mine, yours in zip(one, other, strict=True))


@pytest.mark.parametrize("task", [Capacity(5), Overwriting(5)], ids=repr)
def test_a_seed_is_honoured(task):
    one, same, other = (task.open(4, seed).period(2, 1).batches.values for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()


def test_the_original_is_evaluated_in_chunks_that_count_alike():
    period = OriginalCapacity(7).open(batch=3, seed=1).period(1, 2)
    asked = period.evaluation.weights > 0
    assert asked.sum(1).tolist() == [3, 3, 1] * 2
    assert period.evaluation.weights.sum(1) == pytest.approx(1 / 6)
    assert OriginalCapacity(230).open(batch=64, seed=1).period(1, 1).evaluation.queries.max() == 199
    assert OriginalOverwriting(9).open(batch=3, seed=1).period(1, 1).evaluation.keys.shape[1] == 9, "half of the 18"


@pytest.mark.parametrize("task", [variant() for variant in RecallTask.variants()] + MQAR(tokens=300).grid(), ids=repr)
def test_every_pair_is_recalled_once_and_nothing_else_is_asked(task):
    batch = task.draw(6, chance())
    assert batch.inputs.shape == (6, task.length)
    assert batch.mask.sum(1).tolist() == [task.pairs] * 6
    for inputs, targets, mask in zip(batch.inputs, batch.targets, batch.mask, strict=True):
        shown = inputs[: 2 * task.pairs].view(-1, 2).tolist()
        assert not mask[: 2 * task.pairs].any()
        assert sorted(map(list, zip(inputs[mask].tolist(), targets[mask].tolist(), strict=True))) == sorted(shown)
        assert len({key for key, _ in shown}) == len({value for _, value in shown}) == task.pairs
        assert all(0 < key < task.tokens // 2 <= value < task.tokens for key, value in shown)


def test_a_small_power_asks_early():
    early, late = (MQAR(256, tokens=64, power=power).draw(50, chance()).mask.nonzero()[:, 1] for power in (0.01, 1))
    assert early.double().mean() < 0.7 * late.double().mean()


def test_the_usual_grid():
    assert [(task.length, task.pairs) for task in MQAR().grid()] == [(64, 4), (128, 8), (256, 16), (512, 64)]


WRONG = [lambda: Capacity(0), lambda: Overwriting(3, 0.1), lambda: MQAR(16, 5), lambda: MQAR(64, 4, tokens=8)]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(UserError, match=r"found|too few"):
        wrong()


# ------------------------------------------------------------------------------------------------------ recall

RULES = [rule for rule in (variant() for variant in UpdateRule.variants()) if rule.writes == 1]
SENTENCES = [FastWeight(DPFP(), SumToOne(), rule, Plain(), heads=1) for rule in RULES]
SENTENCES += [FastWeight(EluPlusOne(), UnitNorm(), Delta(), variant(), heads=1) for variant in ReadOut.variants()]
SENTENCES += [FastWeight(EluPlusOne(), Unscaled(), NormalisedDelta(), Normalised(), heads=1)]
every_sentence = pytest.mark.parametrize("memory", SENTENCES, ids=repr)


def written(batch: int = 2, length: int = 9, asked: int = 4, width: int = 6, values: int = 5, heard: int = 7):
    keys, queries = torch.randn(batch, length, width), torch.randn(batch, asked, width)
    tokens, asking = torch.randn(batch, length, heard), torch.randn(batch, asked, heard)
    return keys, torch.randint(values, (batch, length)), queries, tokens, asking


def by_scan(recall: FastWeightRecall, keys, values, queries, heard, asking):
    """A page that is written token by token, and read."""
    spec = recall.spec
    keys, queries = (spec.key_scale(recall.feature_map(z)) for z in (keys, queries))
    gates = recall.update_rule(heard, recall.crowding(keys))
    shown = torch.nn.functional.one_hot(values, recall.values).to(keys)
    _, page = memory_scan(keys[:, :, None], keys[:, :, None], shown[:, :, None], gates, backend="reference")
    counting = Gates(gates.log_keep, write=gates.write if gates.erase is None else None)
    ones = torch.ones_like(keys[:, :, None, :1])
    _, total = memory_scan(keys[:, :, None], keys[:, :, None], ones, counting, backend="reference")
    mass = (queries @ total.squeeze(1)) if spec.read_out.counts_keys else None
    return recall.read_out((queries @ page.squeeze(1))[:, :, None], asking, mass).squeeze(2)


@every_sentence
def test_what_is_recalled_is_what_the_last_page_says(memory):
    recall, inputs = recall_of(memory, 7, 6, 5), written()
    for parameter in recall.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    close(recall(*inputs), by_scan(recall, *inputs))


def test_the_gradient_of_what_is_left_after_erasing_is_right():
    inputs = torch.randn(2, 3, 5), torch.randn(2, 5, 4), torch.rand(2, 5)
    assert torch.autograd.gradcheck(LeftAfterErasing.apply, [each.requires_grad_() for each in inputs])


def test_softmax_recalls_the_mean_of_the_values_by_likeness():
    keys, values, queries, *others = written()
    weights = (queries @ keys.mT / 6**0.5).softmax(-1)
    expected = weights @ torch.nn.functional.one_hot(values, 5).to(weights)
    close(recall_of(SoftmaxAttention(), 7, 6, 5)(keys, values, queries, *others), expected)


@pytest.mark.parametrize("memory", [*SENTENCES, SoftmaxAttention(), BoundedMemory()], ids=repr)
def test_queries_do_not_hear_of_each_other(memory):
    recall, (keys, values, queries, heard, asking) = recall_of(memory, 7, 6, 5), written()
    together_ = recall(keys, values, queries, heard, asking)
    alone = [recall(keys, values, queries[:, i : i + 1], heard, asking[:, i : i + 1]) for i in range(4)]
    close(torch.cat(alone, dim=1), together_)


def test_a_mixer_that_cannot_be_handed_its_keys_is_refused_with_a_remedy():
    class Other(Mixer):
        """Some other mixer."""

    for memory in (Other(), FastWeight(convolution=ShortConvolution())):
        with pytest.raises(UserError, match="PairTokens"):
            recall_of(memory, 7, 6, 5)


# -------------------------------------------------------------------------------------------------- the bounded page


def by_hand(keys, values, beta, page):
    pages = []
    for t in range(keys.shape[1]):
        recalled = torch.einsum("bvk,bk->bv", page, keys[:, t])
        page = page + torch.einsum("bv,bk->bvk", beta[:, t, None] * (values[:, t] - recalled), keys[:, t])
        page = page / page.flatten(1).norm(dim=1).clamp(min=1)[:, None, None]
        pages.append(page)
    return torch.stack(pages)


def to_write(scale: float):
    return scale * torch.randn(2, 6, 3), torch.randn(2, 6, 4), torch.rand(2, 6), torch.randn(2, 4, 3) / 9


@pytest.mark.parametrize("scale", (0.1, 3.0), ids=("never shrunk", "often shrunk"))
def test_the_bounded_page_is_what_its_equations_say(scale):
    inputs = [each.requires_grad_() for each in to_write(scale)]
    expected, weights = by_hand(*inputs), torch.randn(6, 2, 4, 3)
    for found, wanted, weight in (
        (bounded_pages(*inputs), expected, weights),
        (last_bounded_page(*inputs), expected[-1], weights[-1]),
    ):
        close(found, wanted)
        gradients = [torch.autograd.grad((each * weight).sum(), inputs, retain_graph=True) for each in (found, wanted)]
        names = ("keys", "values", "beta", "memory")
        all_close(*(dict(zip(names, each, strict=True)) for each in gradients))


def test_a_bounded_page_is_never_longer_than_one():
    lengths = bounded_pages(*to_write(5.0)).flatten(2).norm(dim=2)
    assert lengths.max() <= 1 + 1e-12
    assert lengths.max() > 0.999


# ------------------------------------------------------------------------------------------------------ models


@every_model
def test_a_model_answers_with_a_number_for_each_value(model):
    network = model.build(5, 5, seed=1)
    questions = [torch.tensor(field) for field in Overwriting(5).draw_all(3, chance())]
    reads = network(*questions[:3], network.chance(1, torch.Generator().manual_seed(0)))
    assert reads.shape == (3, 5, 5)
    squared_errors(reads, questions[3]).mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


@every_model
def test_a_model_is_made_by_its_seed_alone(model):
    before = torch.get_rng_state()
    one, same, other = (dict(model.build(5, 5, seed).named_parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@every_model
def test_rows_do_not_mix(model):
    network = model.build(5, 5)
    questions = [torch.tensor(field) for field in Overwriting(5).draw_all(3, chance())][:3]
    whole = network(*questions)
    close(torch.cat([network(*(field[i : i + 1] for field in questions)) for i in range(3)]), whole)


def test_a_pair_that_is_looked_up_is_a_pair_that_is_multiplied():
    network = ProjectedPairs(key_width=4).build(5, 5)
    keys, values = torch.randint(5, (2, 2, 7))
    pair = torch.cat([torch.nn.functional.one_hot(values, 5).to(network.embedding), network.embedding[keys]], dim=-1)
    close(network.key(network.embedding, keys, values), pair @ network.key.weight.T + network.key.bias)


@pytest.mark.parametrize("mixer", [FastWeight(heads=2), SoftmaxAttention(heads=2), BoundedMemory(heads=2)], ids=repr)
def test_a_query_is_the_last_token(mixer):
    network = PairTokens(PreNorm(mixer, None), width=8, layers=2).build(5, 5)
    keys, values, queries = (torch.randint(5, (2, length)) for length in (6, 6, 3))
    reads = network(keys, values, queries)
    for i in range(3):
        x = torch.cat([network.key(keys) + network.value(values), network.query(queries[:, i : i + 1])], dim=1)
        for block in network.blocks:
            x, _ = block(x)
        close(network.head(network.norm(x[:, -1])), reads[:, i])


def test_the_directions_of_the_original_are_orthogonal_and_as_long_as_rows_of_chance():
    drawn = OriginalFavor(10, 4).draw(3, torch.Generator().manual_seed(1))
    assert drawn.shape == (3, 4, 10)
    assert not torch.equal(drawn[0], drawn[1])
    squares = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for one, square in zip(drawn, squares, strict=True):
        for block, its_square in zip(one.split(4, dim=1), square, strict=True):
            overlaps = block.T @ block
            close(overlaps, overlaps.diag().diag(), 1e-6)
            close(block.norm(dim=0), its_square.norm(dim=1)[: block.shape[1]], 1e-6)


# ---------------------------------------------------------------------------------------------- scores and ends


def test_a_perfect_answer_has_no_loss_and_weights_count():
    targets = torch.tensor([[0, 2], [1, 1]])
    reads = torch.nn.functional.one_hot(targets, 3).double()
    weights = torch.tensor([[0.5, 0.25], [0.25, 0.0]])
    assert score(reads, targets, weights).tolist() == [0.0, 1.0]
    reads[0, 0] = torch.tensor([0.0, 1.0, 0.0])
    reads[1, 1] = torch.nan  # nobody asked
    assert score(reads, targets, weights).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "losses, end",
    [
        ([], None),
        ([0.5], None),
        ([0.5, 0.001], "criterion"),
        ([0.5, math.nan], "not a number"),
        ([0.3, *[0.4] * 2], None),
        ([0.3, *[0.3] * 3], "patience"),
        ([0.9, 0.3, *[0.4] * 2, 0.2, *[0.3] * 2], None),
    ],
)
def test_a_run_ends_when_it_is_right_or_no_longer_gets_better(losses, end):
    assert verdict(losses, criterion=0.001, patience=2) == end


def test_a_run_ends_with_its_steps():
    asked = Retrieval(steps=250)
    assert asked.over([(100, Score(0.5, 0.1))]) is None
    assert asked.over([(100, Score(0.5, 0.1)), (200, Score(0.4, 0.1))]) == "steps"


# -------------------------------------------------------------------------------------------------------- runs

ASKED = [
    Retrieval(Capacity(4), ProjectedPairs(key_width=8), **SMALL),
    Retrieval(Overwriting(4), PairTokens(width=8), **SMALL, seed=3),
    next(CommandLine("favor", 8, "sum", begin=4, end=4, width=8).original()),
    next(CommandLine("tanh", 0, "fwm", True, begin=4, end=4, width=8).original()),
]
ASKED = [Retrieval(each.task, each.model, seed=each.seed, **SMALL) for each in ASKED]
every_asked = pytest.mark.parametrize("asked", ASKED, ids=lambda asked: type(asked.model).__name__)


@every_asked
def test_a_run_equals_its_json(asked):
    assert from_json(to_json(asked), Retrieval) == asked


@every_asked
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(asked, tmp_path, monkeypatch):
    whole = measure(Outcome(asked, "whole"))
    assert (whole.end, len(whole.scores)) == ("steps", 3)
    periods = iter([0.0, 1e9])
    monkeypatch.setattr("palimpsest.experiment.retrieval.time.time", lambda: next(periods))
    stopped = measure(Outcome(asked), tmp_path, until=1.0)
    assert (stopped.end, len(stopped.scores)) == (None, 1)
    monkeypatch.undo()
    assert measure(Outcome(asked), tmp_path).scores == whole.scores


def test_a_run_of_another_kind_does_not_go_on_from_a_namesake(tmp_path):
    measure(Outcome(ASKED[0]), tmp_path, until=0.0)
    other = Retrieval(ASKED[0].task, ASKED[0].model, rate=0.5, **SMALL)
    assert place_of(tmp_path, Outcome(other)).exists()
    assert measure(Outcome(other), tmp_path).scores == measure(Outcome(other)).scores


def in_turns(asked: list[Outcome], folder, until: float = float("inf")) -> list[Outcome]:
    finished: list[Outcome] = []
    sweep_together(asked, folder, SteppedRun, CPU, 1, until, finished.append)
    return finished


@pytest.fixture
def threads_for_processes(monkeypatch):
    """They draw the same, and begin at once."""
    monkeypatch.setattr(sweeping, "workers", ThreadPoolExecutor)


@pytest.mark.usefixtures("threads_for_processes")
def test_runs_that_take_turns_are_runs_on_their_own(tmp_path):
    outcomes = [Outcome(asked, f"run {number}") for number, asked in enumerate((*ASKED, ASKED[0]))]
    assert [len(group) for group in together(outcomes, tmp_path)] == [2, 1, 1, 1]
    finished = {outcome.label: outcome.scores for outcome in in_turns(outcomes, tmp_path)}
    assert finished == {outcome.label: measure(Outcome(outcome.asked)).scores for outcome in outcomes}


@pytest.mark.usefixtures("threads_for_processes")
def test_runs_that_take_turns_can_be_stopped(tmp_path, monkeypatch):
    clock = iter([0.0] * 8)
    with monkeypatch.context() as patch:
        patch.setattr("palimpsest.experiment.sweep.time.time", lambda: next(clock, 1e9))
        assert not in_turns([Outcome(asked) for asked in ASKED[:1]], tmp_path, until=1.0)
    (kept,) = (tmp_path / "unfinished").iterdir()
    assert 1 <= len(torch.load(kept)["scores"]) <= 2
    (finished,) = in_turns([Outcome(ASKED[0])], tmp_path)
    assert finished.scores == measure(Outcome(ASKED[0])).scores


def test_what_has_a_result_is_not_run_again(tmp_path, monkeypatch):
    said = []
    outcomes = [Outcome(asked, f"run {number}") for number, asked in enumerate(ASKED[:2])]
    assert sweep(outcomes[:1], tmp_path, CPU, say=said.append) == 0
    assert sweep([Outcome(each.asked, each.label) for each in outcomes], tmp_path, CPU, say=said.append) == 0
    assert [result["label"] for result in read_results(tmp_path)] == ["run 0", "run 1"]
    assert sum("run 0" in line for line in said) == 1
    assert sweep([Outcome(ASKED[1], "run 2")], tmp_path, CPU, minutes=0.0, say=said.append) == 1
    with pytest.raises(UserError, match="already has another run called"):
        sweep([Outcome(Retrieval(ASKED[0].task, ASKED[0].model), "run 0")], tmp_path, CPU)


def test_a_line_that_was_cut_off_is_a_run_without_a_result(tmp_path):
    sweep([Outcome(ASKED[0], "run")], tmp_path, CPU, say=lambda line: None)
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text()[:-20] + "\n")
    assert sweep([Outcome(ASKED[0], "run")], tmp_path, CPU, say=lambda line: None) == 0
    assert len(read_results(tmp_path)) == 1


def test_a_run_that_is_not_a_number_is_stopped_at_once():
    asked = Retrieval(Capacity(4), ProjectedPairs(key_width=8), rate=math.inf, **SMALL)
    outcome = measure(Outcome(asked))
    assert (outcome.end, len(outcome.scores)) == ("not a number", 1)


def test_a_step_reads_the_batch_its_cursor_points_at():
    shelf = Shelf(CPU)
    run = Run(Outcome(ASKED[0]), shelf, CPU)
    period = ASKED[0].open().period(4, 2)
    shelf.fill(period)
    run.begin()
    for step in range(4):
        assert torch.equal(shelf.batch(run.cursor).keys, torch.from_numpy(period.batches.keys[step]))
        run.step()
    assert (run.losses > 0).all()


def test_a_language_model_recalls_with_the_bytes_it_keeps():
    model = LanguageModel(width=16, layers=2, block=PreNorm(FastWeight(heads=2)))
    found = Recollection(MQAR(length=16, pairs=2, tokens=12), model, steps=3, batch=4, sequences=8).measure(CPU)
    assert found["bytes"] == 2 * 2 * 8 * 8 * torch.get_default_dtype().itemsize
    assert 0 <= found["accuracy"] <= 1


@pytest.mark.parametrize(
    "line, words",
    [
        (CommandLine("dpfp", 0), "needs an argument"),
        (CommandLine("linear", rule="other"), "unknown rule"),
        (CommandLine("cosine"), "unknown attention"),
        (CommandLine("tanh"), "divides by a sum of features"),
    ],
)
def test_a_command_line_that_means_nothing_is_refused(line, words):
    with pytest.raises(UserError, match=words):
        next(line.original())


def test_the_original_knew_no_other_memories():
    with pytest.raises(UserError, match="had no memory like"):
        OriginalPairs(FastWeight(update_rule=NormalisedDelta())).build(3, 3)
