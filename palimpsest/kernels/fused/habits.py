"""Habits: what was done before with tensors of the same layout is done again without a question, there and back.

All that doors and operations ask follows from the layouts of tensors, and from what is said beside them. Torch compares
the tensors with those of a habit at once, in less time than it takes to tell the layout of one of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...direct import direct
from .launching import same
from .operation import Operation, followed
from .repeating import GUARDS, Recording, Some, there

MOST = 16  # habits of one kind, and ways back of one habit
ALIGNED = 16  # bytes: recordings of habits are of tensors that start at a multiple of them

Fits = Callable[..., bool]  # whether other tensors, as many, have the same layout, and whether they ask for gradients


class Repeatable(NamedTuple):
    """An operation, and what was recorded of it and of its gradient, for such inputs; None where that is not all."""

    operation: Operation
    there: Callable[..., Recording | None]  # of the inputs
    back: Callable[..., Recording | None]  # of grads, kept and the inputs


class Back(NamedTuple):
    """A backward pass, with gradients that come in one layout."""

    fits: Fits
    recording: Recording


class Habit:
    """A pass with tensors of one layout."""

    def __init__(self, repeatable: Repeatable, inputs: tuple, recording: Recording):
        self.operation, _, self.recorded_back = repeatable
        tensors, self.numbers = inputs[: self.operation.tensors], inputs[self.operation.tensors :]
        made, given = recording.filled, there(tensors)
        self.recording, self.fits, self.count = recording, fitting(given), len(given)
        self.is_given = [x is not None for x in tensors]
        self.is_result, self.is_kept = made[: self.operation.results], made[self.operation.kept_from :]
        self.results, self.kept_from = sum(self.is_result), sum(made[: self.operation.kept_from])
        self.learned = sum(self.is_given[: self.operation.learned])
        self.unlearned = (None,) * (self.count - self.learned)
        self.backs: dict[int, list[Back]] = {}  # by how many results there are gradients of

    def backward(self, saved: tuple[Tensor, ...], grads: Some) -> Some:
        coming = there(grads)
        given = (*saved[: self.count], *coming, *saved[self.count :])
        if grads[0] is not None:  # so that their number tells which there are
            for fits, recording in self.backs.get(len(coming), ()):
                if fits(*given) and (ready := ready_for(recording, given)):
                    return *recording.launch(*ready)[: self.learned], *self.unlearned
        return self.step_back(saved, grads, given) if coming else [None] * self.count

    def step_back(self, saved: tuple[Tensor, ...], grads: Some, given: tuple[Tensor, ...]) -> Some:
        inputs = *spread(saved, self.is_given), *self.numbers
        grads, kept = spread(grads, self.is_result), spread(saved[self.count :], self.is_kept)
        found = self.operation.backward(grads, kept, *inputs)
        recording = None if grads[0] is None else self.recorded_back(grads, kept, *inputs)
        if recording and ready_for(recording, given):
            backs = self.backs.setdefault(len(there(grads)), [])
            if not any(each.fits(*given) for each in backs):
                keep(backs, Back(fitting(given), recording))
        return *(x for x, is_given in zip(found, self.is_given, strict=False) if is_given), *self.unlearned


def fitting(tensors: Sequence[Tensor]) -> Fits:
    sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
    return GUARDS.TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


@lru_cache
def compares() -> bool:
    """Whether torch has what compares layouts, and it does so; where it does not, there are no habits."""
    one, other = torch.zeros(2), torch.zeros(3)
    with suppress(Exception):  # it is torch's own, and may be another in another torch
        return fitting([one])(torch.ones(2)) is True and fitting([one])(other) is False
    return False


def ready_for(recording: Recording, given: Sequence[Tensor]) -> tuple[list[int], int] | None:
    """Addresses and a stream; None where it is to be done step by step."""
    if (stream := recording.stream()) is None:
        return None
    starts = [x.data_ptr() for x in given]
    for start in starts:
        if start % ALIGNED:
            return None
    return starts, stream


def spread(tensors: Some, places: Sequence[bool]) -> Some:
    """With None where there is none."""
    each: Iterator = iter(tensors)
    return [next(each) if place else None for place in places]


def keep(kept: list, one: object) -> None:
    """The newest, first."""
    kept.insert(0, one)
    del kept[MOST:]


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, told, *given):
        habit, starts, stream = told
        made = habit.recording.launch(starts, stream)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *made[habit.kept_from :])
        ctx.habit = habit
        return tuple(made[: habit.results])

    @staticmethod
    def backward(ctx, *grads):
        if torch.is_grad_enabled():  # a graph of the gradients is asked for, and it must say that it ends here
            return ending(ctx, *grads)
        return None, *ctx.habit.backward(ctx.saved_tensors, grads)


@once_differentiable
def ending(ctx, *grads):
    return None, *ctx.habit.backward(ctx.saved_tensors, grads)


apply: Callable[..., tuple[Tensor, ...]] = direct(Again)


def again(habits: list[Habit], given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The results of the habit that fits, if one does; those that are None left out, as among what is given."""
    for habit in habits:
        if habit.fits(*given):
            ready = None if followed() else ready_for(habit.recording, given)
            return ready and apply((habit, *ready), *given)
    return None


def accustom(habits: list[Habit], repeatable: Repeatable, given: Sequence[Tensor], inputs: tuple) -> None:
    """Makes a habit of what was just done with these inputs, if they are what was given; nobody is to follow it."""
    if not compares() or not same(given, there(inputs[: repeatable.operation.tensors])):
        return
    recording = repeatable.there(*inputs)
    if recording and ready_for(recording, given) and not any(each.fits(*given) for each in habits):
        keep(habits, Habit(repeatable, inputs, recording))
