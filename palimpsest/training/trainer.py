"""The training loop: batches in, checkpoints and numbers out. It knows no layer by name.

A GPU is told what to do and not waited for: what its steps found is read when a line of the log is due.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from torch import nn

from ..batch import Batch
from ..errors import Diverged
from ..shards import local
from ..spec import Bound, Count, NotNegative, Size, Spec
from ..state import State, leaves, move, refill
from ..world import World
from .averages import Average
from .checkpoint import load_training, load_weights
from .compilation import Compilation
from .hooks import hooks
from .interrupts import Interrupts
from .log import Log
from .optimisers import Optimiser
from .precision import Precision, Single
from .schedules import Schedule
from .speed import Gauge
from .spread import Replicated, Spread
from .step import Outcome, Replay, ScaledStep, Step, refuse_passes, refuse_replay
from .trackers import Tracking

APART = 2_654_435_761  # seeds of processes; in their lower 32 bits, for those are all that a CPU's generator looks at
Seed = Annotated[int, Bound("a whole number of 64 bits", lambda seed: -(2**63) <= seed < 2**64)]
ECHO = 5.0  # seconds: torchrun passes signals on, also those that its processes have got already


@dataclass(frozen=True)
class Run(Spec):
    """How long to train, and what to write down on the way."""

    steps: Size = 1000
    seed: Seed = 1
    carry: bool = False  # hand each row's state on to the next segment, for an order whose rows continue
    accumulation: Size = 1  # pieces a process cuts its rows of a batch into; changes memory and time, not results
    clip: NotNegative | None = 1.0  # largest norm of the gradient; 0, as None: any
    average: Average | None = None  # of the weights: what is validated and saved, while the newest are trained
    precision: Precision = Single()
    compile: Compilation | None = None  # by torch, before the first step
    replay: bool = False  # record a step as a CUDA graph, and replay it
    log_every: Size = 25
    validate_every: Size = 250
    save_every: Size = 250
    keep: Size = 2  # newest checkpoints kept, beside the best
    sample: Count = 500  # tokens that it writes at its end, for you to look at
    device: str = "auto"
    threads: Size | None = None  # of the CPU; None leaves the choice to PyTorch
    spread: Spread = Replicated()  # over the processes that torchrun starts; changes memory and time, not results
    tracking: Tracking | None = None
    start_from: Path | None = None  # another run, whose weights this one starts from
    keep_optimiser: bool = False  # … and whose optimiser too

    def refuse(self, model: nn.Module, world: World) -> None:
        """Say, before anything is written, what of this run cannot be."""
        if self.compile is not None or self.replay:
            refuse_passes(model)
        if self.compile is not None:
            self.spread.refuse_compilation()
        if self.replay:
            refuse_replay(world, self.precision)


class Stream(Protocol):
    def next(self) -> tuple[Batch, bool]: ...

    def position(self) -> dict[str, int]: ...

    def seek(self, position: dict[str, int]) -> None: ...


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        stream: Stream,
        validate: Callable[[], dict[str, float]],
        optimiser: Optimiser,
        schedule: Schedule,
        run: Run,
        folder: Path,
        log: Log,
        world: World,
    ):
        run.spread.place(model, world)
        self.model, self.stream, self.validate = model, stream, validate
        self.run, self.log, self.world, self.device = run, log, world, world.device
        self.stepper, self.schedule = optimiser.build(model), schedule
        self.average = None if run.average is None else run.average.build(model)
        self.scaling = run.precision.scaling()
        self.take_step = self.build_step()
        self.followers, self.gauges = (hooks(model, hook) for hook in ("after_step", "gauges"))
        self.checkpoints = run.spread.checkpoints(folder / "checkpoints", run.keep, world)
        self.step, self.tokens, self.seconds, self.best = 0, 0, 0.0, math.inf
        self.validations: list[tuple[int, float]] = []  # steps made, and nats
        self.saved = -1  # the last step of which a checkpoint was written
        self.state: State | None = None
        self.since, self.speed = Interval(), Gauge(model, world.device)
        self.unread: list[Outcome] = []  # of the newest steps

    def build_step(self) -> Step | Replay:
        run, model = self.run, self.model
        passing = model if run.compile is None else run.compile.build(model)
        parts = model, passing, self.stepper, self.world, run.precision, run.accumulation, run.clip, run.carry
        step = Step(*parts) if self.scaling is None else ScaledStep(*parts, scaling=self.scaling)
        if not run.replay:
            return step
        self.stepper.hold_rates(self.device)
        return Replay(step)

    def fit(self) -> bool:
        """Train to the last step; False when a signal asked to stop before it."""
        if self.step == 0:
            self.save()  # so that there is always one to come back to
        echo, stopping = ECHO if self.world.size > 1 else 0.0, False
        with Interrupts(echo) as stop, torch.random.fork_rng(devices=self.forked_devices()):
            while self.step < self.run.steps and not stopping:
                self.advance()
                self.report()
                self.checkpoints.look_after()
                stopping = self.world.any(stop.asked)
                if self.is_due(self.run.save_every) or stopping:
                    self.save()
            self.checkpoints.finish()
        return self.step == self.run.steps

    def advance(self) -> None:
        start = time.perf_counter()
        # chance is a function of the seed and the step, so that a resumed run draws what it would have drawn
        seed = self.run.seed * 1_000_003 + self.step
        draw_from(seed + self.world.rank * APART)  # what is dropped is another thing in each row
        batch, continues = self.stream.next()
        state = self.state if continues else None
        count, mine = batch.count(), self.world.rows(len(batch.inputs))
        self.model.train()
        self.stepper.set_share(self.share(self.step))
        outcome = self.take_step(batch.rows(mine).to(self.device), count, state)
        self.state = outcome.state
        draw_from(seed)  # what the model draws anew is the same in all processes
        with torch.no_grad():
            for follow in self.followers:
                follow()
        self.step += 1
        if self.average is not None:
            self.average.update(self.step)
        self.tokens += count
        self.unread.append(outcome._replace(state=None))
        written_down = (self.run.log_every, self.run.validate_every, self.run.save_every)
        if self.device.type == "cpu" or any(map(self.is_due, written_down)):
            self.read_outcomes()
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.since.add(count, seconds)

    def is_due(self, every: int) -> bool:
        """What is done every so many steps, and after the last."""
        return self.step % every == 0 or self.step == self.run.steps

    def read_outcomes(self) -> None:
        """Wait for the device, and take down what its steps found."""
        if not self.unread:
            return
        found = torch.stack([torch.stack([outcome.nats, outcome.norm.double()]) for outcome in self.unread])
        first = self.step - len(self.unread)
        self.unread = []
        for step, (nats, norm) in enumerate(found.tolist(), start=first):
            if not (math.isfinite(nats) and math.isfinite(norm)):
                raise Diverged(self.explain("the gradient" if math.isfinite(nats) else "the loss", step))
            self.since.find(nats, norm)

    def share(self, step: int) -> float:
        return self.schedule.share(step, self.run.steps, self.validations)

    def report(self) -> None:
        self.log.tick(self.step)
        if self.is_due(self.run.log_every):
            if self.since.tokens:  # of none there is no mean: the interval goes on to the next line
                rate, seconds = self.share(self.step - 1), self.seconds
                numbers = self.since.means() | self.speed.read(self.since.tokens / self.since.seconds)
                self.log.write("train", self.step, tokens=self.tokens, **numbers, rate=rate, seconds=seconds)
                self.since = Interval()
            if self.gauges:
                self.log.write("gauges", self.step, **readings([gauge() for gauge in self.gauges]))
        if self.is_due(self.run.validate_every):
            with self.averaged(), self.run.precision.at_work(self.device):
                found = self.validate()
            nats = found["nats"]
            self.validations.append((self.step, nats))
            self.log.write("valid", self.step, tokens=self.tokens, **found, seconds=self.seconds)
            if nats < self.best:
                self.best = nats
                self.save()
                self.checkpoints.mark_best(self.step, nats)

    def save(self) -> None:
        if self.saved == self.step:
            return
        self.read_outcomes()
        finite = all(local(parameter).isfinite().all() for parameter in self.model.parameters())
        if self.world.any(not finite):
            raise Diverged(self.explain("the weights", self.step))
        training = self.snapshot()
        self.log.flush()
        with self.averaged():
            self.checkpoints.save(self.step, self.model, training)
        self.checkpoints.prune()
        self.saved = self.step

    def averaged(self) -> AbstractContextManager[None]:
        return nullcontext() if self.average is None else self.average.in_place()

    def snapshot(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "best": self.best,
            "since": vars(self.since),
            "validations": self.validations,
            "position": self.stream.position(),
            "optimiser": self.stepper.state_dict(),
            "scaling": None if self.scaling is None else self.scaling.state_dict(),
            "newest": None if self.average is None else self.average.newest(),
            "state": None if self.state is None else self.checkpoints.rows_of_all(leaves(self.state)),
        }

    def resume(self, checkpoint: Path) -> None:
        """Become what the run was when it wrote this checkpoint."""
        saved = load_training(checkpoint, self.world)
        load_weights(self.model, checkpoint)
        if self.average is not None:
            self.average.resume(saved["newest"])
        self.stepper.load_state_dict(saved["optimiser"])
        if self.scaling is not None and saved["scaling"] is not None:
            self.scaling.load_state_dict(saved["scaling"])
        self.stream.seek(saved["position"])
        self.step, self.tokens, self.seconds, self.best = (saved[k] for k in ("step", "tokens", "seconds", "best"))
        self.since, self.validations = Interval(**saved["since"]), saved["validations"]
        self.state = None
        if saved["state"] is not None:
            like = self.model.initial_state(1)  # pyright: ignore[reportCallIssue]
            self.state = move(refill(like, self.checkpoints.own_rows(saved["state"])), self.device)
        self.log.cut_back(self.step)

    def start_from(self, checkpoint: Path) -> None:
        """Begin with the weights of another run, and with its optimiser if asked."""
        load_weights(self.model, checkpoint)
        if self.average is not None:
            self.average.restart()
        if self.run.keep_optimiser:
            self.stepper.load_state_dict(load_training(checkpoint, self.world)["optimiser"])

    def forked_devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def explain(self, what: str, step: int) -> str:
        self.checkpoints.finish()
        return (
            f"{what} after step {step} held something that is not a finite number; the last good checkpoint, "
            f"{self.checkpoints.find('latest').name}, is kept. A lower learning rate, a longer warm-up or a smaller "
            "clip may help"
        )


def draw_from(seed: int) -> None:
    """Of seeds of more than 64 bits, which torch does not take, the last 64; it reads negative ones like that too."""
    torch.manual_seed(seed % 2**64)


@dataclass
class Interval:
    """What happened since the last line of the log."""

    nats: float = 0.0
    tokens: int = 0
    norms: float = 0.0
    steps: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def find(self, nats: float, norm: float) -> None:
        self.nats, self.norms, self.steps = self.nats + nats, self.norms + norm, self.steps + 1

    def means(self) -> dict[str, float]:
        return {
            "nats": self.nats / self.tokens,
            "gradient_norm": self.norms / self.steps,
            "tokens_per_second": self.tokens / self.seconds,
        }


def readings(gauges: list[dict[str, list[float]]]) -> dict[str, Any]:
    """All values by name, one list for each module; their mean and their largest."""
    numbers: dict[str, Any] = {}
    for name in dict.fromkeys(name for gauge in gauges for name in gauge):
        lists = [gauge[name] for gauge in gauges if name in gauge]
        values = [value for one in lists for value in one]
        numbers |= {name: lists, f"{name}_mean": sum(values) / len(values), f"{name}_max": max(values)}
    return numbers
