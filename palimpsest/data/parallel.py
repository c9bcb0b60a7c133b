"""Parallel text: sentences and their translations, a line each.

As a corpus it is all sentences of a split, first those to be translated and then, in the same order, what they become.
Each is a document of one line, whose line break is its end; so both languages share one vocabulary.
"""

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from .corpora import SPLIT_NAMES, Corpus, split_of


class Sides(NamedTuple):
    """Line i of the one is translated by line i of the other."""

    source: list[bytes]
    target: list[bytes]


class ParallelText(Corpus):
    documents = "\n"

    def sides(self) -> dict[str, Sides]:
        """The lines of each split there is, without their line breaks."""
        raise NotImplementedError

    def read(self) -> dict[str, bytes]:
        return {split: joined(split, *sides) for split, sides in self.sides().items()}


def joined(split: str, source: list[bytes], target: list[bytes]) -> bytes:
    if len(source) != len(target):
        raise UserError(
            f"the {split} split has {len(source):,} lines to translate but {len(target):,} translations: "
            "line i of one file must belong to line i of the other"
        )
    return b"".join((line if line.strip() else b"") + b"\n" for line in (*source, *target))  # spaces say nothing


@dataclass(frozen=True)
class LanguageFiles(ParallelText):
    """A folder of your own with train.en, train.de, valid.en, valid.de and, if you like, test.en and test.de."""

    path: Path = Path()
    source: str = "en"  # the suffix of what is translated
    target: str = "de"  # … and of what it becomes

    @property
    def name(self) -> str:
        return given(self.path, "a folder with files such as train.en and train.de").name

    def sides(self) -> dict[str, Sides]:
        folder = given(self.path, "a folder with files such as train.en and train.de")
        return read_languages(folder, self.source, self.target)


@dataclass(frozen=True)
class TwoFiles(ParallelText):
    """Two files of your own, of as many lines each; the last pairs are kept for `valid` and `test`, as shares."""

    source: Path = Path()  # what is translated
    target: Path = Path()  # what it becomes
    valid: float = 0.05
    test: float = 0.05

    @property
    def name(self) -> str:
        return given(self.source, "--source FILE and --target FILE").stem

    def sides(self) -> dict[str, Sides]:
        files = (given(path, "--source FILE and --target FILE") for path in (self.source, self.target))
        source, target = (lines_of(read_bytes(path)) for path in files)
        if len(source) != len(target):
            raise UserError(
                f"{self.source} has {len(source):,} lines but {self.target} has {len(target):,}: line i of one file "
                "must belong to line i of the other"
            )
        return cut(Sides(source, target), self.valid, self.test)


@dataclass(frozen=True)
class TabSeparated(ParallelText):
    """One file of your own, a sentence, a tab and its translation a line; further columns are not read."""

    path: Path = Path()
    valid: float = 0.05  # shares of the pairs, the last ones
    test: float = 0.05

    @property
    def name(self) -> str:
        return given(self.path, "a file of tab-separated pairs").stem

    def sides(self) -> dict[str, Sides]:
        path = given(self.path, "a file of tab-separated pairs")
        columns = [line.split(b"\t") if line.strip() else [b"", b""] for line in lines_of(read_bytes(path))]
        short = next((number for number, line in enumerate(columns, start=1) if len(line) < 2), None)
        if short is not None:
            raise UserError(f"line {short:,} of {path} has no tab: each line is a sentence, a tab and its translation")
        return cut(Sides([line[0] for line in columns], [line[1] for line in columns]), self.valid, self.test)


def given(path: Path, what: str) -> Path:
    if path == Path():
        raise UserError(f"no sentence pairs were given: give {what}")
    return Path(os.path.expanduser(path))


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def lines_of(raw: bytes) -> list[bytes]:
    """Only a line feed ends a line; other signs that some programs take for one stay inside."""
    lines = raw.split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines[:-1] if not lines[-1] else lines)]


def cut(sides: Sides, valid: float, test: float) -> dict[str, Sides]:
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise UserError(f"valid={valid} and test={test} leave nothing to train on or are no shares: try 0.05 and 0.05")
    pairs = len(sides.source)
    if not pairs:
        raise UserError("there are no sentence pairs: what was given is empty")
    test_from = pairs - int(pairs * test)
    cuts = [0, test_from - int(pairs * valid), test_from, pairs]
    splits = zip(SPLIT_NAMES, pairwise(cuts), strict=True)
    return {split: Sides(*(side[one:end] for side in sides)) for split, (one, end) in splits if one < end}


def read_languages(folder: Path, source: str, target: str) -> dict[str, Sides]:
    files = {split: tuple(file_of(folder, split, language) for language in (source, target)) for split in SPLIT_NAMES}
    found: dict[str, Sides] = {}
    for split, (one, other) in files.items():
        if one is not None and other is not None:
            found[split] = Sides(lines_of(read_bytes(one)), lines_of(read_bytes(other)))
        elif one is not None or other is not None:
            there, missing = (one, target) if other is None else (other, source)
            raise UserError(f"{folder} has {there.name} but no {split}.{missing}")  # pyright: ignore
    if not found:
        raise UserError(f"there are no files such as train.{source} and train.{target} in {folder}")
    return found


def file_of(folder: Path, split: str, language: str) -> Path | None:
    """`train.en`, or the only one that is named so."""
    found = [path for path in sorted(folder.glob(f"*.{language}")) if split_of(path) == split]
    found = [path for path in found if path.name == f"{split}.{language}"] or found
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder} has several {split} files ({names}): call the right one {split}.{language}")
    return found[0] if found else None
