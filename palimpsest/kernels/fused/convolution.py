"""The fused short convolution as one torch operation, and its gradient as another: what is launched, with what."""

# A kernel is called with the arguments of its launch beside its own.

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..trust import INTERPRETED
from . import convolution_kernels as kernels
from .features import holding
from .launching import Way, known_of, launch, layout_of, once, processors_of
from .operation import Operation

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST = 16  # taps; also the tokens of the shortest run, so that nobody looks back beyond the run before


class Launch(NamedTuple):
    channels: int  # of a program
    tokens: int  # that it loads at once
    warps: int
    programs: int  # for each processor of the device, as far as there is work


class Settings(NamedTuple):
    forward: Launch
    backward: Launch

    def numbers(self) -> list[int]:
        return [*self.forward, *self.backward]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Settings":
        return cls(Launch(*numbers[:4]), Launch(*numbers[4:]))


def settings_for(channels: int, size: int, dtype: torch.dtype) -> Settings:
    """A thread has 16 bytes of a token, and fewer where its taps, and back their gradients, would not leave it room."""
    each, taps, all_of_them = 16 // dtype.itemsize, triton.next_power_of_2(size), holding(channels)
    there, back = (min(32 * min(each, room // taps), all_of_them) for room in (32, 16))
    return Settings(Launch(there, 8, 1, 48), Launch(back, 8, 1, 48))


def refusal(x: Tensor, recent: Tensor, taps: Tensor) -> str | None:
    """Why this cannot be done here, if it cannot."""
    if x.device.type != "cuda" and not INTERPRETED:
        return f"the fused backend needs a CUDA device; found {x.device}"
    if not {x.dtype, recent.dtype, taps.dtype} <= {*DTYPES}:
        found = ", ".join(str(z.dtype).removeprefix("torch.") for z in (x, recent, taps))
        return f"the fused backend knows float32, bfloat16 and float16; found {found}"
    if not 1 <= taps.shape[1] <= MOST:
        return f"the fused backend has 1 to {MOST} taps; found {taps.shape[1]}"
    if 0 in x.shape:
        return f"the fused backend needs rows, tokens and channels; found the shape {tuple(x.shape)}"
    return None


def convolved(x: Tensor, recent: Tensor, taps: Tensor, settings: Settings | None = None) -> Tensor:
    settings = settings_for(*taps.shape, x.dtype) if settings is None else settings
    return short_convolution(x, recent, taps, settings.numbers())[0]


# ------------------------------------------------------------------------------------------------------ launching


def stepped(x: Tensor) -> tuple[Tensor, int, int]:
    """As the kernels take it: with the steps from row to row and from token to token."""
    x = x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1)


class Plan:
    """How a launch is cut: into runs of tokens, of one length but for the last, and these into tiles of channels."""

    def __init__(self, known: dict, x: Tensor, work: Launch):
        rows, self.length, self.channels = x.shape
        lines = rows * -(-self.channels // work.channels)
        wanted = max(1, work.programs * processors_of(x.device) // lines)
        self.run = triton.cdiv(max(MOST, -(-self.length // wanted)), work.tokens) * work.tokens
        self.runs = -(-self.length // self.run)
        self.known, self.work, self.grid = known, work, (lines * self.runs, 1, 1)

    def launch(self, name: str, arguments: tuple, size: int) -> None:
        def way() -> Way:
            constants = {"SIZE": size, "COLUMNS": triton.next_power_of_2(size)}
            constants |= {"CHANNELS": self.work.channels, "TOKENS": self.work.tokens}
            return Way(self.grid, (self.length, self.channels, self.runs, self.run), constants, self.work.warps, 1)

        launch(self.known, name, getattr(kernels, name), arguments, way)


def known_plan(x: Tensor, work: Launch, *others: Tensor) -> Plan:
    """Found once for tensors of a layout."""
    known = known_of((layout_of((x, *others)), work))
    return once(known, "plan", lambda: Plan(known, x, work))


# --------------------------------------------------------------------------------------------------- the operations

INPUTS = "Tensor x, Tensor recent, Tensor taps, int[] settings"


def forward(x: Tensor, recent: Tensor, taps: Tensor, numbers: Sequence[int]) -> tuple[Tensor]:
    (y,) = room_for(x)
    plan = known_plan(x, Settings.of(numbers).forward, recent, taps)
    arguments = (stepped(x), stepped(recent), taps.contiguous(), stepped(y))
    with torch.cuda.device_of(x):
        plan.launch("forward_kernel", arguments, taps.shape[1])
    return (y,)


def backward(
    grads: Sequence[Tensor], kept: Sequence[Tensor], x: Tensor, recent: Tensor, taps: Tensor, numbers: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    (grad,) = grads
    of_x, of_recent = (z.new_empty(*z.shape) for z in (x, recent))
    plan = known_plan(x, Settings.of(numbers).backward, recent, taps, grad)
    sums = taps.new_empty(len(x) * plan.runs, taps.shape[1], len(taps), dtype=torch.float32)
    arguments = (stepped(grad), stepped(x), stepped(recent), taps.contiguous(), stepped(of_x), stepped(of_recent), sums)
    with torch.cuda.device_of(x):
        plan.launch("backward_kernel", arguments, taps.shape[1])
    return of_x, of_recent, sums.sum(0).mT.contiguous().to(taps.dtype)


def room_for(x: Tensor, *_) -> tuple[Tensor]:
    return (x.new_empty(*x.shape),)


short_convolution = Operation("short_convolution", INPUTS, forward, backward, room_for, learned=3, kept_from=1)
