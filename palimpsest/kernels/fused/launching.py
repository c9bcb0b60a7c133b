"""Launches that Triton need not look at again: it examines every argument every time, for longer than they take."""

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...world import in_this_thread


def layout_of(tensors: Sequence[Any]) -> tuple:
    """All that a kernel is compiled for, and where it is; that a tensor starts at a multiple of 16 bytes is worth wider
    accesses.

    Each has its own device: of what lies elsewhere nothing is known, so that Triton looks at it, and refuses it.
    """
    return tuple(
        None if x is None else (x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16 == 0) for x in tensors
    )


def strides(*tensors: Tensor | None) -> list[int]:
    """Of rows, tokens and heads; 0 where there is nothing."""
    return [step for x in tensors for step in ((0, 0, 0) if x is None else x.stride()[:3])]


FAR = 2**31  # numbers: within a row, kernels have offsets of 32 bits to tokens or to heads


def in_line(x: Tensor) -> Tensor:
    """`… tokens heads numbers`, with the numbers of a vector one behind the other, and no token or head too far off."""
    sizes, steps = x.shape, x.stride()  # torch takes longer to tell one of them than all
    near = sizes[-3] * steps[-3] < FAR and sizes[-2] * steps[-2] < FAR
    return x if near and steps[-1] == 1 else x.contiguous()


def product_dtype(x: Tensor) -> torch.dtype:
    """Of products with it."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


AMPLE = 2**17  # bytes of shared memory, as a program has them on GPUs for data centres, but not for games
VAST = 200 * 2**10  # … and on these since Hopper


@torch.compiler.assume_constant_result  # compilers need not look
def room_of(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; none where torch does not know."""
    return VAST if device.type != "cuda" else getattr(properties_of(device), "shared_memory_per_block_optin", 0)


def processors_of(device: torch.device) -> int:
    return 1 if device.type != "cuda" else properties_of(device).multi_processor_count


@lru_cache
def properties_of(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


@lru_cache(maxsize=1024)  # a cache that grows has another layout for each token
def known_of(layout: Hashable) -> dict[Hashable, Any]:
    """What was found out about such tensors: kernels by what they were launched for, and how their work is cut."""
    return {}


def once(known: dict[Hashable, Any], name: str, find: Callable[[], Any]) -> Any:
    """What was found out is not found again."""
    if (found := known.get(name)) is None:
        found = known[name] = find()
    return found


ALWAYS = {"enable_fp_fusion": True}  # a product and a sum in one instruction: from 3.10 on Triton wants to be asked


class Way(NamedTuple):
    """All that is told a kernel beside tensors, and to Triton about it."""

    grid: tuple[int, int, int]
    numbers: Sequence[int]  # which come after the tensors
    constants: dict[str, Any]
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, Any]:
        """Of Triton's."""
        return {"num_warps": self.warps, "num_stages": self.stages} | ALWAYS


class Compiled:
    """A kernel with all that it is told beside tensors; of these it is given either themselves or their addresses."""

    def __init__(self, binary: Any, grid: tuple[int, int, int], arguments: Sequence, rest: tuple):
        from triton import knobs
        from triton.runtime import driver

        self.runner, self.rest, self.knobs = binary[grid], rest, knobs.runtime
        self.straight = straight_to(binary, grid, (*arguments, *rest))
        if self.straight is not None:
            active: Any = driver.active
            self.current_device, self.current_stream = active.get_current_device, active.get_current_stream
            self.device = self.current_device()

    def __call__(self, arguments: Sequence) -> None:
        if self.straight is None or (stream := self.stream()) is None:
            self.runner(*arguments, *self.rest)
        else:
            self.straight(stream, (*arguments, *self.rest))

    def stream(self) -> int | None:
        """Where to launch straight; None where somebody follows launches, or another device is at hand."""
        enter, leave = self.knobs.launch_enter_hook, self.knobs.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):  # one, or a list of them
            return None
        return self.current_stream(self.device) if self.current_device() == self.device else None


Straight = Callable[[int, Sequence], object]  # a launch on a stream, with arguments


def straight_to(binary: Any, grid: tuple[int, int, int], arguments: tuple) -> Straight | None:
    """Triton's own launcher, in C, without what Triton asks around it at every launch.

    What it is told differs from one Triton to the next, so that another in its place writes it down: arguments one by
    one until 3.6, and all of them as one since then. Where that is not understood, or has memory of its own, there is
    None.
    """
    launcher: Any = copy(getattr(binary, "run", None))
    told: list[Any] = []
    if not hasattr(launcher, "launch"):
        return None
    launcher.launch = lambda *given: told.extend(given)
    about, launch = binary.packed_metadata, binary.run.launch
    with suppress(Exception):
        launcher(*grid, 0, binary.function, about, None, None, None, *arguments)
    at_once = told and isinstance(told[-1], tuple) and same(told[-1], arguments)
    before, last = (told[:-1], told[-1]) if at_once else (told[: -len(arguments)], told[-len(arguments) :])
    first = [*grid, 0, binary.function]
    between = before[len(first) :]
    own = about, *vars(binary.run).values()  # the same at every launch
    usual = all(x is None or isinstance(x, bool) or any(x is y for y in own) for x in between)
    if not (usual and same(last, arguments) and before[: len(first)] == first):
        return None
    after = binary.function, *between
    if at_once:
        return lambda stream, arguments: launch(*grid, stream, *after, arguments)
    return lambda stream, arguments: launch(*grid, stream, *after, *arguments)


def same(some: Sequence, others: Sequence) -> bool:
    """Whether they are each other."""
    return len(some) == len(others) and all(map(is_, some, others))


LAUNCHED: ContextVar[list[tuple[Compiled, Sequence] | None] | None] = ContextVar("launched", default=None)


def launch(
    known: dict[Hashable, Any], purpose: Hashable, kernel: Any, arguments: Sequence, way: Callable[[], Way]
) -> None:
    """The way is asked for once: for one purpose, with tensors of one layout, it is always the same."""
    compiled: Compiled | None = known.get(purpose)
    if (launched := LAUNCHED.get()) is not None:
        launched.append(None if compiled is None else (compiled, arguments))
    if compiled is not None:
        compiled(arguments)
        return
    give_keys(kernel.__module__)
    if (noted := NOTED.get()) is not None:
        noted.append(Noted(kernel, arguments, way()))
        return
    found = way()
    grid, numbers, constants, *_ = found
    binary = kernel[grid](*arguments, *numbers, **constants, **found.options)
    if binary is not None:  # Triton's interpreter has none
        named = [constants[name] for name in kernel.arg_names if name in constants]
        known[purpose] = Compiled(binary, grid, arguments, (*numbers, *named))


@lru_cache
def give_keys(module: str) -> None:
    """Has Triton find the keys of a module's functions, those of modules it imports from first.

    By its key a compiled kernel is found on the disk. Into that of a function Triton writes the constants of those that
    it calls, but only if these have theirs already: without a fixed order, a kernel would have another key, and be
    compiled again, in every process that happened to use other kernels before it.
    """
    from triton.runtime import JITFunction  # only here, as those who try kernels need not have Triton

    for function in list(vars(sys.modules[module]).values()):
        if isinstance(function, JITFunction):
            if function.__module__ == module:
                _ = function.cache_key
            else:
                give_keys(function.__module__)


class Noted(NamedTuple):
    """A launch that was not made."""

    kernel: Any
    arguments: Sequence
    way: Way

    @property
    def kind(self) -> Hashable:
        """What it would be compiled for."""
        given = *map(kind_of, self.arguments), *self.way.numbers, *self.way.constants.items()
        return self.kernel, given, self.way.warps, self.way.stages

    def compile(self, device: torch.device) -> None:
        grid, numbers, constants, *_ = self.way
        named = constants | self.way.options | {"grid": grid}
        with torch.cuda.device(device):
            _ = self.kernel.warmup(*self.arguments, *numbers, **named).run  # what launches it is compiled too, as C


NOTED: ContextVar[list[Noted] | None] = ContextVar("noted", default=None)


def kind_of(argument: Any) -> Hashable:
    if isinstance(argument, tuple):
        return tuple(map(kind_of, argument))
    return (argument.dtype, argument.data_ptr() % 16 == 0) if isinstance(argument, Tensor) else argument


@contextmanager
def rehearsal() -> Iterator[list[Noted]]:
    """Kernels that this thread asks for are not launched but noted: what comes out are numbers of no meaning."""
    noted: list[Noted] = []
    token = NOTED.set(noted)
    try:
        with in_this_thread():
            yield noted
    finally:
        NOTED.reset(token)


def compile_ahead(noted: Sequence[Noted], device: torch.device) -> None:
    """Side by side: much of what a compiler does leaves Python alone. What fails now will fail when it is launched."""
    different = {each.kind: each for each in noted}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each in different.values():
            pool.submit(each.compile, device)
