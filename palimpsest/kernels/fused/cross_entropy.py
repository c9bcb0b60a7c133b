"""The fused linear cross-entropy as one torch operation, and its gradient as another: what is launched, with what."""

# A kernel is called with the arguments of its launch beside its own.

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..trust import INTERPRETED
from . import cross_entropy_kernels as kernels
from .features import holding
from .launching import AMPLE, Way, known_of, launch, layout_of, once, product_dtype, room_of
from .operation import Operation
from .tuned import tuned

NAME = "linear_cross_entropy"
WIDEST = {torch.bfloat16: 512, torch.float16: 512, torch.float32: 256}  # hidden states, by the type of the products


class Launch(NamedTuple):
    rows: int  # in a block
    tokens: int  # in a tile
    warps: int
    stages: int


class Settings(NamedTuple):
    forward: Launch
    hidden: Launch  # of their gradients
    weight: Launch
    programs: int  # as many as keep the device busy

    def numbers(self) -> list[int]:
        return [*self.forward, *self.hidden, *self.weight, self.programs]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "Settings":
        return cls(Launch(*numbers[:4]), Launch(*numbers[4:8]), Launch(*numbers[8:12]), numbers[12])


def settings_for(width: int, dtype: torch.dtype, room: int = AMPLE) -> Settings:
    """For hidden states of this width, where a program has so many bytes of shared memory."""
    if dtype == torch.float32:  # tiles under 64 rows: products of three TF32 products are not for warp groups
        if width <= 128:
            return Settings(Launch(32, 64, 8, 1), Launch(32, 64, 8, 1), Launch(64, 32, 8, 1), programs=1056)
        return Settings(Launch(16, 32, 8, 1), Launch(16, 32, 8, 1), Launch(32, 16, 8, 1), programs=1056)
    if width <= 128:
        return Settings(Launch(64, 128, 4, 3), Launch(64, 128, 4, 2), Launch(32, 128, 4, 2), programs=1056)
    if width <= 256:
        forward = Launch(128, 64, 8, 3) if room >= AMPLE else Launch(64, 64, 8, 2)
        return Settings(forward, Launch(64, 64, 8, 2), Launch(64, 64, 8, 2), programs=1056)
    if room < AMPLE:
        return Settings(Launch(64, 32, 8, 1), Launch(32, 32, 4, 2), Launch(32, 32, 8, 2), programs=1056)
    return Settings(Launch(64, 64, 8, 2), Launch(64, 32, 8, 2), Launch(32, 64, 8, 2), programs=1056)


def refusal(hidden: Tensor, weight: Tensor) -> str | None:
    """Why this cannot be done here, if it cannot."""
    if hidden.device.type != "cuda" and not INTERPRETED:
        return f"the fused backend needs a CUDA device; found {hidden.device}"
    dtype = product_dtype(hidden)
    named = str(dtype).removeprefix("torch.")
    if dtype not in WIDEST or torch.float64 in (hidden.dtype, weight.dtype):
        found = ", ".join(str(x.dtype).removeprefix("torch.") for x in (hidden, weight))
        return f"the fused backend knows products of float32, bfloat16 or float16; found {found}"
    if not 1 <= hidden.shape[1] <= WIDEST[dtype]:
        return f"the fused backend has hidden states of 1 to {WIDEST[dtype]} {named} numbers; found {hidden.shape[1]}"
    if not (len(hidden) and len(weight)):
        return f"the fused backend needs rows and tokens; found {len(hidden)} and {len(weight)}"
    return None


def nats_of(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    counted: Tensor | None,
    z_loss: float,
    smoothing: float,
    settings: Settings | None = None,
) -> Tensor:
    dtype, order, count = product_dtype(hidden), None, None
    if counted is not None:
        order, count = counted.byte().argsort(descending=True, stable=True), counted.sum()
    if settings is None:
        settings = settings_for(hidden.shape[1], dtype, room_of(hidden.device))
    given = (hidden, weight, bias, targets, order, count)
    return linear_cross_entropy(*given, z_loss, smoothing, dtype, settings.numbers())[0]


# ------------------------------------------------------------------------------------------------------ launching


@lru_cache
def constants_for(width: int, rows: int, tokens: int, **others: Any) -> dict[str, Any]:
    return {"WIDTH": width, "LANES": holding(width), "ROWS": rows, "TOKENS": tokens, **others}


class Problem:
    """The inputs of both operations as the kernels take them: matrices in the type of the products, and sizes."""

    def __init__(self, inputs: Sequence, *others: Tensor):
        *tensors, self.z_loss, self.smoothing, dtype, numbers = inputs
        hidden, weight, bias, targets, order, count = tensors
        self.known = known_of((layout_of((*tensors, *others)), dtype, tuple(numbers)))
        self.settings = once(self.known, "settings", lambda: tuned(NAME, inputs, Settings.of(numbers)))
        self.rows, self.width = hidden.shape
        self.tokens = len(weight)
        self.bias, self.targets = None if bias is None else bias.contiguous(), targets.contiguous()
        self.picked = None if order is None else (order, count)
        self.hidden, self.weight = matrix(hidden, dtype), matrix(weight, dtype)
        self.precision = "tf32x3" if dtype == torch.float32 else "tf32"

    def programs(self, work: Launch) -> int:
        """Of a launch by blocks of rows: enough for every block, and for every run where there are few of them."""
        blocks, tiles = -(-self.rows // work.rows), -(-self.tokens // work.tokens)
        return min(max(blocks, self.settings.programs), blocks * -(-tiles // kernels.SHORTEST.value))

    def launch(self, name: str, grid: tuple[int, int, int], arguments: tuple, work: Launch, **constants: Any) -> None:
        constants = constants_for(self.width, work.rows, work.tokens, **constants)
        way = partial(Way, grid, (), constants, work.warps, work.stages)
        launch(self.known, name, getattr(kernels, name), arguments, way)


def matrix(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    x = x.to(dtype)
    x = x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
    return x, x.stride(0)


# --------------------------------------------------------------------------------------------------- the operations

INPUTS = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor? order, Tensor? count, "
    "float z_loss, float smoothing, ScalarType dtype, int[] settings"
)


def forward(*inputs) -> tuple[Tensor, Tensor]:
    """Nats and, to base two, the logarithm of the sum of all exponentials, of each row."""
    nats, partition = results(*inputs)
    with torch.cuda.device_of(nats):
        p = Problem(inputs)
        work = p.settings.forward
        programs = p.programs(work)
        largest, totals = (nats.new_empty(programs, work.rows) for _ in range(2))
        arguments = (p.hidden, p.weight, p.bias, p.picked, largest, totals, p.rows, p.tokens)
        p.launch("partition_kernel", (programs, 1, 1), arguments, work, PRECISION=p.precision)
        arguments = (
            p.hidden, p.weight, p.bias, p.targets, p.picked, largest, totals, nats, partition,
            p.rows, p.tokens, programs,
        )  # fmt: skip
        p.launch("nats_kernel", (-(-p.rows // work.rows), 1, 1), arguments, work, DEPTH=16)
    return nats, partition


def results(hidden: Tensor, weight: Tensor, bias, targets, order: Tensor | None, *_) -> tuple[Tensor, Tensor]:
    nats = room_for_rows(hidden, order, len(hidden), dtype=torch.float32)
    return nats, torch.empty_like(nats)


def room_for_rows(hidden: Tensor, order: Tensor | None, *shape: int, dtype: torch.dtype) -> Tensor:
    """Where some rows do not count, nobody writes theirs."""
    return hidden.new_empty(shape, dtype=dtype) if order is None else hidden.new_zeros(shape, dtype=dtype)


def backward(grads: Sequence[Tensor], kept: Sequence[Tensor], *inputs) -> list[Tensor | None]:
    """The gradients of hidden states, weight and bias."""
    grad, (partition,) = grads[0].contiguous(), kept
    with torch.cuda.device_of(grad):
        p = Problem(inputs, grad, partition)
        of_hidden = gradient_of_hidden(p, grad, partition, inputs[0], inputs[4])
        return [of_hidden, *gradient_of_weight(p, grad, partition, inputs[1])]


def gradient_of_hidden(p: Problem, grad: Tensor, partition: Tensor, hidden: Tensor, order: Tensor | None) -> Tensor:
    work = p.settings.hidden
    programs = p.programs(work)
    sums = grad.new_empty(programs * work.rows, p.width)
    arguments = (
        p.hidden, p.weight, p.bias, p.targets, p.picked, partition, sums, p.z_loss, p.smoothing, p.rows, p.tokens
    )  # fmt: skip
    p.launch("hidden_kernel", (programs, 1, 1), arguments, work, PRECISION=p.precision)
    found = room_for_rows(hidden, order, *hidden.shape, dtype=hidden.dtype)
    some = 4
    arguments = (sums, p.picked, grad, found, p.rows, p.tokens, programs)
    p.launch("gather_kernel", (-(-p.rows // some), 1, 1), arguments, work, SOME=some, DEPTH=8)
    return found


def gradient_of_weight(p: Problem, grad: Tensor, partition: Tensor, weight: Tensor) -> list[Tensor | None]:
    """Of weight and bias: where there are few token tiles, several programs share the rows of each."""
    work = p.settings.weight
    tiles = -(-p.tokens // work.tokens)
    parts = min(-(-p.rows // work.rows), max(1, p.settings.programs // 2 // tiles))
    given = [weight] if p.bias is None else [weight, p.bias]
    if parts == 1:
        sums = [x.new_empty(*x.shape) for x in given]
    else:
        sums = [grad.new_empty(parts, *x.shape, dtype=torch.float32) for x in given]
    of_weight, of_bias = (*sums, None)[:2]
    arguments = (
        p.hidden, p.weight, p.bias, p.targets, p.picked, partition, grad, of_weight, of_bias,
        p.z_loss, p.smoothing, p.rows, p.tokens,
    )  # fmt: skip
    p.launch("weight_kernel", (tiles, parts, 1), arguments, work, PRECISION=p.precision)
    found = sums if parts == 1 else [each.sum(0).to(x.dtype) for each, x in zip(sums, given, strict=True)]
    return [*found, None][:2]


linear_cross_entropy = Operation(NAME, INPUTS, forward, backward, results, learned=3, kept_from=1)
