"""A Codec turns text into tokens and back."""

import codecs
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from ..errors import UserError

EOS, UNK = "<eos>", "<unk>"
CODE_POINTS = 0x110000
PASSAGE = 2**24  # bytes


class Printer(Protocol):
    """Is called with one token at a time and returns the text that it completes."""

    def __call__(self, token: int) -> str: ...

    def close(self) -> str:
        """What is left when no more tokens come: a mark for a character that was never finished."""
        ...


@dataclass(frozen=True)
class Codec:
    """Text to tokens and back. The fields of a subclass are all that JSON has to keep."""

    unit: ClassVar[str]

    @property
    def size(self) -> int:
        raise NotImplementedError

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64."""
        raise NotImplementedError

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        """The tokens of a file, integers of any width."""
        return self.encode(text_of(raw))

    def decode(self, ids: Iterable[int]) -> str:
        printer = self.stream()
        return "".join([printer(int(token)) for token in ids]) + printer.close()

    def stream(self, before: str = "") -> Printer:
        """For tokens that follow the text before, which is there already."""
        raise NotImplementedError

    def spelling(self, ids: Iterable[int]) -> bytes:
        """What the tokens stand for, byte by byte, even where that is less than a character."""
        return self.decode(ids).encode()

    def to_json(self) -> dict[str, Any]:
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"codec": type(self).__name__, **kept}


def text_of(raw: bytes, offset: int = 0, otherwise: str = "use --vocabulary Bytes") -> str:
    """`offset` says where in the file `raw` begins, `otherwise` what to do if it cannot be converted."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the text is not UTF-8: byte 0x{raw[error.start]:02x} at offset {offset + error.start:,}. "
            f"Convert it to UTF-8, or {otherwise}"
        ) from None


def bytes_of(text: str) -> bytes:
    """Those that were no UTF-8, which come from the shell or from standard input hidden in surrogates, as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that hides none
        return text.encode("utf-8", "surrogatepass")


def characters_begun(raw: bytes) -> int:
    """How many characters of UTF-8 have their first byte among these, so that each is in one piece of a text."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)


def passages(raw: bytes, size: int = PASSAGE) -> Iterator[str]:
    """The text in pieces of whole lines, because a large corpus does not fit in memory as text."""
    start = 0
    while start < len(raw):
        newline = raw.find(b"\n", start + size)
        end = len(raw) if newline < 0 else newline + 1
        yield text_of(raw[start:end], start)
        start = end


class Utf8Printer:
    """Tokens may end in the middle of a character: it is held back until it is whole."""

    def __init__(self, pieces: list[bytes]):
        self.pieces = pieces
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, token: int) -> str:
        return self.decoder.decode(self.pieces[token])

    def close(self) -> str:
        return self.decoder.decode(b"", final=True)


@dataclass(frozen=True)
class PieceCodec(Codec):
    """Every token stands for the same bytes wherever it appears."""

    @cached_property
    def pieces(self) -> list[bytes]:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return len(self.pieces)

    def stream(self, before: str = "") -> Utf8Printer:
        return Utf8Printer(self.pieces)

    def spelling(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.pieces[token] for token in ids)


@dataclass(frozen=True)
class ByteCodec(PieceCodec):
    unit = "byte"

    @cached_property
    def pieces(self) -> list[bytes]:
        return [bytes([value]) for value in range(256)]

    def encode(self, text: str) -> np.ndarray:
        # surrogateescape: a prompt that is not UTF-8 comes from the shell with its bytes hidden in surrogates
        return self.encode_bytes(text.encode("utf-8", "surrogateescape")).astype(np.int64)

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        return np.frombuffer(raw, np.uint8)


@dataclass(frozen=True)
class CharacterCodec(PieceCodec):
    alphabet: str
    unit = "character"

    @cached_property
    def pieces(self) -> list[bytes]:
        return [character.encode("utf-8") for character in self.alphabet]

    @cached_property
    def _token_of(self) -> np.ndarray:
        table = np.full(CODE_POINTS, -1)
        table[code_points(self.alphabet)] = np.arange(len(self.alphabet))
        return table

    def encode(self, text: str) -> np.ndarray:
        ids = self._token_of[code_points(text)]
        if ids.size and ids.min() < 0:
            raise self._stranger(text, int(ids.argmin()))
        return ids

    def _stranger(self, text: str, place: int) -> UserError:
        return UserError(
            f"the vocabulary has no {text[place]!r} (U+{ord(text[place]):04X}, at character {place + 1:,}); "
            f"it knows {self.size:,} characters. Use a text in the same alphabet, or train with --vocabulary Bytes"
        )


def code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


class WordPrinter:
    """Words of a line stand one space apart."""

    def __init__(self, words: list[str], before: str):
        self.words = words
        self.space = " " if before and not before[-1].isspace() else ""

    def __call__(self, token: int) -> str:
        word, space = self.words[token], self.space
        self.space = "" if word == EOS else " "
        return "\n" if word == EOS else space + word

    def close(self) -> str:
        return ""


@dataclass(frozen=True)
class WordCodec(Codec):
    words: list[str]
    unit = "word"

    @staticmethod
    def split(text: str) -> Iterator[str]:
        return words_of(text)

    @property
    def size(self) -> int:
        return len(self.words)

    @cached_property
    def _token_of(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words)}

    def encode(self, text: str) -> np.ndarray:
        token_of, rare = self._token_of, self._token_of[UNK]
        return np.fromiter((token_of.get(word, rare) for word in self.split(text)), np.int64)

    def encode_bytes(self, raw: bytes) -> np.ndarray:
        smallest = np.min_scalar_type(self.size - 1)
        pieces = (self.encode(text).astype(smallest) for text in passages(raw))
        return np.concatenate([np.zeros(0, smallest), *pieces])

    def stream(self, before: str = "") -> WordPrinter:
        return WordPrinter(self.words, before)


@dataclass(frozen=True)
class PunctuatedWordCodec(WordCodec):
    """Words of running text, in which punctuation marks touch them."""

    @staticmethod
    def split(text: str) -> Iterator[str]:
        return words_of(MARK_INSIDE.sub(r" @\1@ ", SET_APART.sub(r" \1\2 ", text)))


# what was set apart before stays as it is; then come all marks that do not stand between letters or digits
SET_APART = re.compile(rf"(?<!\S)({UNK}|@[^\w\s]@)(?!\S)|((?<!\w)[^\w\s]|[^\w\s](?!\w))")
MARK_INSIDE = re.compile(r"(?<=\w)([^\w\s])(?=\w)")


def words_of(text: str) -> Iterator[str]:
    """Line by line, because all the words of a large corpus at once do not fit in memory."""
    for line in io.StringIO(text, newline="\n"):
        yield from line.replace("\n", f" {EOS} ").split()
