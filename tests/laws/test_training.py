"""Laws of training: how the work is cut up, stopped and taken up again does not show in the numbers."""

import math
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toys import TEXT, metrics, palimpsest, quiet, toy, train_until_the_power_goes

from palimpsest.batch import Batch
from palimpsest.data.corpora import Text
from palimpsest.data.streams import Contiguous, RandomLengths
from palimpsest.errors import Diverged, UserError
from palimpsest.experiment import Recipe, load, resume, train
from palimpsest.legacy.schedules import TransformerXLConstant, TransformerXLPlateau
from palimpsest.mixers.fast_weight import FastWeightMixer
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageNetwork
from palimpsest.training.checkpoint import Checkpoints
from palimpsest.training.log import Log
from palimpsest.training.muon import orthogonalise
from palimpsest.training.optimisers import SGD, Adagrad, Adam, AdamW, Optimiser
from palimpsest.training.schedules import Constant, InverseSquareRoot, Plateau, Schedule
from palimpsest.training.step import Outcome
from palimpsest.training.trainer import Run, Trainer
from palimpsest.world import ALONE

every_optimiser = pytest.mark.parametrize("optimiser", Optimiser.variants(), ids=lambda part: part.__name__)
SCHEDULES = Schedule.variants()
OURS = [schedule for schedule in SCHEDULES if not schedule.__module__.startswith("palimpsest.legacy")]
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda part: part.__name__)
every_schedule_of_ours = pytest.mark.parametrize("schedule", OURS, ids=lambda part: part.__name__)


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    """With everything on that has a state of its own: dropout, carried rows, an optimiser with memory."""
    (tmp_path / "text.txt").write_text(TEXT)
    base = Recipe(name="toy")
    base = replace(base, model=replace(base.model, block=PreNorm(dropout=0.1)))
    data = replace(base.data, corpus=Text(tmp_path / "text.txt", valid=0.1, test=0.1), order=Contiguous())
    return toy(replace(base, data=data), steps=7, carry=True, validate_every=3, save_every=2, log_every=2)


def weights(folder, checkpoint="latest"):
    return dict(load(folder, checkpoint).model.state_dict())


def assert_same_run(one, other):
    assert metrics(one) == metrics(other)
    mine, theirs = weights(one), weights(other)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (one / "samples.txt").read_text() == (other / "samples.txt").read_text()


@pytest.mark.parametrize("tokens", [0, 7])
def test_a_run_ends_with_as_long_a_sample_as_it_was_asked_for(recipe, tmp_path, tokens):
    folder = train(replace(recipe, run=replace(recipe.run, steps=1, sample=tokens)), tmp_path / "run", quiet())
    written = folder / "samples.txt"
    assert written.exists() == bool(tokens)
    if tokens:
        assert len(written.read_text()) == 1 + tokens + 1  # what it begins with, and the end of the last line


@pytest.mark.slow
@every_optimiser
@pytest.mark.parametrize("cut", range(1, 7))
def test_resuming_is_invisible_bit_for_bit_at_every_step(recipe, tmp_path, optimiser, cut):
    check_resume(replace(recipe, optimiser=optimiser()), tmp_path, cut)


def test_resuming_is_invisible_bit_for_bit(recipe, tmp_path):
    check_resume(recipe, tmp_path, cut=5)


def test_resuming_is_invisible_among_segments_of_random_lengths(recipe, tmp_path):
    check_resume(replace(recipe, data=replace(recipe.data, order=RandomLengths())), tmp_path, cut=5)


def test_resuming_is_invisible_to_a_schedule_that_looks_at_validations(recipe, tmp_path):
    recipe = replace(recipe, schedule=Plateau(threshold=0.5), run=replace(recipe.run, validate_every=1))
    check_resume(recipe, tmp_path, cut=5)
    rates = [record["rate"] for record in metrics(tmp_path / "whole") if record["event"] == "train"]
    assert rates == [1.0, 0.25, 0.0625, 0.03125], "each validation but the first lowers the rate"


def check_resume(recipe, tmp_path, cut):
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "cut", cut)
    assert_same_run(resume(tmp_path / "cut", quiet()), whole)


def start(folder, text, steps, cwd):
    flags = "--batch 2 --segment 16 --width 24 --layers 2 --log-every 1 --validate-every 5 --save-every 3 --threads 1"
    command = [sys.executable, "-m", "palimpsest", "train", text, "--folder", folder, "--steps", steps, *flags.split()]
    return subprocess.Popen(
        list(map(str, command)), cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def wait_for_lines(folder, lines, process):
    path = folder / "metrics.jsonl"
    while process.poll() is None and not (path.exists() and len(path.read_text().splitlines()) >= lines):
        time.sleep(0.002)


def test_a_run_killed_at_a_random_step_and_resumed_ends_like_one_that_never_was(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    whole = start(tmp_path / "whole", tmp_path / "text.txt", 40, tmp_path)
    killed = start(tmp_path / "killed", tmp_path / "text.txt", 40, tmp_path)
    wait_for_lines(tmp_path / "killed", random.SystemRandom().randint(1, 30), killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert whole.wait(timeout=120) == 0
    assert killed.returncode == -signal.SIGKILL
    resumed = palimpsest("resume", tmp_path / "killed", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_saves_and_leaves_with_zero(tmp_path, number):
    (tmp_path / "text.txt").write_text(TEXT)
    run = tmp_path / "run"
    process = start(run, tmp_path / "text.txt", 100000, tmp_path)
    wait_for_lines(run, 5, process)
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 0, words
    assert f"palimpsest resume {run}" in " ".join(words.split())
    saved = int(Checkpoints(run / "checkpoints").find("latest").name.split("-")[1])
    assert saved == metrics(run)[-1]["step"], "the last step taken is the one saved"


def test_a_second_signal_does_not_wait(tmp_path):
    program = (
        "import os, signal, time\n"
        "from palimpsest.training.interrupts import Interrupts\n"
        "with Interrupts() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert stop.asked\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 128 + signal.SIGTERM


def test_the_log_is_cut_back_to_the_checkpoint_and_a_torn_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "train", "step": 1}\n{"event": "train", "step": 2}\n{"event": "tra')
    Log(path, 5, quiet()).cut_back(1)
    assert path.read_text() == '{"event": "train", "step": 1}\n'


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", quiet())
    whole = metrics(run)
    latest = Checkpoints(run / "checkpoints").find("latest")
    (latest / "training.pt").write_bytes((latest / "training.pt").read_bytes()[:1000])
    resume(run, quiet())
    assert metrics(run) == whole


def test_an_unfinished_checkpoint_does_not_count(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, nn.Linear(2, 2), {})
    (tmp_path / "step-00000002.partial").mkdir()
    assert [path.name for path in checkpoints.all()] == ["step-00000001"]


def test_the_newest_checkpoints_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        checkpoints.save(step, nn.Linear(2, 2), {})
        if step == 2:
            checkpoints.mark_best(step, 1.0)
        checkpoints.prune()
    assert [path.name for path in checkpoints.all()] == ["step-00000002", "step-00000004", "step-00000005"]
    assert checkpoints.find("best").name == "step-00000002"
    with pytest.raises(UserError, match=r"step-00000009.*there are"):
        checkpoints.find("step-00000009")


def test_every_checkpoint_is_written_once(recipe, tmp_path, monkeypatch):
    written, save = [], Checkpoints.save

    def watched(self, step, model, training):
        written.append(step)
        return save(self, step, model, training)

    monkeypatch.setattr(Checkpoints, "save", watched)
    train(replace(recipe, run=replace(recipe.run, validate_every=1, save_every=1)), tmp_path / "run", quiet())
    assert written == list(range(8))


def test_the_best_checkpoint_is_the_one_that_scored_lowest(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", quiet())
    valid = [record for record in metrics(run) if record["event"] == "valid"]
    best = min(valid, key=lambda record: record["nats"])
    assert load(run).checkpoint == f"step-{best['step']:08d}"


def test_a_clip_of_nought_is_none(recipe, tmp_path):
    runs = [
        train(replace(recipe, run=replace(recipe.run, clip=clip, steps=3)), tmp_path / str(clip), quiet())
        for clip in (0.0, None, 1e-9)
    ]
    scores = [load(run).evaluate(load(run).tokens().splits["valid"]).nats for run in runs]
    assert scores[0] == scores[1] != scores[2]


@pytest.mark.parametrize("seed", [2**64 - 1, 1_795_134_095_123_456_789, -(2**63)])
def test_a_seed_may_be_any_number_of_64_bits(recipe, tmp_path, seed):
    run = train(replace(recipe, run=replace(recipe.run, seed=seed, steps=2)), tmp_path / "run", quiet())
    assert metrics(run)[-1]["step"] == 2
    for beyond in (2**64, -(2**63) - 1):
        with pytest.raises(UserError, match="64 bits"):
            replace(recipe.run, seed=beyond)


def test_accumulation_is_invisible(recipe, tmp_path):
    recipe = replace(recipe, model=replace(recipe.model, block=PreNorm()), data=replace(recipe.data, batch=4))
    runs = [
        train(replace(recipe, run=replace(recipe.run, accumulation=pieces)), tmp_path / str(pieces), quiet())
        for pieces in (1, 2, 3)
    ]
    first, *others = (metrics(run) for run in runs)
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert one["nats"] == pytest.approx(two["nats"], rel=1e-9)


def penalty_of(module):
    return 0.01 * sum(parameter.square().sum() for parameter in module.parameters())


def test_accumulation_is_invisible_with_carried_state_and_a_penalty(recipe, tmp_path, monkeypatch):
    recipe = replace(recipe, model=replace(recipe.model, block=PreNorm()), data=replace(recipe.data, batch=4))
    plain = weights(train(recipe, tmp_path / "plain", quiet()))
    monkeypatch.setattr(FastWeightMixer, "penalty", penalty_of, raising=False)
    first, *others = (
        weights(train(replace(recipe, run=replace(recipe.run, accumulation=pieces)), tmp_path / str(pieces), quiet()))
        for pieces in (1, 2, 3)
    )
    for other in others:
        assert all(torch.allclose(first[name], other[name], rtol=1e-6, atol=1e-8) for name in first)
    assert not all(torch.allclose(first[name], plain[name], rtol=1e-6, atol=1e-8) for name in first)


class Dial(nn.Module):
    """Has everything a trainer may call, and remembers how often it was."""

    def __init__(self, value=0.5):
        super().__init__()
        self.value, self.followed = nn.Parameter(torch.full((2,), value)), 0

    def penalty(self):
        return 100 * self.value.sum()

    def after_step(self):
        self.followed += 1
        self.value.clamp_(0, 1)

    def gauges(self):
        return {"span": self.value.tolist()}


class Dials(nn.Module):
    """Every target costs what its input says, times a weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.first, self.second = nn.Parameter(torch.ones(1)), Dial(), Dial(0.25)
        self.again = self.first  # a part with two parents

    def forward(self, batch, state=None):
        return batch.inputs * self.weight, torch.zeros(len(batch.inputs))


class Repeated:
    """A stream of one batch."""

    def __init__(self, batch):
        self.batch = batch

    def next(self):
        return self.batch, False

    def position(self):
        return {}


class Told:
    """A tracker that keeps what it is told."""

    def __init__(self):
        self.told = []

    def log(self, step, numbers):
        self.told.append(numbers)


def trainer_of(model, batch, folder, tracker=None, **run):
    log = Log(folder / "metrics.jsonl", 2, quiet(), tracker)
    run = Run(**{"steps": 2, "clip": None, "log_every": 1, **run})
    return Trainer(model, Repeated(batch), lambda: {"nats": 1.0}, SGD(rate=0.001), Constant(), run, folder, log, ALONE)


def test_penalties_move_the_weights_and_not_the_nats_that_are_reported(tmp_path):
    model, inputs = Dials(), torch.arange(6.0).reshape(3, 2)
    trainer_of(model, Batch(inputs, inputs), tmp_path, steps=1, accumulation=3).fit()
    assert [record["nats"] for record in metrics(tmp_path) if record["event"] == "train"] == [2.5]
    assert torch.allclose(model.first.value, torch.tensor(0.4)), "one step of rate 0.001 against a slope of 100"
    assert torch.allclose(model.weight, torch.tensor(1 - 0.001 * 2.5))


def test_parts_are_called_after_each_step_and_once_however_many_parents_they_have(tmp_path):
    model, inputs = Dials(), torch.ones(3, 2)
    trainer_of(model, Batch(inputs, inputs), tmp_path, steps=9).fit()
    assert model.first.followed == model.second.followed == 9
    assert (model.second.value == 0).all(), "kept where the part keeps it"


def test_gauges_are_written_with_the_train_line_as_lists_and_tracked_as_numbers(tmp_path):
    inputs, tracker = torch.ones(3, 2), Told()
    trainer_of(Dials(), Batch(inputs, inputs), tmp_path, tracker, steps=4, log_every=2).fit()
    events = metrics(tmp_path)
    assert [record["event"] for record in events] == ["train", "gauges", "train", "gauges", "valid"]
    assert events[1]["span"] == [pytest.approx([0.3, 0.3]), pytest.approx([0.05, 0.05])]
    assert events[1]["span_mean"] == pytest.approx(0.175)
    assert events[1]["span_max"] == pytest.approx(0.3)
    assert set(tracker.told[1]) == {"gauges/span_mean", "gauges/span_max"}


def test_targets_that_do_not_count_change_neither_the_mean_nor_the_gradient(tmp_path):
    model, inputs = Dials(), torch.arange(6.0).reshape(3, 2)
    mask = torch.tensor([[False, True]] * 3)
    trainer_of(model, Batch(inputs, inputs, mask), tmp_path, steps=1, accumulation=2).fit()
    assert metrics(tmp_path)[0]["nats"] == 3.0
    assert metrics(tmp_path)[0]["tokens"] == 3
    assert torch.allclose(model.weight, torch.tensor(1 - 0.001 * 3))


def test_a_batch_in_which_no_target_counts_moves_nothing_and_is_no_part_of_any_mean(tmp_path):
    model, inputs = Dials(), torch.arange(6.0).reshape(3, 2)
    model.first.penalty = model.second.penalty = lambda: model.weight.sum() * 0
    none = Batch(inputs, inputs, torch.zeros(3, 2, dtype=torch.bool))
    trainer = trainer_of(model, none, tmp_path, steps=4, accumulation=2, clip=1.0)
    counted = iter([none, Batch(inputs, inputs), none, none])
    trainer.stream.next = lambda: (next(counted), False)
    assert trainer.fit()
    lines = [(one["step"], one["nats"], one["tokens"]) for one in metrics(tmp_path) if one["event"] == "train"]
    assert lines == [(2, 2.5, 6)]
    assert torch.allclose(model.weight, torch.tensor(1 - 0.001 * 1.0)), "one step of rate 0.001, clipped to a norm of 1"


def test_extra_tokens_are_neither_counted_nor_trained_on_twice(recipe, tmp_path):
    recipe = replace(recipe, data=replace(recipe.data, order=Contiguous(extra=5)))
    lines = [record for record in metrics(train(recipe, tmp_path / "run", quiet())) if record["event"] == "train"]
    assert [line["tokens"] for line in lines] == [2 * 16 * line["step"] for line in lines]


def test_rows_are_handed_their_state_but_for_the_first_segment_of_an_epoch(recipe, tmp_path, monkeypatch):
    fresh, forward = [], LanguageNetwork.forward

    def watched(self, batch, state=None):
        if self.training:
            fresh.append(state is None)
        return forward(self, batch, state)

    monkeypatch.setattr(LanguageNetwork, "forward", watched)
    recipe = replace(recipe, data=replace(recipe.data, batch=64, segment=32))
    train(recipe, tmp_path / "run", quiet())
    epoch = (int(0.8 * len(TEXT)) // 64 - 1) // 32
    assert fresh == [step % epoch == 0 for step in range(7)]
    assert 1 < epoch < 7, "there is something to see"


def test_state_can_be_carried_only_where_rows_continue(recipe):
    with pytest.raises(UserError, match="--order Contiguous"):
        Recipe(run=replace(recipe.run, carry=True))


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    recipe, tmp_path, monkeypatch, poison
):
    advance = Trainer.advance
    numbers = (torch.nan, 1.0) if poison == "loss" else (1.0, torch.inf)

    def poisoned(self):
        if self.step == 4:
            self.take_step = lambda *_: Outcome(*torch.tensor(numbers, dtype=torch.float64), None)
        advance(self)

    monkeypatch.setattr(Trainer, "advance", poisoned)
    with pytest.raises(Diverged, match=f"the {poison} after step 4.*step-00000004"):
        train(recipe, tmp_path / "run", quiet())
    assert all(parameter.isfinite().all() for parameter in weights(tmp_path / "run").values())


def test_weights_that_are_not_finite_are_never_saved(recipe, tmp_path):
    wild = replace(recipe, optimiser=AdamW(rate=1e38), run=replace(recipe.run, save_every=1))
    with pytest.raises(Diverged, match="lower learning rate"):
        train(wild, tmp_path / "run", quiet())
    assert all(parameter.isfinite().all() for parameter in weights(tmp_path / "run").values())


def test_a_new_run_can_start_from_another_ones_weights(recipe, tmp_path):
    source = train(recipe, tmp_path / "source", quiet())
    tuned = replace(recipe.run, start_from=source, steps=1, carry=False)
    run = train(replace(recipe, run=tuned), tmp_path / "tuned", quiet())
    best, first = weights(source, "best"), weights(run, "step-00000000")
    assert all(torch.equal(best[name], first[name]) for name in best)


def test_the_optimiser_comes_along_only_if_asked(recipe, tmp_path):
    source = train(recipe, tmp_path / "source", quiet())
    steps = {}
    for keep in (True, False):
        tuned = replace(recipe.run, start_from=source, keep_optimiser=keep, steps=1)
        run = train(replace(recipe, run=tuned), tmp_path / str(keep), quiet())
        saved = torch.load(run / "checkpoints/step-00000001/training.pt", weights_only=True)
        steps[keep] = int(saved["optimiser"][0]["state"][0]["step"])
    assert steps[False] == 1
    assert steps[True] > 1


@every_optimiser
def test_an_optimiser_of_another_kind_or_none_is_refused_before_there_is_a_folder(recipe, tmp_path, optimiser):
    source = train(replace(recipe, run=replace(recipe.run, steps=1)), tmp_path / "source", quiet())
    tuned = replace(recipe, optimiser=optimiser(), run=replace(recipe.run, start_from=source, keep_optimiser=True))
    checkpoints = Checkpoints(source / "checkpoints")
    checkpoints.save(2, load(source).model, {})  # as of a model that was imported
    (checkpoints.folder / "best.json").unlink()
    same = optimiser in (Adam, AdamW)
    with pytest.raises(UserError, match="has no optimiser" if same else "remembers other things"):
        train(tuned, tmp_path / "tuned", quiet())
    assert not (tmp_path / "tuned").exists()


def test_fine_tuning_goes_on_with_the_old_sums_at_the_new_rate(recipe, tmp_path):
    recipe = replace(recipe, optimiser=Adagrad(rate=0.07, clip=0.03), schedule=Constant())
    recipe = replace(recipe, run=replace(recipe.run, clip=None, steps=3))
    source = train(recipe, tmp_path / "source", quiet())
    old = torch.load(Checkpoints(source / "checkpoints").find("best") / "training.pt", weights_only=True)
    tuned = replace(recipe.run, start_from=source, keep_optimiser=True, steps=1, carry=False)
    run = train(
        replace(recipe, optimiser=replace(recipe.optimiser, rate=0.007), run=tuned), tmp_path / "tuned", quiet()
    )
    begun, ended = (
        torch.load(run / f"checkpoints/step-0000000{step}/training.pt", weights_only=True)["optimiser"][0]
        for step in (0, 1)
    )
    assert {group["lr"] for group in ended["param_groups"]} == {0.007}
    before, after = weights(run, "step-00000000"), weights(run, "step-00000001")
    for number, state in old["optimiser"][0]["state"].items():
        assert torch.equal(begun["state"][number]["sum"], state["sum"])
        assert (ended["state"][number]["sum"] >= state["sum"]).all()
        assert ended["state"][number]["step"] == state["step"] + 1
    moved = max((after[name] - before[name]).abs().max() for name in before)
    assert 0 < moved <= 0.007


def test_nothing_is_ever_overwritten(recipe, tmp_path):
    train(recipe, tmp_path / "run", quiet())
    with pytest.raises(UserError, match=r"not empty.*resume"):
        train(recipe, tmp_path / "run", quiet())


class Bowl(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix, self.vector = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))

    def hidden_matrices(self):
        return [self.matrix]

    def forward(self):
        return self.matrix.square().sum() + self.vector.square().sum()


@every_optimiser
def test_every_optimiser_goes_downhill_and_a_share_of_zero_stands_still(optimiser):
    bowl = Bowl()
    stepper = optimiser().build(bowl)
    before = bowl().item()
    for share in (0.0, 1.0):
        stepper.zero_grad()
        bowl().backward()
        stepper.set_share(share)
        stepper.step()
        after = bowl().item()
        assert after == before if share == 0 else after < before


@every_optimiser
def test_a_number_of_an_optimiser_that_would_not_lead_downhill_is_refused(optimiser):
    for field in fields(optimiser):
        for number in (-1.0, math.nan) if "rate" in field.name else (-1.0, 1.5, math.nan):
            try:
                chosen = optimiser(**{field.name: number})
            except UserError:
                continue
            bowl = Bowl()
            stepper, before = chosen.build(bowl), bowl().item()
            for _ in range(20):
                stepper.zero_grad()
                bowl().backward()
                stepper.step()
            assert bowl().item() < before, f"{field.name} of {number}"


@pytest.mark.parametrize("number", [-1, 20, math.nan])
def test_a_clip_turns_no_gradient_round_and_is_refused_where_it_would(number, tmp_path):
    model, inputs = Dials(), torch.ones(3, 2)
    try:
        trainer_of(model, Batch(inputs, inputs), tmp_path, clip=number).fit()
    except UserError:
        return
    assert model.weight < 1


def test_orthogonalised_matrices_move_all_directions_alike():
    matrices = torch.randn(3, 12, 5)
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.3
    for one, both in zip(matrices, orthogonalise(matrices), strict=True):
        torch.testing.assert_close(orthogonalise(one[None])[0], both)


@every_schedule_of_ours
def test_a_warm_up_warms_up_and_the_share_stays_between_zero_and_one(schedule):
    schedule = schedule(warmup=10)
    shares = [schedule.share(step, 100) for step in range(100)]
    assert all(0 < share <= 1 for share in shares)
    assert shares[:10] == sorted(shares[:10])
    assert shares[0] == pytest.approx(1 / 11)
    assert shares[10] == 1
    assert shares[10:] == sorted(shares[10:], reverse=True)


@every_schedule
@pytest.mark.parametrize("warmup", [0, 1, 2, 30])
def test_no_share_is_below_zero_or_above_one(schedule, warmup):
    validations = [(step, 1 + (step * 7 % 5)) for step in range(0, 100, 3)]
    schedule = schedule(warmup=warmup)
    for step in range(100):
        assert 0 <= schedule.share(step, 100, [found for found in validations if found[0] <= step]) <= 1


@every_schedule
def test_a_number_of_a_schedule_that_would_lead_out_of_zero_to_one_is_refused(schedule):
    for field in fields(schedule):
        for number in (-5, -1, 0, 1, 20, math.nan):
            try:
                chosen = schedule(**{field.name: number})
            except UserError:
                continue
            shares = [chosen.share(step, 100) for step in range(100)]
            assert all(0 <= share <= 1 for share in shares), f"{field.name} of {number}"
            assert max(shares) > 0.1, f"{field.name} of {number}"


def test_four_times_the_steps_have_half_the_rate():
    schedule = InverseSquareRoot(warmup=9)
    assert schedule.share(39, 100) == pytest.approx(0.5)
    assert schedule.share(159, 1000) == pytest.approx(0.25)


def rates_of_torch(losses, warmup, factor, patience, floor):
    """One for each update, by torch's own schedule and the originals' way to warm up; a validation after each."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, "min", factor, patience, min_lr=floor)
    rates = [1.0]
    for step, loss in enumerate(losses, start=1):
        if step < warmup:
            optimiser.param_groups[0]["lr"] = step / warmup
        schedule.step(loss)
        rates.append(optimiser.param_groups[0]["lr"])
    return rates


@given(
    losses=st.lists(st.floats(0.5, 4).map(lambda loss: round(loss, 2)), max_size=20),
    factor=st.sampled_from([0.5, 0.7]),
    patience=st.integers(0, 3),
    floor=st.sampled_from([0.0, 0.2]),
)
def test_a_plateau_is_what_torch_takes_it_for(losses, factor, patience, floor):
    schedule, found = Plateau(0, factor, patience, floor), list(enumerate(losses, start=1))
    shares = [schedule.share(step, 100, found[:step]) for step in range(len(losses) + 1)]
    assert shares == pytest.approx(rates_of_torch(losses, 0, factor, patience, floor))


@given(
    losses=st.lists(st.floats(0.5, 4).map(lambda loss: round(loss, 2)), max_size=20),
    warmup=st.integers(0, 6),
    patience=st.integers(0, 2),
    floor=st.sampled_from([0.0, 0.2]),
)
def test_the_originals_plateau_lowers_a_rate_that_is_still_warming_up(losses, warmup, patience, floor):
    schedule, found = TransformerXLPlateau(warmup, 0.5, patience, floor), list(enumerate(losses, start=1))
    shares = [schedule.share(step, 100, found[:step]) for step in range(len(losses) + 1)]
    assert shares == pytest.approx(rates_of_torch(losses, warmup, 0.5, patience, floor))


def test_the_originals_constant_rate_stays_short_of_the_whole():
    schedule = TransformerXLConstant(warmup=4)
    assert [schedule.share(step, 9) for step in range(7)] == [1.0, 0.25, 0.5, 0.75, 0.75, 0.75, 0.75]
    assert [TransformerXLConstant(warmup=1).share(step, 9) for step in range(3)] == [1.0, 1.0, 1.0]
