"""A Corpus is a text in up to three splits: train, valid, test. It reads bytes and changes none."""

import json
import lzma
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from ..errors import UserError
from ..spec import Spec

SPLIT_NAMES = {
    "train": {"train", "training"},
    "valid": {"valid", "validation", "val", "dev"},
    "test": {"test"},
}
TEXT_SUFFIXES = {"", ".txt", ".text", ".md", ".tokens", ".raw"}
WHAT_TO_GIVE = "Give a text file or a folder of text files"


class Corpus(Spec):
    documents: str | None = None  # what each document ends with, where a text is many that know nothing of each other

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.documents == "":
            raise UserError("documents cannot end with nothing: say what stands at the end of each, or leave it out")

    @property
    def name(self) -> str:
        raise NotImplementedError

    def read(self) -> dict[str, bytes]:
        """The raw bytes of each split there is."""
        raise NotImplementedError


@dataclass(frozen=True)
class TinyShakespeare(Corpus):
    """A megabyte of Shakespeare's plays, part of the package: the first 90 % to train on, the rest to validate."""

    documents: str | None = None  # what each document ends with: an empty line ends a speech

    @property
    def name(self) -> str:
        return "tiny-shakespeare"

    def read(self) -> dict[str, bytes]:
        raw = lzma.decompress(files("palimpsest.data").joinpath("tinyshakespeare.txt.xz").read_bytes())
        cut = document_start(raw, int(0.9 * len(raw)), self.documents)
        return {"train": raw[:cut], "valid": raw[cut:]}


@dataclass(frozen=True)
class Text(Corpus):
    """Your own text: a file, a folder of text files, or a folder with a train, a valid and a test file.

    What comes without splits of its own is cut: first train, then `valid` and `test`, as shares of the bytes.
    """

    path: Path = Path()
    valid: float = 0.05
    test: float = 0.05
    documents: str | None = None  # what each document ends with, if they are to know nothing of each other
    suffixes: ClassVar[set[str]] = TEXT_SUFFIXES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.valid < 1 and 0 <= self.test < 1 and self.valid + self.test < 1):
            raise UserError(
                f"valid={self.valid} and test={self.test} leave nothing to train on or are no shares: "
                "give two numbers from 0 up whose sum is below 1, such as 0.05 and 0.05"
            )

    @property
    def name(self) -> str:
        path = self._where()
        return path.name if path.is_dir() else path.stem

    def read(self) -> dict[str, bytes]:
        path = self._where()
        try:
            if not path.exists():
                raise no_such(path)
            return self._read_folder(path) if path.is_dir() else self._cut(path, self._text([path]))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None

    def _where(self) -> Path:
        if self.path == Path():
            raise UserError(f"Text was given no path. {WHAT_TO_GIVE} (this folder is {Path.cwd()})")
        return Path(os.path.expanduser(self.path))

    def _read_folder(self, folder: Path) -> dict[str, bytes]:
        texts = text_files(folder, self.suffixes)
        if not texts:
            known = " and ".join(suffix or "names without a suffix" for suffix in sorted(self.suffixes, reverse=True))
            raise UserError(f"there are no text files in {folder} (looked for {known})")
        named = {path: split_of(path) for path in texts if path.parent == folder}
        if not any(named.values()):
            return self._cut(folder, self._text(texts))
        splits = {split: self._text([path for path in named if named[path] == split]) for split in SPLIT_NAMES}
        return present(folder, splits)

    def _text(self, paths: list[Path]) -> bytes:
        return join(paths)

    def _cut(self, path: Path, raw: bytes) -> dict[str, bytes]:
        size = len(raw)
        test_from = size - int(size * self.test)
        valid_from = test_from - int(size * self.valid)
        cuts = [0, *(document_start(raw, place, self.documents) for place in (valid_from, test_from)), size]
        splits = {split: raw[first:last] for split, (first, last) in zip(SPLIT_NAMES, pairwise(cuts), strict=True)}
        return present(path, splits)


@dataclass(frozen=True)
class JsonLines(Text):
    """Documents of your own, one JSON object a line: a file, or a folder of .jsonl files, as for Text."""

    field: str = "text"  # of each object
    documents: str = "\n\x03"  # put at the end of each: a line break, and a mark that no text has
    suffixes: ClassVar[set[str]] = {".jsonl", ".ndjson"}

    def _text(self, paths: list[Path]) -> bytes:
        return b"".join(self._document(*line) for path in paths for line in numbered_lines(path))

    def _document(self, path: Path, number: int, line: bytes) -> bytes:
        try:
            text = json.loads(line)[self.field]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise UserError(
                f"line {number:,} of {path} is no JSON object with a text {self.field!r}: it begins {line[:60]!r}. "
                "Name the field that holds the text: --field NAME"
            )
        return (text + self.documents).encode("utf-8", "surrogatepass") if text else b""


def numbered_lines(path: Path) -> Iterator[tuple[Path, int, bytes]]:
    with path.open("rb") as file:
        yield from ((path, number, line) for number, line in enumerate(file, start=1) if line.strip())


def document_start(raw: bytes, cut: int, end: str | None) -> int:
    """The first place from `cut` on where a document begins; where a character does, if there are no documents."""
    if end is None:
        return character_start(raw, cut)
    mark, place = end.encode(), 0
    while place < cut:  # from the beginning on, for marks that overlap are told apart only there
        found = raw.find(mark, place)
        place = len(raw) if found < 0 else found + len(mark)
    return place


def character_start(raw: bytes, cut: int) -> int:
    """The first place from `cut` on where no UTF-8 character is split; `cut` itself where the text is not UTF-8."""
    for place in range(cut, cut + 4):
        if place >= len(raw) or raw[place] & 0xC0 != 0x80:
            return min(place, len(raw))
    return cut


def text_files(folder: Path, suffixes: set[str] = TEXT_SUFFIXES) -> list[Path]:
    """Everything that looks like text, sorted by path; hidden files and folders are left alone."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def split_of(path: Path) -> str | None:
    """`wiki.valid.tokens` -> `valid`, but `latest.txt` is no test."""
    parts = set(re.split("[^a-z]+", path.name.lower()))
    return next((split for split, names in SPLIT_NAMES.items() if parts & names), None)


def join(paths: list[Path]) -> bytes:
    """One text of many files; the last line of one and the first line of the next stay apart."""
    texts = [path.read_bytes() for path in paths]
    ended = [text if text.endswith(b"\n") or not text else text + b"\n" for text in texts[:-1]]
    return b"".join([*ended, *texts[-1:]])


def present(path: Path, splits: dict[str, bytes]) -> dict[str, bytes]:
    if not any(splits.values()):
        raise UserError(f"{path} is empty: there is no text to read. {WHAT_TO_GIVE}")
    return {split: raw for split, raw in splits.items() if raw}


def no_such(path: Path) -> UserError:
    folder = path.parent
    if not folder.is_dir():
        return UserError(f"there is no {path}, not even a folder {folder}. {WHAT_TO_GIVE}")
    close = get_close_matches(path.name, [other.name for other in folder.iterdir()], n=1)
    suggestion = f"; did you mean {folder / close[0]}?" if close else ". " + WHAT_TO_GIVE
    return UserError(f"there is no {path}{suggestion}")
