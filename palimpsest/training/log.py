"""The log of a run: metrics.jsonl for ever, a line or a bar for now, a tracker if asked for."""

import json
import math
import sys
import time
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import flush, give_up, write_atomically
from .trackers import Tracker


class Voice(Console):
    """On standard error. Whoever listens may leave: what is told of goes on, in silence."""

    def __init__(self):
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        give_up(sys.stderr)


def say(console: Console, line: str) -> None:
    """As it is, and as one line: it may hold names of any kind."""
    console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Log:
    """Train, valid and gauges records. On a terminal or in a notebook a bar moves; elsewhere a record is a line."""

    def __init__(self, path: Path, steps: int, console: Console, tracker: Tracker | None = None, unit: str = "token"):
        self.path, self.steps, self.console, self.tracker, self.unit = path, steps, console, tracker, unit
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("training", total=steps, numbers="")
        self.cell = NotebookCell() if console.is_jupyter else None

    def __enter__(self) -> "Log":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.cell is not None:
            self.cell.show(self.progress)
        if self.tracker is not None:
            self.tracker.close()

    def cut_back(self, step: int) -> None:
        """Forget what was written after `step`: it is about to happen again."""
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text().splitlines() if is_before(line, step)]
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))

    def flush(self) -> None:
        """Onto the disk, so that no checkpoint is newer than the lines before it."""
        if self.path.exists():
            flush(self.path)

    def tick(self, step: int) -> None:
        self.progress.update(self.task, completed=step)
        if self.cell is not None and self.cell.is_due():
            self.cell.show(self.progress)

    def write(self, event: str, step: int, **numbers: float | list[list[float]]) -> None:
        record: dict[str, Any] = {"event": event, "step": step, **numbers}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        plain = {name: number for name, number in numbers.items() if isinstance(number, int | float)}
        line = describe(plain, self.unit)
        if event == "train":
            self.progress.update(self.task, completed=step, numbers=line)
        if event == "valid" or not (self.console.is_terminal or self.console.is_jupyter):
            say(self.console, f"{event:>6}  step {step:>{len(str(self.steps))}}/{self.steps}  {line}")
        if self.tracker is not None:
            self.tracker.log(step, {f"{event}/{name}": number for name, number in plain.items()})


class Silence(Log):
    """The log of a process that has nothing to say: the first one writes for all."""

    def __init__(self, path: Path, steps: int):
        super().__init__(path, steps, Console(quiet=True))

    def cut_back(self, step: int) -> None: ...

    def flush(self) -> None: ...

    def tick(self, step: int) -> None: ...

    def write(self, event: str, step: int, **numbers: float | list[list[float]]) -> None: ...


class NotebookCell:
    """A bar in the output of a notebook's cell: one line that is written again, and kept with the notebook."""

    PAUSE = 0.5  # seconds; every message is sent to the browser

    def __init__(self):
        self.handle: Any = None
        self.shown = -math.inf

    def is_due(self) -> bool:
        return time.monotonic() - self.shown >= self.PAUSE

    def show(self, progress: Progress) -> None:
        from IPython.display import display

        # rich's own bar for notebooks needs widgets, and is gone when the notebook is opened again
        page = Console(file=StringIO(), width=120, color_system=None, force_terminal=False, force_jupyter=False)
        page.print(progress.get_renderable())
        line = {"text/plain": page.file.getvalue().strip()}  # pyright: ignore[reportAttributeAccessIssue]
        if self.handle is None:
            self.handle = display(line, raw=True, display_id=True)
        else:
            self.handle.update(line, raw=True)
        self.shown = time.monotonic()


def is_before(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except ValueError:  # a line that was being written when the run was killed
        return False


def describe(numbers: Mapping[str, float], unit: str) -> str:
    if "nats" not in numbers:
        return "  ".join(f"{name} {number:.4g}" for name, number in numbers.items())
    text = f"{numbers['nats']:.4f} nats  {numbers['nats'] / math.log(2):.4f} bits/{unit}"
    if "bleu" in numbers:
        text += f"  BLEU {numbers['bleu']:.2f}"
    if "tokens_per_second" in numbers:
        text += f"  {numbers['tokens_per_second']:,.0f} tokens/s"
    if "mfu" in numbers:
        text += f"  {numbers['mfu']:.0%} of the device"
    if "memory" in numbers:
        text += f"  {numbers['memory']:.1f} GiB"
    return text
