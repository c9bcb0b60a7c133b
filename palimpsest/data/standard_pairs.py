"""The parallel texts that papers report on, prepared and read as the other standard corpora are.

A prepared folder holds train.en, train.de and so on, a sentence a line, as they were published.
"""

import html
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from ..errors import UserError
from .parallel import ParallelText, Sides, read_languages
from .standard import Contents, Notice, Standard

SEGMENT = re.compile(rb"<seg[^>]*>(.*?)</seg>", re.IGNORECASE)


class StandardPairs(ParallelText, Standard):
    """A published parallel text."""

    source: str
    target: str

    def sides(self) -> dict[str, Sides]:
        if self.path is None and not self.folder.is_dir():
            raise UserError(f"{self.shelf} is not prepared: run `palimpsest data prepare {self.shelf}`")
        return read_languages(self.folder, self.source, self.target)


@dataclass(frozen=True)
class Multi30k(StandardPairs):
    """31,014 descriptions of photographs in English and German (French and Czech too), tested on flickr's of 2016."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    source: str = "en"  # the language that is translated
    target: str = "de"  # … and what it becomes
    shelf = "multi30k"
    size = "12 MB"
    address = "https://github.com/multi30k/dataset/archive/refs/heads/master.zip"
    names: ClassVar[dict[str, str]] = {"train": "train", "val": "valid", "test_2016_flickr": "test"}
    lines: ClassVar[dict[str, int]] = {"train": 29_000, "valid": 1014, "test": 1000}
    needed: ClassVar[tuple[str, ...]] = ("en", "de")

    @classmethod
    def wanted(cls) -> str:
        files = [f"{name}.{'/.'.join(cls.needed)} ({cls.lines[split]:,} lines)" for name, split in cls.names.items()]
        return f"its raw files {', '.join(files)}, or an archive of them"

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        missing = [f"{name}.{language}" for name in cls.names for language in cls.needed]
        for path, file in ((Path(name), file) for name, file in found):
            stem, language = path.stem, path.suffix
            if not re.fullmatch(r"(train|val|test_\d+_\w+)\.(en|de|fr|cs)", path.name):
                continue
            raw, split = file.read(), cls.names.get(stem, stem)
            if raw.count(b"\n") == cls.lines.get(split, raw.count(b"\n")):  # further test sets are of any length
                (folder / f"{split}{language}").write_bytes(raw)
                missing = [name for name in missing if name != path.name]
        return missing


@dataclass(frozen=True)
class WMT14(StandardPairs):
    """4.5 million sentences of parliament, news and the web in English and German, tested on newstest2014."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    source: str = "en"  # the language that is translated
    target: str = "de"  # … and what it becomes
    shelf = "wmt14"
    size = "1.7 GB"
    address = "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"
    more = (
        "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "https://www.statmt.org/wmt14/dev.tgz",
        "https://www.statmt.org/wmt14/test-full.tgz",
    )
    parts: ClassVar[tuple[str, ...]] = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en")
    held_out: ClassVar[dict[str, str]] = {
        "newstest2013": "valid",
        "newstest2014": "test",
        "newstest2014-deen-src.en": "test",
        "newstest2014-deen-ref.de": "test",
    }

    @classmethod
    def wanted(cls) -> str:
        return (
            f"a folder with the files {', '.join(f'{part}.en/.de' for part in cls.parts)}, newstest2013.en/.de and "
            "newstest2014.en/.de, or with the archives that hold them, or train, valid and test .en/.de of your own"
        )

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        for path, file in ((Path(name), file) for name, file in found):
            place = cls.place_of(path)
            if place is not None and not (folder / place).exists():
                with (folder / place).open("wb") as copy:
                    copy_text(path, file, copy)
        missing = []
        for language in ("en", "de"):
            parts = [folder / f"{part}.{language}" for part in cls.parts]
            train = folder / f"train.{language}"
            if not train.exists() and all(part.exists() for part in parts):
                with train.open("wb") as whole:
                    for part in parts:
                        with part.open("rb") as piece:
                            shutil.copyfileobj(piece, whole)
            for part in parts:
                part.unlink(missing_ok=True)
            files = [f"{split}.{language}" for split in ("train", "valid", "test")]
            missing += [name for name in files if not (folder / name).exists()]
        return missing

    @classmethod
    def place_of(cls, path: Path) -> str | None:
        """What a file is called in the prepared folder."""
        plain = path.with_suffix("") if path.suffix == ".sgm" else path
        stem, language = plain.stem, plain.suffix
        if language not in (".en", ".de"):
            return None
        split = cls.held_out.get(stem) or cls.held_out.get(plain.name)
        if split is not None:
            return f"{split}{language}"
        return plain.name if stem in (*cls.parts, "train", "valid", "test") else None


def copy_text(path: Path, file: IO[bytes], copy: IO[bytes]) -> None:
    """As it is, or only the sentences of a marked-up file."""
    if path.suffix != ".sgm":
        shutil.copyfileobj(file, copy)
        return
    for sentence in SEGMENT.findall(file.read()):
        copy.write(html.unescape(sentence.decode()).strip().encode() + b"\n")
