"""A run folder, read into one value. Only recipe.json must be there: a run may have just begun, or been killed."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import UserError


@dataclass(frozen=True)
class Measurement:
    """One line of metrics.jsonl, of training or of validation."""

    step: int
    tokens: int
    nats: float  # per token
    seconds: float | None = None
    gradient_norm: float | None = None
    rate: float | None = None
    tokens_per_second: float | None = None
    bleu: float | None = None  # of a validation that translated


@dataclass(frozen=True)
class Reading:
    """What a gauge showed at one step: the values of the heads, for each layer that has it."""

    step: int
    tokens: int | None  # seen by then, if the step's own line says so
    layers: list[list[float]]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def largest(self) -> float:
        return max(self.values)

    @property
    def values(self) -> list[float]:
        return finite(value for layer in self.layers for value in layer)


@dataclass(frozen=True)
class RunRecord:
    name: str
    recipe: dict[str, Any]
    environment: dict[str, Any]
    train: tuple[Measurement, ...] = ()
    valid: tuple[Measurement, ...] = ()
    gauges: dict[str, tuple[Reading, ...]] = field(default_factory=dict)  # by name
    evaluation: dict[str, Any] | None = None
    instruments: dict[str, Any] | None = None  # what `palimpsest inspect` saw
    sample: str | None = None

    @property
    def positions(self) -> list[dict[str, Any]]:
        return (self.evaluation or {}).get("by_position") or []

    @property
    def latest(self) -> Measurement | None:
        return next(iter((*self.train[-1:], *self.valid[-1:])), None)


def read_run(folder: Path) -> RunRecord:
    recipe = read_recipe(folder / "recipe.json")
    events = list(read_events(folder / "metrics.jsonl"))
    train, valid = measurements(events, "train"), measurements(events, "valid")
    return RunRecord(
        name=str(recipe.get("name") or folder.resolve().name),
        recipe=recipe,
        environment=read_object(folder / "environment.json") or {},
        train=train,
        valid=valid,
        gauges=gauges(events, {one.step: one.tokens for one in (*train, *valid)}),
        evaluation=read_object(folder / "evaluation.json"),
        instruments=read_object(folder / "instruments.json"),
        sample=read_text(folder / "samples.txt"),
    )


def read_recipe(path: Path) -> dict[str, Any]:
    recipe = read_object(path)
    if recipe is None:
        fault = "cannot be read as JSON" if path.exists() else "is not there"
        raise UserError(f"{path.parent} is not a run folder: its {path.name} {fault}")
    return recipe


def read_text(path: Path) -> str | None:
    # A character may be cut in half where a run was killed.
    return path.read_text("utf-8", errors="replace") if path.is_file() else None


def read_object(path: Path) -> dict[str, Any] | None:
    return parse_object(read_text(path) or "")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    for line in (read_text(path) or "").splitlines():
        event = parse_object(line)
        if event is not None:
            yield event


def parse_object(text: str) -> dict[str, Any] | None:
    """None for what is absent or was cut off."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def measurements(events: list[dict[str, Any]], kind: str) -> tuple[Measurement, ...]:
    # A resumed run repeats the steps since its last checkpoint: what it measured last counts.
    by_step = {event["step"]: measurement(event) for event in events if event.get("event") == kind and is_whole(event)}
    return tuple(by_step[step] for step in sorted(by_step))


def is_whole(event: dict[str, Any]) -> bool:
    return all(isinstance(event.get(name), int | float) for name in ("step", "tokens", "nats"))


def measurement(event: dict[str, Any]) -> Measurement:
    return Measurement(**{one.name: event[one.name] for one in fields(Measurement) if one.name in event})


def gauges(events: list[dict[str, Any]], tokens: dict[int, int]) -> dict[str, tuple[Reading, ...]]:
    """The readings of every gauge in the order of their steps; `tokens` says how many were seen by which step."""
    by_name: dict[str, dict[int, Reading]] = {}
    for event in events:
        step = event.get("step")
        if event.get("event") != "gauges" or not isinstance(step, int):
            continue
        for name, layers in event.items():
            if is_reading(layers):
                by_name.setdefault(name, {})[step] = Reading(step, tokens.get(step), layers)
    return {name: tuple(by_step[step] for step in sorted(by_step)) for name, by_step in by_name.items()}


def is_reading(value: Any) -> bool:
    """Lists of numbers, one of which at least is finite."""
    if not isinstance(value, list) or not all(isinstance(layer, list) for layer in value):
        return False
    values = [one for layer in value for one in layer]
    return all(isinstance(one, int | float) for one in values) and bool(finite(values))


def finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
