"""The search for faster settings of fused kernels: what a model asks for is noted, and done again with others.

One number of the settings is changed at a time, for as long as that helps and there is time. Settings that cannot be
compiled, that do not fit, or with which something else comes out are passed over. So are those that would leave
tensors of other shapes for backward: graphs that torch has compiled and kept on the disk know these shapes.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import UserError
from .candidates import TUNABLE, Choices
from .fused.launching import compile_ahead, rehearsal
from .fused.operation import Operation
from .fused.tuned import numbers_of, problem_of, remember, trying, with_numbers

# how far results may lie apart, by their norms: each may lose twice what the plain form loses
ALLOWED = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
GAIN = 1.02  # less than that is chance
ROUNDS = 3  # in which the winner is held against what is shipped
CACHE = 2**27  # bytes: more than a device keeps close to its processors
MILLISECONDS = 50.0  # that a time is taken from, about
FEWEST, MOST = 5, 50  # runs that it is the median of

S = TypeVar("S")
Run = Callable[[], object]


@dataclass
class Call:
    """Of an operation, as a model makes it."""

    kernel: str
    inputs: Sequence
    grads: Sequence | None = None  # None where nobody asked for gradients
    count: int = 0  # how often the like was called

    @property
    def problem(self) -> str:
        return problem_of(self.inputs)

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def allowed(self) -> float:
        """By the coarsest type that is given, or that products are asked for in."""
        kinds = [x.dtype if isinstance(x, Tensor) else x for x in self.inputs if isinstance(x, Tensor | torch.dtype)]
        return max(ALLOWED.get(kind, 0.0) for kind in kinds)


@dataclass(frozen=True)
class Improvement:
    """What came of the search for a call."""

    call: Call
    shipped: Any
    found: Any  # the shipped ones where none are faster
    before: float  # milliseconds, there and back
    after: float
    tried: int = 0
    failed: int = 0  # of these, that could not be compiled or launched, or leave other shapes
    off: int = 0

    @property
    def times_faster(self) -> float:
        return self.before / self.after

    @property
    def changes(self) -> "Changes":
        return changes(self.shipped, self.found)


Changes = dict[str, tuple[int, int]]


def changes(shipped: Any, settings: Any) -> Changes:
    """Numbers that differ, each as it is shipped and as it is."""
    numbers = numbers_of(settings)
    return {name: (each, numbers[name]) for name, each in numbers_of(shipped).items() if each != numbers[name]}


def told(changes: Changes) -> str:
    return ", ".join(f"{name} {before} → {after}" for name, (before, after) in changes.items()) or "as shipped"


class Failed(Exception):
    """The settings cannot be had."""


class Off(Exception):
    """With these settings something else comes out."""


# ----------------------------------------------------------------------------------------------------- noting


@contextmanager
def noting() -> Iterator[dict[tuple[str, str], Call]]:
    """Calls of kernels that can be tuned, one of each kind with its tensors; they do what they always do."""
    calls: dict[tuple[str, str], Call] = {}
    with ExitStack() as stack:
        for kernel, tunable in TUNABLE.items():
            stack.enter_context(noting_calls(kernel, tunable.operation, calls))
        yield calls


@contextmanager
def noting_calls(kernel: str, operation: Operation, calls: dict[tuple[str, str], Call]) -> Iterator[None]:
    forward, backward = operation.forward, operation.backward

    def noted_forward(*inputs):
        call = calls.setdefault((kernel, problem_of(inputs)), Call(kernel, detached(inputs)))
        call.count += 1
        return forward(*inputs)

    def noted_backward(grads, kept, *inputs):
        call = calls.get((kernel, problem_of(inputs)))
        if call is not None and call.grads is None:
            call.grads = drawn_like(grads)
        return backward(grads, kept, *inputs)

    operation.forward, operation.backward = noted_forward, noted_backward
    try:
        yield
    finally:
        operation.forward, operation.backward = forward, backward


def detached(values: Sequence) -> list:
    return [x.detach() if isinstance(x, Tensor) else x for x in values]


def drawn_like(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients to compare by: a model that has just begun may have next to none."""
    chance = {x.device: torch.Generator(x.device).manual_seed(0) for x in grads if x is not None}
    return [None if x is None else torch.empty_like(x).normal_(generator=chance[x.device]) for x in grads]


# -------------------------------------------------------------------------------------------------- the search


def tune(
    calls: Sequence[Call],
    seconds: float,
    notice: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
    time_of: Callable[[Run], float] | None = None,
) -> Iterator[Improvement]:
    """Each call has an equal share of the time that is left. What is faster is remembered at once."""
    end = clock() + seconds
    for number, call in enumerate(calls):
        until = clock() + (end - clock()) / (len(calls) - number)
        try:
            found = improve(call, lambda: clock() >= until, time_of or device_time, notice)  # noqa: B023 (called at once)
        except Failed as error:
            raise UserError(
                f"{call.kernel} as it is shipped cannot be timed here ({error.__cause__}): a smaller --batch leaves "
                "more memory"
            ) from error
        settings = found.found if found.changes else None
        remember(call.kernel, call.inputs, settings, shipped=found.before, milliseconds=found.after)
        yield found


def improve(
    call: Call, over: Callable[[], bool], time_of: Callable[[Run], float], notice: Callable[[str], object]
) -> Improvement:
    """Faster settings for a call, if there are any; once it is over, nothing new is begun."""
    tunable, wrong = TUNABLE[call.kernel], Counter()
    shipped = tunable.shipped(call.inputs)
    expected = replay(call, shipped)

    def measure(settings: Any) -> float:
        notice(f"{call.kernel}, {told(changes(shipped, settings))}")
        try:
            compare(replay(call, settings), expected, call.allowed)
            with trying(call.kernel, call.inputs, settings):
                return time_of(lambda: run(call))
        except Off:
            wrong["off"] += 1
            raise
        except Exception as error:  # whatever it is, these settings are not to be had
            ensure_the_device_answers(call, settings)
            wrong["failed"] += 1
            raise Failed from error

    choices = tunable.choices(call.inputs, shipped)
    found, tried = descend(shipped, choices, measure, over, lambda settings: compile_side_by_side(call, settings))
    before, after = side_by_side(measure, shipped, found)
    if before < GAIN * after:
        found, after = shipped, before
    return Improvement(call, shipped, found, before, after, len(tried), wrong["failed"], wrong["off"])


def descend(
    shipped: S,
    choices: Choices,
    measure: Callable[[S], float],
    over: Callable[[], bool],
    ahead: Callable[[list[S]], object] = lambda settings: None,
) -> tuple[S, list[S]]:
    """The fastest settings that were met, and all that were tried beside those that are shipped.

    `measure` tells milliseconds, or raises Failed or Off; `ahead` is told what will be measured next.
    """
    best, least, tried = shipped, measure(shipped), [shipped]
    before = None
    while best != before:
        before = best
        for name, numbers in choices.items():
            fresh = [with_numbers(best, {name: number}) for number in numbers]
            fresh = [settings for settings in fresh if settings not in tried]
            if over() or not fresh:
                continue
            ahead(fresh)
            for settings in fresh:
                tried.append(settings)
                with suppress(Failed, Off):
                    milliseconds = measure(settings)
                    if GAIN * milliseconds < least:
                        best, least = settings, milliseconds
    return best, tried[1:]


def side_by_side(measure: Callable[[S], float], shipped: S, found: S) -> tuple[float, float]:
    """Milliseconds of both, in turns: a device that is warm is not as fast as one that is not."""
    if found == shipped:
        return (alone := measure(shipped)), alone
    turns = [(measure(shipped), measure(found)) for _ in range(ROUNDS)]
    before, after = (statistics.median(times) for times in zip(*turns, strict=True))
    return before, after


def run(call: Call) -> tuple[Sequence, Sequence]:
    """There and back: all that is made, and gradients."""
    operation = TUNABLE[call.kernel].operation
    with torch.no_grad():
        made = operation.forward(*call.inputs)
        if call.grads is None:
            return made, ()
        return made, operation.backward(call.grads, made[operation.kept_from :], *call.inputs)


class Outcome(NamedTuple):
    results: list[Tensor]  # and gradients
    shapes: list[torch.Size | None]  # of all that is made, for backward too


def replay(call: Call, settings: Any) -> Outcome:
    with trying(call.kernel, call.inputs, settings):
        made, gradients = run(call)
    results = made[: TUNABLE[call.kernel].operation.results]
    return Outcome([x for x in (*results, *gradients) if x is not None], [None if x is None else x.shape for x in made])


def compare(found: Outcome, expected: Outcome, allowed: float) -> None:
    if found.shapes != expected.shapes:
        raise Failed
    for one, other in zip(found.results, expected.results, strict=True):
        difference = (one.float() - other.float()).norm()
        if not difference <= allowed * other.float().norm():  # nor where it is no number
            raise Off


def compile_side_by_side(call: Call, several: Sequence[Any]) -> None:
    if call.device.type != "cuda":
        return
    with rehearsal() as noted:
        for settings in several:
            with suppress(Exception):  # trying them will tell
                replay(call, settings)
    compile_ahead(noted, call.device)


def ensure_the_device_answers(call: Call, settings: Any) -> None:
    """A kernel that reads where it must not takes the whole process with it."""
    if call.device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(call.device)
    except RuntimeError as error:
        numbers = ", ".join(f"{name} {number}" for name, number in numbers_of(settings).items())
        raise UserError(
            f"the GPU gave up while {call.kernel} was tried with {numbers}: these settings are not used, and what was "
            f"found before is kept; report it ({str(error).splitlines()[0]})"
        ) from error


# ------------------------------------------------------------------------------------------------------- time


def device_time(run: Run) -> float:
    """Milliseconds of a run on the device, recorded so that the host has no part in it; its inputs are not in cache."""
    replayed, other = recorded(run), torch.empty(CACHE, dtype=torch.uint8, device="cuda")
    timed(replayed, other, 2)
    once = statistics.median(timed(replayed, other, 3))
    return statistics.median(timed(replayed, other, round(min(MOST, max(FEWEST, MILLISECONDS / once)))))


def recorded(run: Run) -> Run:
    """The same as the replay of a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # what makes itself ready at its first use cannot be recorded
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(run: Run, other: Tensor, times: int) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for start, end in marks:
        other.zero_()
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in marks]
