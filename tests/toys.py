"""Small versions of real things: every test that trains does it at this size."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from palimpsest.experiment import Recipe

TEXT = "".join(f"line {i % 7} says {'abc'[i % 3]} again and again, and so on.\n" for i in range(300))
TIMES = ("seconds", "tokens_per_second")


def quiet() -> Console:
    return Console(file=open(os.devnull, "w"))


def toy(recipe: Recipe, **run) -> Recipe:
    """The recipe's own parts and choices, with less of everything that takes time."""
    run = {"steps": 2, "log_every": 1, "validate_every": 2, "save_every": 1, "device": "cpu", "threads": 1} | run
    model = replace(recipe.model, width=24, layers=min(recipe.model.layers, 2))
    data = replace(recipe.data, batch=2, segment=16)
    return replace(recipe, data=data, model=model, run=replace(recipe.run, **run))


def metrics(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, time fields aside."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def palimpsest(*arguments: object, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "palimpsest", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, **options)
