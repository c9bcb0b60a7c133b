"""A step of training: the gradient of a batch, and what the optimiser makes of it."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import UserError
from ..shards import clip_gradients, local, sum_gradients
from ..state import State, detach, join_rows, leaves, map_state, rows_of
from ..world import World, in_this_thread
from .hooks import hooks
from .optimisers import Stepper
from .precision import Precision, Scaling


class Outcome(NamedTuple):
    """On the device: whoever reads the numbers waits for it."""

    nats: Tensor  # of all targets of all processes together
    norm: Tensor  # of the gradient, before it was clipped
    state: State | None  # after the batch, where it is carried


class Step:
    """Gradients are of the mean over all `count` targets, however many pieces and processes there are."""

    def __init__(
        self,
        model: nn.Module,
        passing: Callable[..., tuple[Tensor, State]],
        stepper: Stepper,
        world: World,
        precision: Precision,
        pieces: int,
        clip: float | None,
        carry: bool,
    ):
        self.model, self.passing, self.stepper, self.world = model, passing, stepper, world
        self.precision, self.pieces, self.clip, self.carry = precision, pieces, clip or math.inf, carry
        self.penalties = hooks(model, "penalty")

    def __call__(self, batch: Batch, count: int, state: State | None) -> Outcome:
        return self.update(self.differentiate(batch, count, state))

    def differentiate(self, batch: Batch, count: int, state: State | None) -> Outcome:
        count = max(1, count)  # where none counts, as in documents of one token each, the loss is nought
        self.stepper.zero_grad()
        total, states = torch.zeros((), dtype=torch.float64, device=batch.inputs.device), []
        for rows in pieces(len(batch.inputs), self.pieces):
            piece = batch.rows(rows)
            with self.precision.at_work(batch.inputs.device):
                nats, after = self.passing(piece, None if state is None else rows_of(state, rows))
            nats = nats if piece.mask is None else nats.where(piece.mask, 0.0)
            loss = nats.sum() / count
            self.backward(loss)
            total += loss.detach().double() * count
            if self.carry:
                states.append(detach(after))
        sum_gradients(self.model.parameters(), self.world)
        for penalty in self.penalties:
            self.backward(penalty())
        return Outcome(self.world.sum(total), self.shorten(), join_rows(states) if states else None)

    def backward(self, loss: Tensor) -> None:
        with in_this_thread():
            loss.backward()

    def shorten(self) -> Tensor:
        return clip_gradients(self.model.parameters(), self.clip, self.world)

    def update(self, outcome: Outcome) -> Outcome:
        self.stepper.step()
        return outcome


class ScaledStep(Step):
    """With a loss that is scaled for gradients of half precision; it waits for the device, to see if they overflow."""

    def __init__(self, *arguments: Any, scaling: Scaling):
        super().__init__(*arguments)
        self.scaling = scaling

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.scaling.scale)

    def shorten(self) -> Tensor:
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, self.scaling.scale)  # pyright: ignore[reportPrivateImportUsage]
        return super().shorten()

    def update(self, outcome: Outcome) -> Outcome:
        if self.scaling.judge(bool(outcome.norm.isfinite())):
            return super().update(outcome)
        return outcome._replace(norm=torch.zeros_like(outcome.norm))  # nothing moves


RECORDINGS = 4  # kept: each has memory of its own


class Replay:
    """A step that is recorded as a CUDA graph when its shapes come again, and replayed from then on.

    The host then has one thing to say for a step, whatever the step is made of.
    """

    def __init__(self, step: Step):
        self.step, self.shapes = step, hooks(step.model, "shape")
        self.met: set[tuple] = set()
        self.recordings: dict[tuple, Recording] = {}

    def __call__(self, batch: Batch, count: int, state: State | None) -> Outcome:
        key = count, shapes_of(batch), shapes_of(state), *(shape() for shape in self.shapes)
        if key not in self.met:  # whatever makes itself ready at its first use cannot be recorded
            self.met.add(key)
            return self.step(batch, count, state)
        if key not in self.recordings:
            if len(self.recordings) == RECORDINGS:
                del self.recordings[next(iter(self.recordings))]
            self.recordings[key] = Recording(self.step, batch, count, state)
        return self.recordings[key].replay(batch, state)


class Recording:
    """What a step reads and leaves lies where it lay when it was recorded."""

    def __init__(self, step: Step, batch: Batch, count: int, state: State | None):
        self.batch, self.state = (map_state(Tensor.clone, read) for read in (batch, state))
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:  # other threads may go on, such as one that writes a checkpoint
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outcome = step(self.batch, count, self.state)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"a step of this recipe cannot be recorded ({reason}): add --no-replay") from error

    def replay(self, batch: Batch, state: State | None) -> Outcome:
        for place, found in zip(leaves((self.batch, self.state)), leaves((batch, state)), strict=True):
            place.copy_(found)
        self.graph.replay()
        nats, norm, state = self.outcome
        return Outcome(nats.clone(), norm.clone(), state)


def refuse_replay(world: World, precision: Precision) -> None:
    """Say why steps cannot be recorded, if so."""
    if world.device.type != "cuda":
        raise UserError(f"steps are recorded on CUDA devices, and this one is {world.device}: add --no-replay")
    if world.size > 1:
        raise UserError(f"a step of {world.size} processes is not recorded: add --no-replay, or train with one")
    if precision.scaling() is not None:
        raise UserError("a loss that is scaled needs a look at each gradient: use BFloat16, or add --no-replay")


def refuse_passes(model: nn.Module) -> None:
    """Say which part of a model does something before each pass that no compiler or recorder would see, if any does."""
    for method in hooks(model, "begin_pass"):
        part = type(method.__self__).__name__  # pyright: ignore[reportFunctionMemberAccess]
        raise UserError(f"{part} draws before each pass: add --compile None --no-replay, or use another part")


def pieces(rows: int, count: int) -> list[slice]:
    """`rows` cut into at most `count` slices of nearly one size."""
    cuts = [rows * i // count for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(cuts) if start < end]


def shapes_of(state: State | None) -> tuple:
    return tuple((leaf.shape, leaf.dtype) for leaf in leaves(state))
