"""Settings that `palimpsest tune` has found on the GPU at hand, used in place of those that are shipped.

They are kept in the cache folder, for as long as GPU, torch, Triton and kernels are the same, and are for calls of the
very sizes with which they were found: where anything else is given, a kernel may need more than the device has.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import UserError
from ...files import cache, write_atomically
from ..trust import Place, place_of
from .launching import known_of

S = TypeVar("S")
Numbers = dict[str, int]  # of settings, by name: `columns`, or `forward.tile`
Table = dict[str, Numbers]  # by problem

SHELF = "tuned"
KERNELS = ("memory_scan", "memory_sum", "relative_attention", "linear_cross_entropy")
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # by a file that is not one of ours
TABLES: dict[tuple[str, torch.device], Table] = {}  # of this process


def tuned(kernel: str, inputs: Sequence, shipped: S) -> S:
    """The settings for an operation with such inputs: those that were found, else those that are shipped."""
    table = table_of(kernel, inputs[0].device)
    found = table.get(problem_of(inputs)) if table else None
    if found is None:
        return shipped
    try:
        return with_numbers(shipped, found)
    except (KeyError, TypeError) as error:
        warnings.warn(unreadable(kernel, error), stacklevel=2)
        return shipped


def problem_of(inputs: Sequence) -> str:
    """What is given, in words: types and sizes of tensors, then numbers."""
    return " ".join(kind_of(x) if isinstance(x, Tensor) else "-" if x is None else str(x) for x in inputs)


def kind_of(x: Tensor) -> str:
    sizes = "×".join(str(int(size)) for size in x.shape)
    return f"{str(x.dtype).removeprefix('torch.')}[{sizes}]"


def table_of(kernel: str, device: torch.device) -> Table:
    table = TABLES.get((kernel, device))
    if table is None:
        table = TABLES[kernel, device] = recall(kernel, device) if device.type == "cuda" else {}
    return table


@contextmanager
def trying(kernel: str, inputs: Sequence, settings: Any) -> Iterator[None]:
    """As if these settings had been found for such inputs; None: as if none had been."""
    table, problem = table_of(kernel, inputs[0].device), problem_of(inputs)
    before = {**table}
    table.pop(problem, None)
    if settings is not None:
        table[problem] = numbers_of(settings)
    known_of.cache_clear()
    try:
        yield
    finally:
        table.clear()
        table.update(before)
        known_of.cache_clear()


# ----------------------------------------------------------------------------------------------------- numbers


def parts_of(settings: Any) -> dict[str, Any] | None:
    """Of a dataclass or a named tuple; None for a number."""
    if is_dataclass(settings):
        return {field.name: getattr(settings, field.name) for field in fields(settings)}
    return settings._asdict() if hasattr(settings, "_asdict") else None


def numbers_of(settings: Any, prefix: str = "") -> Numbers:
    numbers = {}
    for name, value in (parts_of(settings) or {}).items():
        path = prefix + name
        numbers |= {path: value} if parts_of(value) is None else numbers_of(value, f"{path}.")
    return numbers


def with_numbers(settings: S, numbers: Mapping[str, int]) -> S:
    """The settings with some numbers exchanged; what they do not have is refused."""
    known = numbers_of(settings)
    for name, number in numbers.items():
        if type(number) is not type(known[name]):
            raise TypeError(f"{name} is {number!r}")
    return rebuilt(settings, {**known, **numbers})


def rebuilt(settings: Any, numbers: Mapping[str, int], prefix: str = "") -> Any:
    values = {}
    for name, value in (parts_of(settings) or {}).items():
        path = prefix + name
        values[name] = numbers[path] if parts_of(value) is None else rebuilt(value, numbers, f"{path}.")
    return type(settings)(**values)


# ------------------------------------------------------------------------------------------------------ memory


def recall(kernel: str, device: torch.device) -> Table:
    """What was found for a kernel on a GPU; nothing where that cannot be read, which is told."""
    try:
        return read(kernel, device)
    except BROKEN as error:
        warnings.warn(unreadable(kernel, error), stacklevel=2)
        return {}


def read(kernel: str, device: torch.device) -> Table:
    return {problem: {**entry["settings"]} for problem, entry in entries(place_of(kernel, device)).items()}


def entries(place: Place) -> dict[str, Any]:
    file = place.kept_in(SHELF)
    if file is None or not file.exists():
        return {}
    return json.loads(file.read_text("utf-8"))["problems"]


def unreadable(kernel: str, error: Exception) -> str:
    return (
        f"the settings that were found for {kernel} cannot be read ({type(error).__name__}: {error}): those that are "
        "shipped are used; `palimpsest tune --forget` removes what was found"
    )


def remember(kernel: str, inputs: Sequence, settings: Any, **told: float) -> None:
    """For this process and those to come; None forgets what was found for such inputs."""
    device, problem = inputs[0].device, problem_of(inputs)
    place, known = place_of(kernel, device), {}
    with suppress(*BROKEN):  # then it is written anew
        known = {**entries(place)}
    if known.pop(problem, None) is None and settings is None:
        return
    if settings is not None:
        known[problem] = {"settings": numbers_of(settings), **told}
    file = place.kept_in(SHELF)
    if file is None:
        raise UserError(
            "there is no cache folder to remember settings in: pip install platformdirs or set PALIMPSEST_CACHE"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(asdict(place) | {"problems": known}, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{file} cannot be written ({error.strerror}): set PALIMPSEST_CACHE to a folder that can"
        ) from error
    read_again()


def forget() -> int:
    """Everything that was ever found, on any GPU; returns how many tables that were."""
    tables = [*(cache() / SHELF).glob("*.json")]
    for file in tables:
        file.unlink()
    read_again()
    return len(tables)


def read_again() -> None:
    TABLES.clear()
    known_of.cache_clear()
