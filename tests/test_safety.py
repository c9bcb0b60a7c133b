"""Never losing a step: whatever happens to a run or its files, what was saved is used, and the user is told."""

import errno
import json
import os
import re
import resource
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from toys import TEXT, metrics, quiet, toy

from palimpsest.cli import main
from palimpsest.data.corpora import Text
from palimpsest.data.streams import Contiguous
from palimpsest.errors import UserError
from palimpsest.experiment import Recipe, load, resume, train
from palimpsest.experiment.run import train_or_resume
from palimpsest.files import held, told_if_full, write_atomically
from palimpsest.memory.update_rules import GatedDelta
from palimpsest.serialise import to_json
from palimpsest.training.checkpoint import MANIFEST, Checkpoints, is_whole, load_training, load_weights
from palimpsest.training.interrupts import Interrupts
from palimpsest.training.log import Log
from palimpsest.training.trackers import TensorBoard, Trackio, WandB, job_name
from palimpsest.training.trainer import Trainer

FILES = ("model.safetensors", "training.pt", MANIFEST)


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> Recipe:
    monkeypatch.setattr("palimpsest.experiment.run.write_report", lambda folder: folder)
    (tmp_path / "text.txt").write_text(TEXT)
    base = Recipe(name="toy")
    data = replace(base.data, corpus=Text(tmp_path / "text.txt", valid=0.1, test=0.1), order=Contiguous())
    return toy(replace(base, data=data), steps=6, carry=True, validate_every=3, save_every=2)


@pytest.fixture
def told() -> Console:
    """A console that keeps what it is told: `words(told)`."""
    return Console(file=StringIO(), width=1000)


def words(console: Console) -> str:
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def weights(folder: Path, checkpoint: str = "latest") -> dict[str, torch.Tensor]:
    return dict(load(folder, checkpoint).model.state_dict())


def two(folder: Path) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(step, nn.Linear(5, 5), {"step": step})
    return checkpoints


def is_read(checkpoint: Path) -> bool:
    """Whether it is; one that is refused must be named, in one line."""
    try:
        load_training(checkpoint)
        load_weights(nn.Linear(5, 5), checkpoint)
    except UserError as damage:
        return not (str(checkpoint) in str(damage) and "\n" not in str(damage))
    return True


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_off_anywhere_is_noticed(tmp_path, name):
    file = two(tmp_path).find("latest") / name
    whole = file.read_bytes()
    assert is_read(file.parent)
    for length in {0, 1, 7, 8, 9, *range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1}:
        file.write_bytes(whole[:length])
        # without its last byte, a newline, the manifest still says all that it said
        assert is_read(file.parent) == (name == MANIFEST and length == len(whole) - 1)


@pytest.mark.parametrize("name", FILES)
def test_a_bit_flipped_anywhere_is_noticed(tmp_path, name):
    file = two(tmp_path).find("latest") / name
    whole = file.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        file.write_bytes(flipped)
        blank = name == MANIFEST and chr(whole[place]).isspace()  # of which JSON makes nothing
        assert blank or not is_read(file.parent)


@pytest.mark.parametrize("name", FILES[:2])
def test_a_file_that_is_gone_is_noticed(tmp_path, name):
    checkpoint = two(tmp_path).find("latest")
    (checkpoint / name).unlink()
    assert not is_read(checkpoint)
    (checkpoint / MANIFEST).unlink()
    assert not is_read(checkpoint)


def test_a_checkpoint_from_before_there_were_manifests_is_read(tmp_path):
    checkpoint = two(tmp_path).find("latest")
    (checkpoint / MANIFEST).unlink()
    assert is_read(checkpoint)
    file = checkpoint / "training.pt"
    whole = file.read_bytes()
    for length in range(0, len(whole) - 1, len(whole) // 25):
        file.write_bytes(whole[:length])
        assert not is_read(checkpoint)


@pytest.mark.parametrize("damage", ["flipped", "empty folder"])
def test_the_one_before_a_damaged_checkpoint_is_used_the_user_told_and_the_end_the_same(recipe, tmp_path, told, damage):
    run = train(recipe, tmp_path / "run", quiet())
    before, last, mark = metrics(run), weights(run), (run / "checkpoints/best.json").read_text()
    latest = Checkpoints(run / "checkpoints").find("latest")
    if damage == "flipped":
        content = (latest / "model.safetensors").read_bytes()
        (latest / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        shutil.rmtree(latest)
        latest.mkdir()
    resume(run, told)
    assert f"{latest} is damaged" in words(told)
    assert "trying the one before" in words(told)
    assert "resumed from step-00000004" in words(told)
    assert metrics(run) == before
    assert all(torch.equal(last[name], weight) for name, weight in weights(run).items())
    assert (run / "checkpoints/best.json").read_text() == mark
    assert not [*(run / "checkpoints").glob("*.damaged")], "it went when a whole one had been written"


def test_a_damaged_best_checkpoint_does_not_keep_a_run_from_its_end(recipe, tmp_path, monkeypatch, told):
    worse = count(1.0)
    monkeypatch.setattr(Recipe, "validate", lambda *_: {"nats": next(worse)})
    run = train(recipe, tmp_path / "run", quiet())
    assert load(run).checkpoint == "step-00000003"
    (run / "checkpoints/step-00000003/model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"step-00000003 is damaged: .*; the newest is had with --checkpoint latest"):
        load(run)
    assert load(run, "latest").checkpoint == "step-00000006"
    resume(run, told)
    assert "step-00000003 is damaged" in words(told)
    assert "it was the best, for which step-00000006 now stands" in words(told)
    assert load(run).checkpoint == "step-00000006"
    assert json.loads((run / "evaluation.json").read_text())["checkpoint"] == "step-00000006"


def test_a_damaged_checkpoint_does_not_push_a_whole_one_out(recipe, tmp_path):
    recipe = replace(recipe, run=replace(recipe.run, keep=1, validate_every=100))
    run = train(recipe, tmp_path / "run", quiet())
    checkpoints = Checkpoints(run / "checkpoints", keep=1)
    late = checkpoints.folder / "step-00000099"  # such as one that a signal asked for, later than the next to be saved
    late.mkdir()
    resume(run, quiet())
    checkpoints.save(7, load(run).model, {})
    checkpoints.prune()
    assert checkpoints.find("latest").name == "step-00000007"
    assert is_whole(checkpoints.find("latest"))


def test_a_run_of_which_no_checkpoint_can_be_read_is_left_as_it_is(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", quiet())
    for checkpoint in Checkpoints(run / "checkpoints").all():
        (checkpoint / "training.pt").write_bytes(b"")
    before, found = metrics(run), sorted((run / "checkpoints").iterdir())
    with pytest.raises(UserError, match=r"no checkpoint in .* can be read: bring a copy"):
        resume(run, quiet())
    assert metrics(run) == before
    assert sorted((run / "checkpoints").iterdir()) == found


def test_a_run_of_which_no_checkpoint_is_left_is_left_as_it_is(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", quiet())
    before = metrics(run)
    shutil.rmtree(run / "checkpoints")
    for go_on in (resume, lambda folder, console: train_or_resume(recipe, folder, console)):
        with pytest.raises(UserError, match=r"no checkpoint left in .*: bring a copy"):
            go_on(run, quiet())
        assert metrics(run) == before
        assert not (run / "checkpoints").exists()


@pytest.mark.parametrize("lines", ["", '{"event": "train", "step": 1, "nats": 5.0}\n'], ids=["no step", "steps"])
def test_a_run_killed_while_its_first_checkpoint_was_written_begins_again(recipe, tmp_path, lines):
    """It may have made steps meanwhile, where checkpoints are written beside them."""
    whole, run = train(recipe, tmp_path / "whole", quiet()), train(recipe, tmp_path / "run", quiet())
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints/step-00000000.partial").mkdir(parents=True)
    (run / "metrics.jsonl").write_text(lines)
    assert metrics(resume(run, quiet())) == metrics(whole)


def test_a_run_of_which_only_the_beginning_was_saved_and_is_damaged_begins_again(recipe, tmp_path):
    whole, run = train(recipe, tmp_path / "whole", quiet()), train(recipe, tmp_path / "run", quiet())
    for checkpoint in Checkpoints(run / "checkpoints").all():
        shutil.rmtree(checkpoint)
    (run / "checkpoints/step-00000000").mkdir()
    assert metrics(resume(run, quiet())) == metrics(whole)
    assert all(torch.equal(weights(whole)[name], weight) for name, weight in weights(run).items())


def test_the_best_is_known_though_a_kill_came_before_it_was_marked(recipe, tmp_path, monkeypatch):
    whole = train(recipe, tmp_path / "whole", quiet())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "mark_best", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "run", quiet())
    run = resume(tmp_path / "run", quiet())
    assert (run / "checkpoints/best.json").read_text() == (whole / "checkpoints/best.json").read_text()
    (run / "checkpoints/best.json").write_text('{"st')
    resume(run, quiet())
    assert (run / "checkpoints/best.json").read_text() == (whole / "checkpoints/best.json").read_text()


class Killed(BaseException):
    pass


def test_at_no_moment_are_there_fewer_checkpoints_than_before(tmp_path, monkeypatch):
    """Killed at each change of a name and in each removal: of a step that was saved before, a new one, old ones."""
    calls, after = 0, 0

    def counted(change, removed=0):
        def changed(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls > after:
                for file in [*arguments[0].glob("*")][:removed]:
                    file.unlink()
                raise Killed
            return change(*arguments, **options)

        return changed

    kills = 0
    while True:
        folder = tmp_path / str(after)
        checkpoints = two(folder)
        checkpoints.keep = 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted(os.replace))
            patch.setattr(shutil, "rmtree", counted(shutil.rmtree, removed=1))
            calls = 0
            try:
                checkpoints.save(2, nn.Linear(5, 5), {"step": 2})
                checkpoints.save(3, nn.Linear(5, 5), {"step": 3})
                checkpoints.prune()
            except Killed:
                kills += 1
                assert all(is_whole(path) for path in checkpoints.all())
                assert checkpoints.find("latest").name in ("step-00000002", "step-00000003")
                after += 1
                continue
        assert kills > 3, "there were moments to kill at"
        return


def test_old_remains_go_before_a_new_checkpoint_needs_their_room(tmp_path):
    checkpoints = two(tmp_path)
    (tmp_path / "step-00000007.partial").mkdir()
    checkpoints.save(3, nn.Linear(5, 5), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002", "step-00000003"]


@contextmanager
def files_of_at_most(size: int):
    """As full as a disk can be made for one process alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_one_before_whole_and_is_said_in_one_line(tmp_path):
    checkpoints, model = Checkpoints(tmp_path / "checkpoints"), nn.Linear(70, 70)
    first = checkpoints.save(1, model, {"all": model.state_dict()})
    largest = max(file.stat().st_size for file in first.iterdir())
    for size in (0, 150, 2_000, 12_000, largest - 1):
        with files_of_at_most(size), pytest.raises(UserError) as full:
            checkpoints.save(2, model, {"all": model.state_dict()})
        said = str(full.value)
        assert "\n" not in said
        assert f"{checkpoints.folder / 'step-00000002'} could not be written" in said
        assert "GiB free" in said
        assert f"step-00000001 is whole: make room on that disk, then go on with `palimpsest resume {tmp_path}`" in said
        assert [*checkpoints.folder.iterdir()] == [first]
        assert is_whole(first)
    with files_of_at_most(largest):
        assert is_whole(checkpoints.save(2, model, {"all": model.state_dict()}))


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")


def filled_after(step, fill):
    advance = Trainer.advance

    def advanced(trainer):
        advance(trainer)
        if trainer.step == step:
            fill()

    return advanced


def test_a_run_stopped_by_a_full_disk_leaves_with_2_and_goes_on_when_there_is_room(
    recipe, tmp_path, monkeypatch, capsys
):
    whole = train(recipe, tmp_path / "whole", quiet())
    write_atomically(tmp_path / "recipe.json", json.dumps(to_json(recipe)))
    command = ["train", str(tmp_path / "recipe.json"), "--folder", str(tmp_path / "run"), "--resume", "auto"]
    for owner, name in ((torch, "save"), (Log, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "advance", filled_after(3, lambda: patch.setattr(owner, name, no_room)))  # noqa: B023
            with pytest.raises(SystemExit) as left:
                main(command)
        said = capsys.readouterr().err.splitlines()[-1]
        assert left.value.code == 2
        assert said.startswith("palimpsest: ")
        assert "make room" in said
        assert "palimpsest resume" in said
    main(command)
    assert metrics(tmp_path / "run") == metrics(whole)


def test_other_troubles_with_files_are_not_taken_for_a_full_disk():
    with pytest.raises(PermissionError), told_if_full():
        raise PermissionError(errno.EACCES, "Permission denied")


def test_the_same_command_again_and_again_begins_goes_on_and_ends(recipe, tmp_path, monkeypatch, told):
    whole = train(recipe, tmp_path / "whole", quiet())
    run, advance = tmp_path / "run", Trainer.advance

    def stopped(self):
        advance(self)
        if self.step in (2, 4):
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Trainer, "advance", stopped)
    for step in (2, 4, 6, 6):
        train_or_resume(recipe, run, told)
        assert metrics(run)[-1]["step"] == step
    assert words(told).count("stopped after step") == 2
    assert metrics(run) == metrics(whole)


def test_another_recipe_is_refused_and_told_in_what_it_differs(recipe, tmp_path):
    run = train(recipe, tmp_path / "run", quiet())
    other = replace(recipe, run=replace(recipe.run, steps=9), model=replace(recipe.model, width=12))
    with pytest.raises(UserError) as refused:
        train_or_resume(other, run, quiet())
    assert "model.width is 24 there and 12 here; run.steps is 6 there and 9 here" in str(refused.value)
    assert str(run) in str(refused.value)


def test_a_run_killed_before_its_recipe_was_written_begins_again_in_its_folder(recipe, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "vocabulary.json").write_text("{}")
    (run / f".corpus.json.{'0' * 32}").write_text("{")
    train_or_resume(recipe, run, quiet())
    assert (run / "evaluation.json").exists()
    assert not [*run.glob(".corpus*")]


def test_a_run_that_another_process_begins_is_left_to_it(recipe, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "vocabulary.json").write_text("{}")
    with held(run), pytest.raises(UserError, match="another process is at work"):
        train_or_resume(recipe, run, quiet())
    assert (run / "vocabulary.json").read_text() == "{}"


@pytest.mark.parametrize("again", [train, train_or_resume])
def test_of_two_runs_that_begin_in_one_folder_the_first_has_it(recipe, tmp_path, monkeypatch, again):
    run, refusals = tmp_path / "run", []
    other = replace(recipe, run=replace(recipe.run, seed=2))

    def interrupted(path, data):
        if path.parent == run and path.name != "recipe.json" and len(refusals) < 3:
            with pytest.raises(UserError, match="another process is at work") as refused:
                again(other, run, quiet())
            refusals.append(refused.value)
        write_atomically(path, json.dumps(data))

    monkeypatch.setattr("palimpsest.experiment.run.write_json", interrupted)
    train(recipe, run, quiet())
    assert len(refusals) == 3
    assert Recipe.read(run / "recipe.json") == recipe
    assert (run / "evaluation.json").exists()


def test_a_record_is_one_line_and_what_to_type_is_quoted(recipe, tmp_path, monkeypatch):
    narrow, tick = Console(file=StringIO(), width=20), Log.tick
    monkeypatch.setattr(Log, "tick", lambda log, step: (tick(log, step), step == 2 and signal.raise_signal(2)))
    run = train(recipe, tmp_path / "my run", narrow)
    said = words(narrow).splitlines()
    assert said[-1] == f"stopped after step 2; go on with: palimpsest resume '{run}'"
    records = [line for line in said if " train  step " in line and "tokens/s" in line]
    assert len(records) == len([record for record in metrics(run) if record["event"] == "train"]) == 2


def test_brackets_in_a_name_are_said_as_they_are(recipe, tmp_path, told):
    run = train(recipe, tmp_path / "[bold]q[/]c :smile:", told)
    assert f"{run}: " in words(told)
    (run / "checkpoints/step-00000006/training.pt").write_bytes(b"")
    resume(run, told)
    assert f"{run}/checkpoints/step-00000006 is damaged" in words(told)


def test_a_folder_that_holds_only_the_mark_of_a_process_that_was_killed_is_empty(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    assert (train(recipe, tmp_path / "run", quiet()) / "evaluation.json").exists()


def test_runs_that_can_have_no_folder_are_refused_in_one_line(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for folder in ("file", "link", "file/run", "x" * 256):
        with pytest.raises(UserError, match=r"cannot be made .*: choose another --folder"):
            train(recipe, Path(folder), quiet())
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(UserError, match="runs cannot be made"):
        train(recipe, None, quiet())


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "a/", ".", ".."])
def test_a_name_chooses_no_other_place_than_runs(recipe, tmp_path, monkeypatch, name):
    (tmp_path / "here/below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here/below")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=f"the name '{re.escape(name)}' .*: --folder chooses another place"):
        train(replace(recipe, name=name), None, quiet())
    assert sorted(tmp_path.rglob("*")) == before
    assert train(replace(recipe, name=name), Path("chosen"), quiet()) == Path("chosen")


@pytest.mark.parametrize("name", ["novel.txt", "corpus.jsonl", "my-vocabulary.json"])
def test_a_folder_with_anything_else_in_it_is_left_alone(recipe, tmp_path, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        train_or_resume(recipe, tmp_path / "run", quiet())
    assert (tmp_path / "run" / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [("--resume auto", "needs --folder"), ("--folder x --resume runs/old", "palimpsest resume runs/old")],
)
def test_resume_without_a_folder_or_with_another_word_is_explained(capsys, flags, complaint):
    with pytest.raises(SystemExit) as left:
        main(["train", *flags.split()])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_every_signal_that_schedulers_send_asks_to_stop_and_is_given_back(number):
    before = signal.getsignal(number)
    with Interrupts() as stop:
        assert not stop.asked
        signal.raise_signal(number)
        assert stop.asked
    assert signal.getsignal(number) is before


def test_a_job_is_named_for_what_differs_from_the_default_recipe():
    base = Recipe(name="mine")
    assert job_name(to_json(base)) == "mine"
    changed = replace(base, run=replace(base.run, steps=7, device="cpu"), data=replace(base.data, order=Contiguous(3)))
    assert job_name(to_json(changed)) == "mine steps=7 Contiguous extra=3"
    block = base.model.block
    gated = replace(base.model, block=replace(block, mixer=replace(block.mixer, update_rule=GatedDelta(keep=0.5))))
    assert job_name(to_json(replace(base, model=gated))) == "mine GatedDelta keep=0.5"
    long = replace(base, name="long " * 20)
    assert len(job_name(to_json(replace(changed, name=long.name)))) <= 128


class Recorder:
    """Stands in for wandb and trackio where only what they are asked matters."""

    def __init__(self):
        self.begun, self.told, self.finished = [], [], 0

    def init(self, **options):
        print("as trackio does", file=sys.stdout if "id" not in options else sys.stderr)
        self.begun.append(options)
        return self

    def log(self, numbers, step):
        self.told.append((step, numbers))

    def finish(self):
        self.finished += 1


@pytest.mark.parametrize(
    ("tracking", "package"), [(WandB(project="ours"), "wandb"), (Trackio(project="ours"), "trackio")]
)
def test_a_run_that_goes_on_is_known_again_by_its_tracker_and_no_other_is_taken_for_it(
    tmp_path, monkeypatch, capsys, tracking, package
):
    recorder, recipe = Recorder(), to_json(Recipe(name="mine"))
    monkeypatch.setitem(sys.modules, package, recorder)
    for folder in ("a/run-001", "a/run-001", "b/run-001"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        tracker = tracking.open(tmp_path / folder, recipe)
        tracker.log(3, {"train/nats": 1.0})
        tracker.close()
    first, again, other = ((one.get("id"), one["name"]) for one in recorder.begun)
    assert first == again != other
    assert {one["project"] for one in recorder.begun} == {"ours"}
    assert all(one["resume"] == "allow" and one["config"] == recipe for one in recorder.begun)
    assert recorder.told == [(3, {"train/nats": 1.0})] * 3
    assert recorder.finished == 3
    assert capsys.readouterr().out == "", "standard output is for answers"
    replace(tracking, job="given").open(tmp_path / "a/run-001", recipe)
    assert recorder.begun[-1]["name"].startswith("given")


@pytest.mark.parametrize("tracking", [WandB(), Trackio(), TensorBoard()], ids=lambda part: type(part).__name__)
def test_a_tracker_that_is_not_installed_is_one_line_with_the_remedy(tmp_path, monkeypatch, tracking):
    package = type(tracking).__name__.lower()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as missing:
        tracking.open(tmp_path, to_json(Recipe()))
    assert str(missing.value) == f"{package} is not installed: pip install 'palimpsest[{package}]'"


def test_a_mode_that_wandb_does_not_have_is_refused():
    with pytest.raises(UserError, match="online, offline, disabled; found 'off'"):
        WandB(mode="off")


def test_tensorboard_has_every_number_though_the_run_is_killed(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard().open(tmp_path, {})
    tracker.log(2, {"train/nats": 1.5})  # and not closed
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/nats")] == [(2, 1.5)]


def test_the_lines_of_the_log_are_on_the_disk_before_the_checkpoint_that_follows_them(recipe, tmp_path, monkeypatch):
    order = []
    save = Checkpoints.save
    monkeypatch.setattr("palimpsest.training.log.flush", lambda path: order.append(len(path.read_text().splitlines())))
    monkeypatch.setattr(Checkpoints, "save", lambda *given: order.append(f"step {given[1]}") or save(*given))
    train(recipe, tmp_path / "run", quiet())
    written = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for lines, saved in zip(order[1::2], order[2::2], strict=True):  # the first checkpoint comes before any line
        assert lines == len([step for step in written if step <= int(saved.split()[1])])
    assert order[0] == "step 0"
