"""A run: a recipe carried out in a folder of its own, `runs/NAME-001`, in which there are

    recipe.json        alone rebuilds the run
    environment.json   the machine
    vocabulary.json    the tokens
    corpus.json        checksums of what is read
    metrics.jsonl      one line for each step written down
    checkpoints/       the newest few and the best
    evaluation.json    the exact score
    samples.txt        what the model writes
    curves.png, report.html

and nothing is ever overwritten.
"""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ..data.streams import Stream
from ..data.tokens import Tokens
from ..errors import UserError
from ..files import LOCK, from_the_root, held, write_atomically
from ..report.comparison import differences, said
from ..report.page import write_report
from ..serialise import to_json
from ..shards import whole
from ..training.checkpoint import Checkpoints, check, load_training, load_weights
from ..training.log import Log, Silence, Voice, say
from ..training.precision import Single
from ..training.trainer import Trainer
from ..world import World
from .recipe import Recipe
from .trained import fingerprint, load, read_tokens, refuse_another

FIRST = "step-00000000"  # the checkpoint that is written before any step
# all that can be there before recipe.json is, and what was being written among it
BEGINNINGS = re.compile(r"(vocabulary|corpus|environment)\.json|\.\w+\.json\.[0-9a-f]{32}")


def train(recipe: Recipe, folder: Path | None = None, console: Console | None = None) -> Path:
    """Carry the recipe out in a new folder, alone or with the other processes of torchrun; returns the folder."""
    recipe = recipe.from_the_root()
    world = World.join(recipe.run.device, recipe.run.threads)
    console = voice(console, world)
    tokens = world.in_turn(lambda: read_tokens(recipe, recipe.run.start_from, partial(say, console)))
    # before the folder: a recipe that cannot be built leaves nothing behind
    workshop = world.together(lambda: Workshop.open(recipe, tokens, world))
    world.together(workshop.refuse_beginning)
    with ExitStack() as hold:
        folder = world.first(lambda: begin_folder(workshop, folder, hold))
        return proceed(workshop, folder, console)


def begin_folder(workshop: "Workshop", folder: Path | None, hold: ExitStack) -> Path:
    """A folder with all that a run begins with, held from before the first of it on."""
    folder = hold.enter_context(new_folder(folder, workshop.recipe.name))
    write_json(folder / "vocabulary.json", workshop.tokens.codec.to_json())
    write_json(folder / "corpus.json", fingerprint(workshop.tokens))
    write_json(folder / "environment.json", workshop.describe())
    write_json(folder / "recipe.json", to_json(workshop.recipe))  # last: a folder with a recipe is a run
    return folder


def resume(folder: Path, console: Console | None = None) -> Path:
    """Go on with a run that was stopped, as if it never had been; with as many processes as there are now."""
    recipe = Recipe.read(folder / "recipe.json")
    world = World.join(recipe.run.device, recipe.run.threads)
    console = voice(console, world)
    quoted = shlex.quote(str(folder))
    if not (folder / "corpus.json").exists():
        raise UserError(f"{folder} was not trained here; begin with its weights: palimpsest train --from {quoted}")
    tokens = world.in_turn(lambda: read_tokens(recipe, folder, partial(say, console)))
    refuse_another(tokens, recipe, folder, f"go on with it, or begin a new run with `palimpsest train --from {quoted}`")
    workshop = world.together(lambda: Workshop.open(recipe, tokens, world))
    with ExitStack() as hold:
        world.first(lambda: hold.enter_context(held(folder)))
        return proceed(workshop, folder, console)


def train_or_resume(recipe: Recipe, folder: Path, console: Console | None = None) -> Path:
    """Go on with the recipe's run in this folder, or begin it there: the same call again and again gets it done."""
    world = World.join(recipe.run.device, recipe.run.threads)
    if not world.first((folder / "recipe.json").exists):
        world.first(lambda: clear_beginnings(folder))
        return train(recipe, folder, console)
    theirs, recipe = Recipe.read(folder / "recipe.json").from_the_root(), recipe.from_the_root()
    if theirs != recipe:
        rows = differences([to_json(theirs), to_json(recipe)])
        list_of_them = "; ".join(f"{row.path} is {said(row, 0)} there and {said(row, 1)} here" for row in rows)
        raise UserError(f"{folder} holds a run of another recipe ({list_of_them}): choose another --folder")
    return resume(folder, console)


def voice(console: Console | None, world: World) -> Console:
    """The first process speaks for all."""
    return console or Voice() if world.is_first else Console(quiet=True)


def clear_beginnings(folder: Path) -> None:
    """What a run leaves that was killed before it had written its recipe down: nothing of it is needed."""
    if not folder.is_dir():
        return
    with held(folder):  # or another process may be writing them
        found = contents(folder)
        if all(BEGINNINGS.fullmatch(path.name) for path in found):
            for path in found:
                path.unlink()


@dataclass(frozen=True)
class Workshop:
    """A recipe with everything built that it names."""

    recipe: Recipe
    tokens: Tokens
    world: World
    model: nn.Module
    stream: Stream

    @classmethod
    def open(cls, recipe: Recipe, tokens: Tokens, world: World) -> "Workshop":
        recipe.require()
        check_splits(recipe, tokens)
        recipe.data.check_shares(world.size)
        model = recipe.model.build(tokens.codec.size, torch.Generator().manual_seed(recipe.run.seed))
        recipe.run.refuse(model, world)
        recipe.optimiser.refuse(model)
        stream = recipe.data.stream(tokens.splits["train"], recipe.run.seed)
        return cls(recipe, tokens, world, model.to(world.device), stream)

    def refuse_beginning(self) -> None:
        """Say, before anything is written, why a new run could not take its first step."""
        run = self.recipe.run
        if run.tracking is not None and self.world.is_first:
            run.tracking.require()
        if run.start_from is not None:
            source = start_of(run.start_from)
            load_weights(self.model, source)
            if run.keep_optimiser:
                self.refuse_optimiser(run.start_from, source)
        elif run.keep_optimiser:
            raise UserError("--keep-optimiser takes the optimiser of another run: say of which, --from RUN")

    def refuse_optimiser(self, other: Path, source: Path) -> None:
        """Of another run, if this run's cannot go on from what it remembers."""
        ours, theirs = self.recipe.optimiser, Recipe.read(other / "recipe.json").optimiser
        if not ours.goes_on_from(theirs):
            name = type(theirs).__name__
            raise UserError(
                f"{other} was trained with {name}, and {type(ours).__name__} remembers other things: leave "
                f"--keep-optimiser out, or add --optimiser {name}"
            )
        if "optimiser" not in load_training(source, self.world):
            raise UserError(f"{other} was not trained here and has no optimiser: leave --keep-optimiser out")

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def validate(self) -> dict[str, float]:
        return self.recipe.validate(whole(self.model, self.world.device), self.tokens, self.world)

    def describe(self) -> dict[str, Any]:
        started = datetime.now().astimezone().isoformat(timespec="seconds")
        return {**self.world.describe(), "parameters": self.parameters, "started": started}


def proceed(workshop: Workshop, folder: Path, console: Console) -> Path:
    """In a folder that is held."""
    if carry_out(workshop, folder, console):
        conclude(workshop, folder, console)
    return folder


def carry_out(workshop: Workshop, folder: Path, console: Console) -> bool:
    """Train to the end; False when a signal asked to stop before it."""
    recipe, tokens, world = workshop.recipe, workshop.tokens, workshop.world
    sizes = ", ".join(f"{split.tokens:,} {name}" for name, split in tokens.splits.items())
    processes = "" if world.size == 1 else f", {world.size} processes"
    say(console, f"{folder}: {workshop.parameters:,} parameters on {world.describe()['device']}{processes}")
    say(console, f"{tokens.codec.unit}s: {sizes}; {recipe.data.per_step:,} a step")
    if line := workshop.stream.told():
        say(console, line)
    with open_log(workshop, folder, console) as log:
        trainer = Trainer(
            workshop.model, workshop.stream, workshop.validate, recipe.optimiser, recipe.schedule, recipe.run,
            folder, log, world,
        )  # fmt: skip
        begin(trainer, recipe, console)
        finished = trainer.fit()
    if not finished:
        say(console, f"stopped after step {trainer.step}; go on with: palimpsest resume {shlex.quote(str(folder))}")
    return finished


def open_log(workshop: Workshop, folder: Path, console: Console) -> Log:
    recipe, path = workshop.recipe, folder / "metrics.jsonl"
    if not workshop.world.is_first:
        return Silence(path, recipe.run.steps)
    tracker = recipe.run.tracking and recipe.run.tracking.open(folder, to_json(recipe))
    return Log(path, recipe.run.steps, console, tracker, workshop.tokens.codec.unit)


def begin(trainer: Trainer, recipe: Recipe, console: Console) -> None:
    """From the newest checkpoint that can be read, else from another run's weights, else from scratch."""
    checkpoints, world = trainer.checkpoints, trainer.world
    world.first(lambda: refuse_bereft(checkpoints, trainer.log.path))
    damaged: list[Path] = []
    for checkpoint in reversed(world.first(checkpoints.all)):
        try:
            world.together(lambda: trainer.resume(checkpoint))  # noqa: B023 (called at once)
        except UserError as damage:
            say(console, f"{damage}; trying the one before")
            damaged.append(checkpoint)
            continue
        say(console, f"resumed from {checkpoint.name}")
        world.first(lambda: pass_over(checkpoints, damaged))
        if trainer.validations:  # a kill may have come between a checkpoint and the mark that it is the best
            checkpoints.mark_best(*min(trainer.validations, key=lambda validation: validation[1]))
        return
    if any(checkpoint.name != FIRST for checkpoint in damaged):
        raise UserError(
            f"no checkpoint in {checkpoints.folder} can be read: bring a copy of one back, or train anew elsewhere"
        )
    trainer.log.cut_back(0)  # before the damaged one is put away: a kill between must not leave lines of no checkpoint
    world.first(lambda: pass_over(checkpoints, damaged))
    if recipe.run.start_from is not None:
        source = start_of(recipe.run.start_from)
        trainer.start_from(source)
        say(console, f"weights taken from {source}")


def refuse_bereft(checkpoints: Checkpoints, log: Path) -> None:
    """A run that made steps has had a checkpoint: where none is left, beginning again would forget all its numbers."""
    had_its_first = not (checkpoints.folder / FIRST).with_suffix(".partial").exists()  # it may be written beside steps
    if not checkpoints.all() and had_its_first and log.exists() and log.stat().st_size:
        raise UserError(
            f"there is no checkpoint left in {checkpoints.folder}, but {log.name} tells of steps that were made: "
            "bring a copy of one back, or train anew elsewhere"
        )


def start_of(other: Path) -> Path:
    """The checkpoint of another run that one starts from."""
    return Checkpoints(other / "checkpoints").find("best")


def pass_over(checkpoints: Checkpoints, damaged: list[Path]) -> None:
    """They are later than where the run goes on from, so they must not count as its newest."""
    for checkpoint in damaged:
        checkpoints.set_aside(checkpoint)


def pass_over_best(checkpoints: Checkpoints, console: Console) -> None:
    """If it is damaged: the newest, from which the run has come this far, is then the best there is."""
    best = checkpoints.find("best")
    try:
        check(best, "model.safetensors")
    except UserError as damage:
        checkpoints.set_aside(best)
        say(console, f"{damage}; it was the best, for which {checkpoints.find('latest').name} now stands")


def conclude(workshop: Workshop, folder: Path, console: Console) -> None:
    """Evaluate exactly, all together; the first samples and writes the report."""
    tokens, world = workshop.tokens, workshop.world
    world.first(lambda: pass_over_best(Checkpoints(folder / "checkpoints"), console))
    trained = replace(load(folder, device=str(world.device)), world=world)
    score = trained.evaluate(tokens.splits["valid"])
    if not world.is_first:
        return
    told = {"split": "valid", "checkpoint": trained.checkpoint, "precision": Single.__name__}
    write_json(folder / "evaluation.json", {**told, **score.to_json()})
    if workshop.recipe.run.sample:
        write_atomically(folder / "samples.txt", trained.sample(tokens, workshop.recipe.run.sample) + "\n")
    say(console, f"{trained.tell(score)} on the whole validation split ({score.tokens:,} targets)")
    try:
        say(console, f"report: {write_report(folder)}")
    except UserError as missing:
        say(console, f"no report: {missing}")


def check_splits(recipe: Recipe, tokens: Tokens) -> None:
    for name in ("train", "valid"):
        split = tokens.splits.get(name)
        if split is None or split.targets < 1:
            raise UserError(
                f"the corpus {recipe.data.corpus.name!r} has no {name} split to speak of: give it more text, "
                "or files named train, valid and test in one folder"
            )


@contextmanager
def new_folder(folder: Path | None, name: str) -> Iterator[Path]:
    """A folder nobody used before, and held, so that nobody else begins in it."""
    folder = make_folder(folder, name)
    with held(folder):
        if contents(folder):
            raise UserError(
                f"{folder} is not empty: go on with `palimpsest resume {shlex.quote(str(folder))}`, "
                "or choose another --folder"
            )
        yield folder


def make_folder(folder: Path | None, name: str) -> Path:
    """The one that was asked for, or the next of this name."""
    from_the_root(folder or Path(name))  # refuses a name that could not be written down
    try:
        if folder is None:
            return next_folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    except OSError as error:
        raise UserError(
            f"the folder {error.filename} cannot be made ({error.strerror}): choose another --folder"
        ) from error


def next_folder(name: str) -> Path:
    """`runs/NAME-001`, or the first that is not there yet."""
    if name == ".." or Path(name).name != name:
        raise UserError(f"the name {name!r} would lead out of the folder runs: --folder chooses another place")
    number = 1
    while True:
        candidate = Path("runs") / f"{name}-{number:03d}"
        candidate.parent.mkdir(parents=True, exist_ok=True)  # what is in its way is in the way of every number
        try:
            candidate.mkdir()
            return candidate
        except FileExistsError:
            number += 1


def contents(folder: Path) -> list[Path]:
    """All but the mark of whoever is at work there, or was when it was killed."""
    return [path for path in folder.iterdir() if path.name != LOCK]


def write_json(path: Path, data: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
