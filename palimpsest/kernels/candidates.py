"""Kernels whose settings may be others than those that are shipped, and what these could be."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .fused import attention, cross_entropy, scan, scan_problem, scan_settings, sums
from .fused.features import holding
from .fused.launching import processors_of
from .fused.operation import Operation
from .fused.tuned import numbers_of, trying

WARPS, STAGES, TILES = (1, 2, 4, 8), (1, 2, 3, 4, 5), (16, 32, 64, 128)

Choices = dict[str, list[int]]


class Tunable(NamedTuple):
    """A kernel whose settings may be others."""

    operation: Operation
    shipped: Callable[[Sequence], Any]  # settings, for such inputs
    choices: Callable[[Sequence, Any], Choices]  # what each number of them could be


def scan_shipped(inputs: Sequence) -> scan_settings.Settings:
    return shipped_problem(inputs).settings


def shipped_problem(inputs: Sequence) -> scan_problem.Problem:
    with trying("memory_scan", inputs, None):
        return scan.problem({}, scan.Inputs(*inputs))


def scan_choices(inputs: Sequence, shipped: scan_settings.Settings) -> Choices:
    """Columns are whole bands of a page, so that no product has more rows than one, whatever they are.

    But where heads fade, they are the rows of one, and these stay under 64; and pages that are saved as they were
    multiplied would be saved in another way if slices were narrow.
    """
    x = scan.Inputs(*inputs)
    columns = [number for number in (16, 32, 64) if number <= holding(x.values.shape[-1])]
    least = scan_problem.WOVEN if shipped_problem(inputs).weaves else scan_settings.BAND
    fades = x.log_keep is not None and x.log_keep.ndim == 3
    narrow = [number for number in columns if number < 64 or not fades]
    return choices_of(shipped, columns=[n for n in columns if n >= least], gradient_columns=narrow)


def sum_shipped(inputs: Sequence) -> sums.Settings:
    with trying("memory_sum", inputs, None):
        return sums.problem({}, *inputs).settings


def sum_choices(inputs: Sequence, shipped: sums.Settings) -> Choices:
    widest = holding(max(x.shape[-1] for x in inputs[:3]))
    return choices_of(shipped, chunk=(16, 32), columns=[number for number in (16, 32, 64) if number <= widest])


def attention_choices(inputs: Sequence, shipped: attention.Settings) -> Choices:
    tiles = (32, 64) if inputs[0].dtype != torch.float32 else (16, 32)
    return choices_of(shipped, tile=tiles, programs=programs_on(inputs[0].device))


def cross_entropy_choices(inputs: Sequence, shipped: cross_entropy.Settings) -> Choices:
    found = choices_of(shipped, rows=TILES, tokens=TILES, programs=programs_on(inputs[0].device))
    if inputs[-2] == torch.float32:  # products of three TF32 products are not for larger tiles
        numbers = numbers_of(shipped)
        tiles = [name for name in found if name.endswith(("rows", "tokens"))]
        found |= {name: [number for number in found[name] if number <= numbers[name]] for name in tiles}
    return found


def choices_of(shipped: Any, **known: Iterable[int]) -> Choices:
    """By the end of a number's name; numbers of which nothing is known stay as they are."""
    found = {}
    for name, number in numbers_of(shipped).items():
        last = name.rpartition(".")[-1]
        kind = WARPS if last.endswith("warps") else STAGES if last.endswith("stages") else known.get(last, ())
        found[name] = sorted({*kind, number})
    return found


def programs_on(device: torch.device) -> list[int]:
    return [share * processors_of(device) for share in (2, 4, 8)]


TUNABLE = {
    "memory_scan": Tunable(scan.memory_scan, scan_shipped, scan_choices),
    "memory_sum": Tunable(sums.memory_sum, sum_shipped, sum_choices),
    "relative_attention": Tunable(
        attention.relative_attention, lambda inputs: attention.Settings.of(inputs[-1]), attention_choices
    ),
    "linear_cross_entropy": Tunable(
        cross_entropy.linear_cross_entropy,
        lambda inputs: cross_entropy.Settings.of(inputs[-1]),
        cross_entropy_choices,
    ),
}
