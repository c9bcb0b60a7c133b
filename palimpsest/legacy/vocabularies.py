"""The tokens of the original toolkits, in the order in which they numbered them."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from ..data.codec import EOS, PieceCodec, WordCodec, WordPrinter, passages, words_of
from ..data.corpora import SPLIT_NAMES
from ..data.downloads import checksum_of
from ..data.standard import OneBillionWord
from ..data.vocabulary import Vocabulary, count_words
from ..errors import UserError

SENTENCE, UNKNOWN = "<S>", "<UNK>"
ALL = tuple(SPLIT_NAMES)
BLOCK = 2**20  # bytes


class Counted(Vocabulary):
    """Tokens numbered by what is counted in some splits."""

    @property
    def splits(self) -> tuple[str, ...]:
        return ("train",)


@dataclass(frozen=True)
class TransformerXLWords(Counted):
    """Transformer-XL's words: <eos>, then the most frequent first; a word of no split that was counted is refused."""

    counted: Literal["train", "all"] = "train"
    lower: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        return ALL if self.counted == "all" else ("train",)

    def learn(self, train: bytes, everything: Iterable[bytes]) -> "ClosedWordCodec":
        counts: Counter[str] = Counter()
        for raw in everything if self.counted == "all" else [train]:
            for text in passages(raw):
                counts.update(words_of(text.lower() if self.lower else text))
        return ClosedWordCodec([EOS, *(word for word, _ in counts.most_common() if word != EOS)], self.lower)


@dataclass(frozen=True)
class AdaptiveSpanWords(Counted):
    """Adaptive-span's words of the train split, as first seen, or by count as its adaptive softmax needs them."""

    order: Literal["seen", "count"] = "seen"

    def learn(self, train: bytes, everything: Iterable[bytes]) -> "ClosedWordCodec":
        return ClosedWordCodec(arranged(count_words(closed(train)), self.order))


@dataclass(frozen=True)
class TransformerXLBytes(Counted):
    """The bytes of all splits, the most frequent first: Transformer-XL's enwik8 and text8."""

    @property
    def splits(self) -> tuple[str, ...]:
        return ALL

    def learn(self, train: bytes, everything: Iterable[bytes]) -> "RankedByteCodec":
        return RankedByteCodec([value for value, _ in count_bytes(everything).most_common()])


@dataclass(frozen=True)
class AdaptiveSpanBytes(Counted):
    """The bytes of the train split, as first seen or by count: adaptive-span's enwik8 and text8, newline for <eos>."""

    order: Literal["seen", "count"] = "seen"

    def learn(self, train: bytes, everything: Iterable[bytes]) -> "RankedByteCodec":
        return RankedByteCodec(arranged(count_bytes([train]), self.order))


@dataclass(frozen=True)
class TransformerXLWordList(Counted):
    """The first word of each line of a file, as One Billion Word has it; every line is a sentence between two <S>."""

    path: Path | None = None  # none: 1b_word_vocab.txt beside the prepared One Billion Word

    @property
    def splits(self) -> tuple[str, ...]:
        return ()

    def learn(self, train: bytes, everything: Iterable[bytes]) -> "SentenceCodec":
        fields = [line.split(maxsplit=1) for text in passages(self._list()) for line in text.split("\n")]
        words = dict.fromkeys(field[0] for field in fields if field)
        for mark in (SENTENCE, UNKNOWN):
            if mark not in words:
                raise UserError(f"{self._where()} has no line for {mark}: it is not One Billion Word's list of words")
        return SentenceCodec(list(words))

    def meaning(self) -> str:
        return f"{type(self).__name__} {checksum_of(self._list(), 'sha256')}"

    def _where(self) -> Path:
        return self.path or OneBillionWord.prepared() / OneBillionWord.vocabulary_file

    def _list(self) -> bytes:
        try:
            return self._where().read_bytes()
        except OSError:
            raise UserError(
                f"there is no {self._where()}: put {OneBillionWord.vocabulary_file} of github.com/rafaljozefowicz/lm "
                "there, or say with --vocabulary.path where it is"
            ) from None


def arranged(counts: Counter, order: str) -> list:
    """By count means: sorted upwards, then turned round, so that of equals the last seen comes first."""
    return list(counts) if order == "seen" else sorted(counts, key=lambda symbol: counts[symbol])[::-1]


def count_bytes(texts: Iterable[bytes]) -> Counter[int]:
    """How often each byte appears, in the order in which they first do."""
    counts: Counter[int] = Counter()
    for raw in texts:
        for start in range(0, len(raw), BLOCK):
            values, first, times = np.unique(
                np.frombuffer(raw, np.uint8, min(BLOCK, len(raw) - start), start), return_index=True, return_counts=True
            )
            for i in first.argsort():
                counts[int(values[i])] += int(times[i])
    return counts


def closed(raw: bytes) -> bytes:
    """The originals end the last line of every file, whether a newline does or not, and know three kinds of newline."""
    raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw
    return raw if raw.endswith(b"\n") or not raw else raw + b"\n"


@dataclass(frozen=True)
class ClosedWordCodec(WordCodec):
    """Words of which none is unknown: a stranger is refused."""

    lower: bool = False

    def encode(self, text: str) -> np.ndarray:
        try:
            return np.fromiter(map(self._token_of.__getitem__, words_of(self._folded(text))), np.int64)
        except KeyError:
            raise self._stranger([text]) from None

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        try:
            return super().encode_bytes(closed(raw))
        except Stranger:  # whose line was counted from the beginning of its passage
            raise self._stranger(passages(closed(raw))) from None

    def _folded(self, text: str) -> str:
        return text.lower() if self.lower else text

    def _stranger(self, texts: Iterable[str]) -> "Stranger":
        lines = enumerate((line for text in texts for line in io.StringIO(self._folded(text), newline="\n")), 1)
        line, word = next((i, word) for i, line in lines for word in line.split() if word not in self._token_of)
        return Stranger(
            f"the vocabulary has no {word!r} (line {line:,}); it knows {self.size:,} words and none that stands for "
            "the unknown. Use a text of its own words, or train with --vocabulary Words"
        )


class Stranger(UserError):
    """A word that is in no vocabulary."""


@dataclass(frozen=True)
class RankedByteCodec(PieceCodec):
    """Some of the 256 bytes, in an order of their own."""

    values: list[int]
    unit = "byte"

    @cached_property
    def pieces(self) -> list[bytes]:
        return [bytes([value]) for value in self.values]

    @cached_property
    def _token_of(self) -> np.ndarray:
        table = np.full(256, -1, np.int16)
        table[self.values] = np.arange(len(self.values))
        return table

    def encode(self, text: str) -> np.ndarray:
        return self.encode_bytes(text.encode("utf-8", "surrogateescape")).astype(np.int64)

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        ids = self._token_of[np.frombuffer(raw, np.uint8)]
        if ids.size and ids.min() < 0:
            place = int(ids.argmin())
            raise UserError(
                f"the vocabulary has no byte {raw[place : place + 1]!r} (at offset {place:,}, "
                f"line {raw.count(10, 0, place) + 1:,}); it knows {self.size:,}. "
                "Use a text of its own bytes, or train with --vocabulary Bytes"
            )
        return ids


class SentencePrinter(WordPrinter):
    """The mark that ends a sentence ends the line; the one that begins a sentence is not seen."""

    def __call__(self, token: int) -> str:
        if self.words[token] != SENTENCE:
            return super().__call__(token)
        ends, self.space = self.space, ""
        return "\n" if ends else ""


@dataclass(frozen=True)
class SentenceCodec(WordCodec):
    """Sentences between two marks, one a line; a word that is not in the list is <UNK>."""

    def encode(self, text: str) -> np.ndarray:
        """The last sentence is left open where the line does not end, so that it can be gone on with."""
        token_of, rare = self._token_of, self._token_of[UNKNOWN]
        return np.fromiter((token_of.get(word, rare) for word in self._marked(text)), np.int64)

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        return super().encode_bytes(closed(raw))

    def _marked(self, text: str) -> Iterator[str]:
        for line in re.findall("[^\n]*\n|[^\n]+", text) or [""]:
            yield SENTENCE
            yield from line.split()
            if line.endswith("\n"):
                yield SENTENCE

    def stream(self, before: str = "") -> SentencePrinter:
        return SentencePrinter(self.words, before)


def sentences(path: Path, codec: SentenceCodec) -> list[np.ndarray]:
    """The sentences of a file, each with both its marks."""
    lines = (text.split("\n") for text in passages(closed(path.read_bytes())))
    return [codec.encode(f"{line}\n") for passage in lines for line in passage[:-1]]
