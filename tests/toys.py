"""Small versions of real things: every test that trains does it at this size."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palimpsest.data.corpora import SPLIT_NAMES, Corpus, Text, TinyShakespeare
from palimpsest.data.standard import OneBillionWord, Standard
from palimpsest.experiment import Data, Recipe, train
from palimpsest.files import cache
from palimpsest.legacy.vocabularies import TransformerXLWordList
from palimpsest.spec import Spec
from palimpsest.training.precision import Single
from palimpsest.training.trainer import Trainer

TEXT = "".join(f"line {i % 7} says {'abc'[i % 3]} again and again, and so on.\n" for i in range(300))
LINES = TEXT.splitlines(keepends=True)
PAIR = {"en": "We need two pears.\n", "de": "Wir brauchen zwei Birnen.\n"}
CORPUS = {  # a folder that every corpus can read, each its own files
    "train.txt": TEXT,
    "news.en-00001-of-00100": TEXT,
    "valid.txt": "".join(LINES[:20]),
    "test.txt": "".join(LINES[20:40]),
    **{f"{split}.{language}": line * 30 for split in SPLIT_NAMES for language, line in PAIR.items()},
    OneBillionWord.vocabulary_file: "".join(f"{word} 1\n" for word in ["<S>", "<UNK>", *sorted({*TEXT.split()})]),
}
TIMES = ("seconds", "tokens_per_second", "memory")
LARGEST = {
    "width": 24, "layers": 2, "heads": 4, "head_width": 6, "inner": 32, "count": 8, "divisor": 2,
    "encoder_layers": 2, "tokens": 256, "pairs": 60, "beam": 2, "batch": 2, "rows": 2,
    "segment": 16, "context": 16, "stride": 8, "memory": 8, "clamp": 8, "limit": 128,
}  # fmt: skip


def quiet() -> Console:
    return Console(file=open(os.devnull, "w"))


def toy(recipe: Recipe, **run) -> Recipe:
    """The recipe's own parts and choices, with less of everything that takes time."""
    every = {"log_every": 1, "validate_every": 2, "save_every": 1}
    anywhere = {"device": "cpu", "threads": 1, "precision": Single(), "compile": None, "replay": False}
    run = {"steps": 2, **every, "sample": 20, **anywhere} | run
    recipe = replace(recipe, data=on_a_tiny_corpus(recipe.data))
    smaller = {name: smaller_than(getattr(recipe, name)) for name in ("data", "model", "evaluation")}
    return replace(recipe, **smaller, run=replace(recipe.run, **run))


def on_a_tiny_corpus(data: Data) -> Data:
    """Published corpora, Shakespeare and texts yet to be given become a few lines in the same form; others stay."""
    folder = cache() / "toy"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in CORPUS.items():
        (folder / name).write_text(text)
    if isinstance(data.vocabulary, TransformerXLWordList):
        data = replace(data, vocabulary=TransformerXLWordList(folder / OneBillionWord.vocabulary_file))
    return replace(data, corpus=tiny(data.corpus, folder))


def tiny(corpus: Corpus, folder: Path) -> Corpus:
    if isinstance(corpus, TinyShakespeare) or corpus == Text():
        return Text(folder, documents=corpus.documents and "\n")
    return replace(corpus, path=folder) if isinstance(corpus, Standard) else corpus


def smaller_than(spec: Any) -> Any:
    """The same sentence with smaller numbers."""
    return replace(spec, **{field.name: smaller(field.name, getattr(spec, field.name)) for field in fields(spec)})


def smaller(name: str, value: Any) -> Any:
    if isinstance(value, Spec):
        return smaller_than(value)
    if name == "cutoffs":
        return tuple(4 * place for place in range(1, len(value) + 1))
    return min(value, LARGEST[name]) if name in LARGEST and value is not None else value


def train_until_the_power_goes(recipe: Recipe, folder: Path, step: int) -> None:
    """After so many steps, and before anything is written down of the next."""

    class Powerless(Trainer):
        def advance(self) -> None:
            if self.step == step:
                raise KeyboardInterrupt
            super().advance()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palimpsest.experiment.run.Trainer", Powerless)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder, quiet())


def metrics(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl, time fields aside."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name not in TIMES} for record in records]


def palimpsest(*arguments: object, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "palimpsest", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, **options)
