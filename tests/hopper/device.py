"""An H200 that is not there: Triton compiles for it, and what it launches is run here, program after program.

Importing this puts it in the driver's place. Warps go apart from barrier to barrier, groups of four where a kernel
multiplies by groups; which of them goes first is turned round from one barrier to the next. What is asynchronous
happens as late as it may. So a barrier or a wait that is missing, a register that was never written, an address beyond
a tensor are faults here, or numbers that are wrong, whatever a GPU's luck would make of them.
"""

import os
from collections.abc import Iterator
from itertools import product
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton
import numpy as np
import triton
from elsewhere import Elsewhere
from memory import GlobalMemory
from program import Program
from programs import Programs
from torch import Tensor
from triton.runtime import JITFunction

from palimpsest.kernels import pages, trust
from palimpsest.kernels.fused import launching

HOPPER, PROCESSORS, ROOM = 90, 132, 232_448  # capability, multiprocessors, bytes of shared memory for a program
AT_ONCE = 32  # programs: numpy takes as long for a few numbers as for a thousand


triton.runtime.driver.set_active(Elsewhere(HOPPER))
trust.INTERPRETED = pages.INTERPRETED = True  # what is for GPUs then allows CPUs
launching.processors_of = lambda device: PROCESSORS
launching.room_of = lambda device: ROOM

compile_and_launch, PROGRAMS = JITFunction.run, {}


def run(kernel: JITFunction, *arguments, grid: tuple[int, int, int], warmup: bool, **named) -> None:
    """In place of Triton's own launch."""
    binary = compile_and_launch(kernel, *arguments, grid=grid, warmup=True, **named)
    if (program := PROGRAMS.get(binary.hash)) is None:
        program = PROGRAMS[binary.hash] = Program(changed(binary.asm["ptx"]))
    told = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    flat = [one for name in kernel.arg_names for one in given(told[name], binary.src.signature[name])]
    numbers = [number_of(x) for x in flat]
    numbers += [0] * (len(program.parameters) - len(numbers))  # rooms of Triton's own, of which none is asked for
    told = dict(zip(program.parameters, numbers, strict=True))
    outside, places = GlobalMemory(x for x in flat if isinstance(x, Tensor)), places_in((*grid, 1, 1)[:3])
    for first in range(0, len(places), AT_ONCE):
        Programs(program, places[first : first + AT_ONCE], told, outside, binary.metadata.shared).run()


JITFunction.run = run


def changed(ptx: str) -> str:
    """The kernel as it is; a test that asks whether a fault would be found puts one in here."""
    return ptx


def given(argument: Any, kind: Any) -> Iterator[Any]:
    """What is told at a launch; all else the kernel was compiled for."""
    if isinstance(kind, tuple):
        for one, of_one in zip(argument, kind, strict=True):
            yield from given(one, of_one)
    elif kind != "constexpr":
        yield argument


def number_of(x: Tensor | int | float) -> int:
    """As a kernel is told of it: a tensor by its address, what is not whole by the bits of float32."""
    if isinstance(x, Tensor):
        return x.data_ptr()
    return int(np.float32(x).view(np.uint32)) if isinstance(x, float) else x


def places_in(grid: tuple[int, int, int]) -> list[dict[str, int]]:
    """Which of all programs each is."""
    whole = {f"%nctaid.{axis}": number for axis, number in zip("xyz", grid, strict=True)}
    every = product(*map(range, grid))
    return [whole | {f"%ctaid.{axis}": number for axis, number in zip("xyz", place, strict=True)} for place in every]
