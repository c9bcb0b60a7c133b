"""The log of a run: metrics.jsonl for ever, a line or a bar for now, a tracker if asked for."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import write_atomically
from .trackers import Tracker


class Log:
    """Train, valid and gauges records. On a terminal a bar moves; elsewhere each record is a plain line."""

    def __init__(self, path: Path, steps: int, console: Console, tracker: Tracker | None = None, unit: str = "token"):
        self.path, self.steps, self.console, self.tracker, self.unit = path, steps, console, tracker, unit
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("training", total=steps, numbers="")

    def __enter__(self) -> "Log":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.tracker is not None:
            self.tracker.close()

    def cut_back(self, step: int) -> None:
        """Forget what was written after `step`: it is about to happen again."""
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text().splitlines() if is_before(line, step)]
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))

    def tick(self, step: int) -> None:
        self.progress.update(self.task, completed=step)

    def write(self, event: str, step: int, **numbers: float | list[list[float]]) -> None:
        record: dict[str, Any] = {"event": event, "step": step, **numbers}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        plain = {name: number for name, number in numbers.items() if isinstance(number, int | float)}
        line = describe(plain, self.unit)
        if event == "train":
            self.progress.update(self.task, completed=step, numbers=line)
        if event == "valid" or not self.console.is_terminal:
            self.console.print(f"{event:>6}  step {step:>{len(str(self.steps))}}/{self.steps}  {line}", highlight=False)
        if self.tracker is not None:
            self.tracker.log(step, {f"{event}/{name}": number for name, number in plain.items()})


def is_before(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except ValueError:  # a line that was being written when the run was killed
        return False


def describe(numbers: Mapping[str, float], unit: str) -> str:
    if "nats" not in numbers:
        return "  ".join(f"{name} {number:.4g}" for name, number in numbers.items())
    text = f"{numbers['nats']:.4f} nats  {numbers['nats'] / math.log(2):.4f} bits/{unit}"
    if "tokens_per_second" in numbers:
        text += f"  {numbers['tokens_per_second']:,.0f} tokens/s"
    return text
