"""Laws of many processes: how many share a run does not show in its numbers, nor that they were more before."""

import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import all_close
from ranks import (
    answer,
    carried_out,
    carried_out_all,
    cut_off,
    draws,
    echoes,
    on_ranks,
    refusal,
    refusal_where_the_last_has_no_room,
    scores,
    stopped_by_a_signal_to_the_last,
    visible_while_the_first_is_written,
)
from test_evaluation import build, in_sentences, originals, ours, relative, shaken
from torch._C._distributed_c10d import HashStore
from toys import TEXT, metrics, quiet, toy

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.cli.recipes import find_recipe
from palimpsest.data.corpora import Text
from palimpsest.data.shopping_lists import ShoppingLists
from palimpsest.data.streams import Contiguous, RandomLengths, Shuffled
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes
from palimpsest.errors import UserError
from palimpsest.evaluation.decoding import BeamSearch
from palimpsest.evaluation.perplexity import CachedMemory, Reader, evaluate
from palimpsest.experiment import ParallelData, Recipe, load, resume
from palimpsest.files import held
from palimpsest.memory.feature_maps import Favor
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import NormalisedDelta, Sum
from palimpsest.mixers import LSTM, DeltaRNN, FastWeight, SoftmaxAttention
from palimpsest.models.block import Hybrid, PostNorm, PreNorm
from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.training.averages import ExponentialAverage
from palimpsest.training.checkpoint import Checkpoints
from palimpsest.training.optimisers import SGD, Adagrad, Adam, Muon
from palimpsest.training.schedules import Constant
from palimpsest.training.spread import Sharded, Spread
from palimpsest.world import World, name_of_meeting

TOKENS = np.tile([0, 3, 4, 5, 0, 0, 6, 0, 0, 7, 8, 9, 10, 1, 2, 3, 0, 0, 4, 4, 0], 5)  # sentences between two marks
every_spread = pytest.mark.parametrize("spread", Spread.variants(), ids=lambda part: part.__name__)


def recipe_of(folder: Path, **changes) -> Recipe:
    """Four rows whose states are carried; `data`, `model` and `run` may be told what differs."""
    base = Recipe(name="toy")
    data = replace(base.data, corpus=Text(folder / "text.txt", valid=0.1, test=0.1), order=Contiguous())
    recipe = toy(replace(base, data=data), steps=4, carry=True, validate_every=4, save_every=4, log_every=1)
    recipe = replace(recipe, data=replace(recipe.data, batch=4), schedule=Constant())
    for name in ("data", "model", "run"):
        changes[name] = replace(getattr(recipe, name), **changes.get(name, {}))
    return replace(recipe, **changes)


@pytest.fixture
def recipes(tmp_path) -> dict[str, Recipe]:
    """Mixers, optimisers, orders and heads of every kind that could mind how rows and weights are shared out."""
    (tmp_path / "text.txt").write_text(TEXT)
    cached = SoftmaxAttention(SinusoidalRelative(per_layer=False), SegmentCache(8))
    adaptive = SoftmaxAttention(SharedRelative(128), Adaptive(limit=128, ramp=8, initial=0.2, penalty=1e-2))
    favor = FastWeight(feature_map=Favor(directions=6, redraw=2), update_rule=Sum())
    clusters = {"cutoffs": (5, 12), "divisor": 2}
    return {
        "delta": recipe_of(tmp_path, run={"accumulation": 2, "average": ExponentialAverage(0.5)}),
        "cached": recipe_of(
            tmp_path, model={"block": PostNorm(cached)}, optimiser=Adam(), evaluation=CachedMemory(16, 8, rows=3)
        ),
        "adaptive": recipe_of(tmp_path, model={"block": PreNorm(adaptive)}, optimiser=Adagrad(rate=0.02, clip=1.0)),
        "favor": recipe_of(
            tmp_path, data={"order": Shuffled()}, model={"block": PreNorm(favor)}, optimiser=SGD(momentum=0.5),
            run={"carry": False},
        ),
        "recurrent": recipe_of(tmp_path, model={"block": Hybrid(PreNorm(LSTM()), PreNorm(DeltaRNN()), every=2)}),
        "clusters": recipe_of(
            tmp_path, optimiser=Muon(), data={"order": RandomLengths()},
            model={
                "block": PreNorm(FastWeight(update_rule=NormalisedDelta(), read_out=Normalised())),
                "embedding": AdaptiveEmbedding(**clusters), "head": AdaptiveSoftmax(tied=True, **clusters),
                "recompute": True,
            },
        ),
    }  # fmt: skip


def spread_by(spread: type[Spread], recipe: Recipe) -> Recipe:
    return replace(recipe, run=replace(recipe.run, spread=spread()))


def assert_same_but_for_rounding(folder: Path, other: Path) -> None:
    assert folder != other
    for mine, theirs in zip(metrics(folder), metrics(other), strict=True):
        assert [*mine] == [*theirs]
        for name, number in mine.items():
            assert (number == theirs[name]) if isinstance(number, str | list) else number == approx(theirs[name]), name
    all_close(load(folder, "latest").model.state_dict(), load(other, "latest").model.state_dict(), 1e-8)


def approx(number):
    return pytest.approx(number, rel=1e-9)


def test_how_many_processes_there_are_does_not_show(recipes, tmp_path):
    for name, recipe in recipes.items():
        carried_out(recipe, tmp_path / name / "alone")
    jobs = [
        (spread_by(spread, recipe), tmp_path / name / spread.__name__)
        for name, recipe in recipes.items()
        for spread in Spread.variants()
    ]
    one, other = on_ranks(2, carried_out_all, jobs)
    assert one == other, "to the last bit all have the same of what all have: directions of FAVOR+, windows of spans"
    for _, folder in jobs:
        assert_same_but_for_rounding(folder, folder.parent / "alone")
    seen = {line["span_max"] for line in metrics(tmp_path / "adaptive" / "alone") if line["event"] == "gauges"}
    assert len(seen) > 1, "spans have moved"


def test_sentence_pairs_are_shared_by_processes_of_which_some_have_none(tmp_path):
    pairs = ParallelData(ShoppingLists(pairs=60), Bytes(), tokens=256, longest=100)
    recipe = replace(find_recipe("shopping-lists"), data=pairs, translated=4)
    recipe = toy(recipe, steps=4, validate_every=4, save_every=2, accumulation=2)
    recipe = replace(recipe, evaluation=BeamSearch(beam=2, growth=0.0, extra=12))
    plan = pairs.stream(tokenise(pairs.corpus, pairs.vocabulary).splits["train"], recipe.run.seed).plan(epoch=0)
    assert [len(batch) for batch in plan[:4]] == [3, 6, 2, 4], "too few for three processes, and a share of two"
    carried_out(recipe, tmp_path / "alone")
    assert len({*on_ranks(3, carried_out, recipe, tmp_path / "shared")}) == 1
    assert_same_but_for_rounding(tmp_path / "shared", tmp_path / "alone")
    mine, theirs = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("shared", "alone"))
    assert mine == {name: value if isinstance(value, str | dict) else approx(value) for name, value in theirs.items()}


def test_processes_share_the_lines_to_be_translated_and_put_them_back_in_order():
    assert on_ranks(2, echoes, [*"abcde"]) == [[["a"], ["b"], ["c"], ["d"], ["e"]]] * 2


def test_a_run_that_translates_is_not_sharded():
    with pytest.raises(UserError, match="--spread Replicated"):
        spread_by(Sharded, find_recipe("shopping-lists"))


def test_a_run_goes_on_with_more_or_fewer_processes(recipes, tmp_path):
    recipe = replace(recipes["delta"], run=replace(recipes["delta"].run, save_every=2))
    carried_out(recipe, tmp_path / "whole")
    more, fewer = (
        [(spread_by(spread, recipe), tmp_path / f"{spread.__name__} {change}") for spread in Spread.variants()]
        for change in ("1 to 2", "2 to 1")
    )
    on_ranks(1, cut_off, more, 3)
    on_ranks(2, cut_off, fewer, 3)
    on_ranks(2, carried_out_all, more)
    on_ranks(1, carried_out_all, fewer)
    for _, folder in more + fewer:
        assert_same_but_for_rounding(folder, tmp_path / "whole")


def test_what_is_dropped_is_another_thing_in_each_process(recipes, tmp_path):
    one, other = on_ranks(2, draws, recipes["delta"], tmp_path / "run")
    assert draws(recipes["delta"], tmp_path / "alone") == one
    assert len({*one, *other}) == 2 * len(one) == 8


@pytest.mark.slow
def test_an_optimiser_comes_along_whichever_way_each_run_is_spread(recipes, tmp_path):
    recipe = replace(recipes["delta"], run=replace(recipes["delta"].run, average=None))
    sources = [(spread_by(spread, recipe), tmp_path / spread.__name__) for spread in Spread.variants()]
    tuned = []
    for (_, source), (after, _) in product(sources, sources):
        run = replace(after.run, steps=2, start_from=source, keep_optimiser=True)
        tuned.append((replace(after, run=run), tmp_path / f"{source.name} to {type(run.spread).__name__}"))
    on_ranks(2, carried_out_all, sources + tuned)
    first, *others = (folder for _, folder in tuned)
    for other in others:
        assert_same_but_for_rounding(other, first)


def test_training_goes_on_while_shares_are_written_and_the_checkpoint_is_of_its_own_step(recipes, tmp_path):
    recipe, run = spread_by(Sharded, recipes["delta"]), tmp_path / "run"
    assert on_ranks(1, visible_while_the_first_is_written, recipe, run, 3) == [[[], [], []]]
    assert [path.name for path in Checkpoints(run / "checkpoints").all()] == ["step-00000000", "step-00000004"]
    first = recipe.model.build(load(run).codec.size, torch.Generator().manual_seed(recipe.run.seed))
    all_close(load(run, "step-00000000").model.state_dict(), first.state_dict(), 0)


def test_those_who_meet_again_do_not_listen_to_the_dead():
    store = HashStore()
    store.set("here/1", "one who died")
    store.set("here/2", "another")
    with ThreadPoolExecutor(3) as three:
        names = {*three.map(lambda rank: name_of_meeting(store, rank, 3), range(3))}
        again = {*three.map(lambda rank: name_of_meeting(store, rank, 3), range(3))}
    assert len(names) == len(again) == 1
    assert names != again


@every_spread
def test_a_signal_to_one_process_stops_all_of_them_after_the_same_step(recipes, tmp_path, spread):
    recipe, run = spread_by(spread, recipes["delta"]), tmp_path / "run"
    assert on_ranks(2, stopped_by_a_signal_to_the_last, recipe, run, 3) == [3, 3]
    assert Checkpoints(run / "checkpoints").find("latest").name == "step-00000003"
    assert {line["step"] for line in metrics(run)} == {1, 2, 3}


def test_rows_that_cannot_be_shared_equally_are_refused_in_one_line_and_nothing_is_left_behind(recipes, tmp_path):
    said = {*on_ranks(3, refusal, recipes["delta"], tmp_path / "run")}
    (line,) = said
    assert re.search(r"a batch of 4 rows .* 3 processes: choose a --batch that 3 divides", line)
    assert not (tmp_path / "run").exists()


def test_where_one_process_cannot_write_its_shares_all_are_told_and_the_checkpoint_before_is_kept(recipes, tmp_path):
    recipe, run = spread_by(Sharded, recipes["delta"]), tmp_path / "run"
    recipe = replace(recipe, run=replace(recipe.run, save_every=2))
    (line,) = {*on_ranks(2, refusal_where_the_last_has_no_room, recipe, run, 3)}
    assert re.search(r"step-0000000\d could not be written .* step-00000002 is whole: make room", line)
    on_ranks(2, carried_out, recipe, run)
    carried_out(recipe, tmp_path / "whole")
    assert_same_but_for_rounding(run, tmp_path / "whole")


def test_a_damaged_share_is_noticed_by_all_and_the_checkpoint_before_is_used(recipes, tmp_path):
    recipe, run = spread_by(Sharded, recipes["delta"]), tmp_path / "run"
    recipe = replace(recipe, run=replace(recipe.run, save_every=2))
    on_ranks(2, carried_out, recipe, run)
    whole = metrics(run)
    share = sorted(Checkpoints(run / "checkpoints").find("latest").glob("shards/*"))[-1]
    share.write_bytes(share.read_bytes()[:-1] + b"?")
    on_ranks(2, carried_out, recipe, run)
    assert metrics(run) == whole


def test_a_folder_in_which_another_process_is_at_work_is_refused(recipes, tmp_path):
    run = tmp_path / "run"
    carried_out(recipes["delta"], run)
    with held(run), pytest.raises(UserError, match="another process is at work"):
        resume(run, quiet())
    carried_out(recipes["delta"], run)
    assert not (run / ".lock").exists()


@pytest.mark.parametrize("protocol", [*ours, *originals, in_sentences], ids=repr)
@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_target_is_read_by_one_process(protocol, size):
    model, ids = shaken(build(PreNorm(mixer=relative))), TOKENS
    found: Counter[int] = Counter()
    expected = evaluate(model, ids, protocol, None, 1)
    nats = 0.0
    with torch.inference_mode():
        for rank in range(size):
            world = World(torch.device("cpu"), rank, size)
            for reading in protocol.read(Reader(model, ids, world.device, 40, world=world)):
                counts = reading.places > 0
                found.update(reading.places[counts].tolist())
                nats += reading.nats[counts].sum().item()
    assert set(found.values()) == {1}
    assert found.total() == expected.tokens
    assert nats == pytest.approx(expected.nats, rel=1e-12)


def test_a_score_is_the_same_by_many_processes():
    remembering = shaken(build(PreNorm(mixer=relative)))
    texts = [(TOKENS, protocol, None) for protocol in (*ours, *originals, in_sentences)]
    texts += [(TOKENS, protocol, np.array([0, 5, 6, 20, len(TOKENS)])) for protocol in ours]
    for found in on_ranks(2, scores, remembering, texts):
        for score, (ids, protocol, documents) in zip(found, texts, strict=True):
            alone = evaluate(remembering, ids, protocol, None, 1, documents=documents)
            assert score.tokens == alone.tokens
            assert score.nats == pytest.approx(alone.nats, rel=1e-12)
            assert [one["tokens"] for one in score.by_position] == [one["tokens"] for one in alone.by_position]


def test_many_processes_give_one_answer(recipes, tmp_path):
    run = tmp_path / "run"
    carried_out(recipes["delta"], run)
    words = ["evaluate", str(run), "--protocol", "sliding-window", "--context", "16", "--stride", "5", "--json"]
    alone, (first, second) = answer(words), on_ranks(2, answer, words)
    assert second == ""
    alone, first = json.loads(alone), json.loads(first)
    assert first["tokens"] == alone["tokens"]
    assert first["nats"] == pytest.approx(alone["nats"], rel=1e-12)
