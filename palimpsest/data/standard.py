"""The corpora that papers report on, each prepared once by `palimpsest data prepare` and read from a folder ever after.

A prepared folder holds train.txt, valid.txt and test.txt, byte for byte as they were published.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

from ..errors import UserError, unknown
from ..files import cache
from .codec import passages, words_of
from .corpora import SPLIT_NAMES, Corpus, join, split_of, text_files
from .downloads import Unreachable, checksum_of, contents, download, matches, new_folder

Notice = Callable[[str], object]
Contents = Iterable[tuple[str, IO[bytes]]]


class Standard(Corpus):
    """A published corpus: where it lives, what it must be, and how its splits are laid out in a folder."""

    path: Path | None
    shelf: ClassVar[str]  # its name for people, and that of its folder in the cache
    size: ClassVar[str]
    address: ClassVar[str]
    more: ClassVar[tuple[str, ...]] = ()  # further addresses, where one does not have it all
    packed: ClassVar[str | None] = None  # the checksum of what lies at the address, where the contents have none

    @property
    def name(self) -> str:
        return self.shelf

    @classmethod
    def prepared(cls) -> Path:
        return cache() / "corpora" / cls.shelf

    @property
    def folder(self) -> Path:
        return self.prepared() if self.path is None else self.path.expanduser()

    def read(self) -> dict[str, bytes]:
        found = self.files()
        if not found:
            where = "is not prepared" if self.path is None else f"has no train, valid or test file in {self.path}"
            raise UserError(f"{self.shelf} {where}: run `palimpsest data prepare {self.shelf}`")
        try:
            return {split: join(paths) for split, paths in found.items()}
        except OSError as error:
            raise UserError(f"{self.folder} cannot be read: {error.strerror}") from None

    def files(self) -> dict[str, list[Path]]:
        """The files of each split there is: `train.txt`, or the only one that is named so."""
        folder = self.folder
        texts = [path for path in text_files(folder) if path.parent == folder]
        found = {split: [path for path in texts if split_of(path) == split] for split in SPLIT_NAMES}
        found = {s: [path for path in paths if path.name == f"{s}.txt"] or paths for s, paths in found.items()}
        for split, paths in found.items():
            if len(paths) > 1:
                names = ", ".join(path.name for path in paths)
                raise UserError(f"{folder} has more than one {split} file ({names}): call the right one {split}.txt")
        return {split: paths for split, paths in found.items() if paths}

    @classmethod
    def wanted(cls) -> str:
        """Which files it takes, with their checksums."""
        raise NotImplementedError

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        """Write the splits into the folder; returns what is missing for it."""
        raise NotImplementedError


class OneFile(Standard):
    """One file, cut into three at given places."""

    checksum: ClassVar[str]
    lengths: ClassVar[tuple[int, int, int]] = (90_000_000, 5_000_000, 5_000_000)

    @classmethod
    def wanted(cls) -> str:
        return f"the file {cls.shelf} of {sum(cls.lengths):,} bytes ({cls.checksum})"

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        places = list(accumulate(cls.lengths, initial=0))
        for _, file in found:
            raw = file.read(places[-1] + 1)
            if checksum_of(raw, cls.checksum.partition(":")[0]) == cls.checksum:
                for split, (first, last) in zip(SPLIT_NAMES, pairwise(places), strict=True):
                    (folder / f"{split}.txt").write_bytes(raw[first:last])
                return []
        return [cls.shelf]


@dataclass(frozen=True)
class Enwik8(OneFile):
    """The first 10^8 bytes of an English Wikipedia: 90, 5 and 5 million, newlines and all."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    shelf = "enwik8"
    size = "100 MB"
    address = "http://mattmahoney.net/dc/enwik8.zip"
    checksum = "md5:a1fa5ffddb56f4953e226637dabbb36a"


@dataclass(frozen=True)
class Text8(OneFile):
    """10^8 letters a to z and spaces of an English Wikipedia: 90, 5 and 5 million."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    shelf = "text8"
    size = "100 MB"
    address = "http://mattmahoney.net/dc/text8.zip"
    checksum = "md5:3bea1919949baf155f99411df5fada7e"


class Mark(NamedTuple):
    """How a file is known again: by its checksum, or by its name and the tokens it has, ends of lines included."""

    checksum: str | None
    tokens: int | None = None


class ThreeFiles(Standard):
    """Three files, published as they are."""

    marks: ClassVar[dict[str, Mark]]

    @classmethod
    def wanted(cls) -> str:
        files = [f"{split} ({mark.checksum or f'{mark.tokens:,} tokens'})" for split, mark in cls.marks.items()]
        return f"its files {', '.join(files)}, or an archive of them" + (f" ({cls.packed})" if cls.packed else "")

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        missing = list(cls.marks)
        for name, file in found:
            raw = file.read()
            split = cls.recognise(Path(name), raw, notice)
            if split in missing:
                (folder / f"{split}.txt").write_bytes(raw)
                missing.remove(split)
        return missing

    @classmethod
    def recognise(cls, path: Path, raw: bytes, notice: Notice) -> str | None:
        for split, mark in cls.marks.items():
            if mark.checksum and checksum_of(raw, mark.checksum.partition(":")[0]) == mark.checksum:
                return split
        split = split_of(path)
        if split is None or cls.marks[split].tokens is None or cls.marks[split].tokens != count_tokens(raw):
            return None
        notice(f"{path.name} was known by its {cls.marks[split].tokens:,} tokens, not by a checksum")
        return split


def count_tokens(raw: bytes) -> int | None:
    """Words and ends of lines; None for what is not text."""
    try:
        return sum(1 for text in passages(raw) for _ in words_of(text))
    except UserError:
        return None


@dataclass(frozen=True)
class WikiText103(ThreeFiles):
    """28,475 good articles of the English Wikipedia: 103 million words, the rare ones <unk>."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    shelf = "wikitext-103"
    size = "541 MB"
    address = "https://wikitext.smerity.com/wikitext-103-v1.zip"
    packed = "sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"
    marks: ClassVar = {
        "train": Mark(None, 103_227_021),
        "valid": Mark("sha256:9aee9f52d6e77de6c7751fc5e7c44287db3ec0eaf15477098acc6b93c1c4250b", 217_646),
        "test": Mark("sha256:56db52eb157b1ab5c89646eef70510c1eca6e12a3bfdb99f0d6b05b4eacb75b9", 245_569),
    }


@dataclass(frozen=True)
class WikiText2(ThreeFiles):
    """720 good articles of the English Wikipedia: 2 million words, the rare ones <unk>."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    shelf = "wikitext-2"
    size = "13 MB"
    address = "https://wikitext.smerity.com/wikitext-2-v1.zip"
    packed = "sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
    marks: ClassVar = {
        "train": Mark("sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f", 2_088_628),
        "valid": Mark("sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 217_646),
        "test": Mark("sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 245_569),
    }


@dataclass(frozen=True)
class PennTreebank(ThreeFiles):
    """The Wall Street Journal as Mikolov prepared it: a million lower-case words, the rare ones <unk>."""

    path: Path | None = None  # a folder with train, valid and test files; none: the prepared one
    shelf = "penn-treebank"
    size = "6 MB"
    address = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
    marks: ClassVar = {
        "train": Mark("md5:f26c4b92c5fdc7b3f8c7cdcb991d8420"),
        "valid": Mark("md5:aa0affc06ff7c36e977d7cd49e3839bf"),
        "test": Mark("md5:8b80168b89c18661a38ef683c0dc3721"),
    }


@dataclass(frozen=True)
class OneBillionWord(Standard):
    """Shuffled sentences of English news in 99 files; tested on heldout-00000, as published, validated on 00001."""

    path: Path | None = None  # a folder with news.en-* files and valid and test files; none: the prepared one
    shelf = "one-billion-word"
    size = "4.2 GB"
    address = "http://www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz"
    packed = "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e"
    parts: ClassVar[int] = 99
    lines: ClassVar[int] = 30_301_028
    held_out: ClassVar[dict[str, str]] = {
        "news.en.heldout-00000-of-00050": "test.txt",
        "news.en.heldout-00001-of-00050": "valid.txt",
    }
    vocabulary_file: ClassVar[str] = "1b_word_vocab.txt"  # kept where it is found, for legacy models

    def files(self) -> dict[str, list[Path]]:
        train = sorted(self.folder.rglob("news.en-*-of-*"))
        held_out = {split: paths for split, paths in super().files().items() if split != "train"}
        return {"train": train, **held_out} if train else held_out

    @classmethod
    def wanted(cls) -> str:
        return (
            f"its archive ({cls.packed}), or a folder with {cls.parts} files news.en-00001-of-00100 and so on, "
            f"{cls.lines:,} lines in all, and {' and '.join(cls.held_out)}"
        )

    @classmethod
    def arrange(cls, found: Contents, folder: Path, notice: Notice) -> list[str]:
        parts, lines = set[str](), 0
        for path, file in ((Path(name), file) for name, file in found):
            if path.match("news.en-*-of-*") and path.name not in parts:
                raw = file.read()
                (folder / path.name).write_bytes(raw)
                parts.add(path.name)
                lines += raw.count(b"\n")
            elif path.name in (*cls.held_out, cls.vocabulary_file):
                (folder / cls.held_out.get(path.name, path.name)).write_bytes(file.read())
        missing = [name for name, kept in cls.held_out.items() if not (folder / kept).exists()]
        if (len(parts), lines) != (cls.parts, cls.lines):
            missing.append(f"train ({len(parts)} files with {lines:,} lines were found)")
        return missing


def catalogue() -> dict[str, type[Standard]]:
    """Every standard corpus by its name; the legacy ways to read one are no corpora of their own."""
    return {kind.shelf: kind for kind in Standard.variants() if "shelf" in vars(kind)}


def named(name: str) -> type[Standard]:
    """`wikitext-103`, `WikiText103` and `wikitext_103` are the same."""
    plain = name.lower().replace("-", "").replace("_", "")
    for shelf, kind in catalogue().items():
        if plain == shelf.replace("-", ""):
            return kind
    raise unknown("corpus", name, list(catalogue()))


def prepare(
    kind: type[Standard],
    source: Path | None = None,
    notice: Notice = lambda line: None,
    progress: Callable[[int, int | None], object] = lambda done, all: None,
) -> Path:
    """Lay a corpus out in the cache, from a file or folder or else from its address; whole or not at all."""
    if source is not None and not source.exists():
        raise UserError(f"there is no {source}: {kind.shelf} needs {kind.wanted()}")
    with new_folder(kind.prepared()) as folder:
        here = source or fetch(kind, folder.parent / "download", progress)
        missing = kind.arrange(contents(here), folder, notice)
        if missing:
            lacking = f"{source or kind.address} lacks {', '.join(missing)}"
            raise UserError(f"{lacking}: {kind.shelf} needs {kind.wanted()}; {by_hand(kind)}")
    return kind.prepared()


def fetch(kind: type[Standard], path: Path, progress: Callable[[int, int | None], object]) -> Path:
    """What lies at its address; a folder, where there are several."""
    if kind.more:
        path.mkdir()
        for address in (kind.address, *kind.more):
            fetch_one(kind, address, path / address.rpartition("/")[2], progress)
        return path
    fetch_one(kind, kind.address, path, progress)
    if kind.packed and not matches(path, kind.packed):
        raise UserError(f"what lies at {kind.address} is not {kind.packed}: get it elsewhere; {by_hand(kind)}")
    return path


def fetch_one(kind: type[Standard], address: str, path: Path, progress: Callable[[int, int | None], object]) -> None:
    try:
        download(address, path, progress)
    except Unreachable as error:
        raise UserError(f"{address} cannot be had: {error}. Get {kind.wanted()} elsewhere; {by_hand(kind)}") from None


def by_hand(kind: type[Standard]) -> str:
    return f"then run `palimpsest data prepare {kind.shelf} --from FILE-OR-FOLDER`"
