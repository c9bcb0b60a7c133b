"""A Vocabulary says what a token is. Learned from a text, it gives the Codec that reads and writes such tokens."""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from ..errors import UserError, unknown
from ..spec import Count, Size, Spec
from .codec import (
    CODE_POINTS,
    EOS,
    UNK,
    ByteCodec,
    CharacterCodec,
    Codec,
    PunctuatedWordCodec,
    WordCodec,
    code_points,
    passages,
    text_of,
    words_of,
)
from .sub_words import SubWordCodec, learn_pieces


class Vocabulary(Spec):
    def learn(self, train: bytes, everything: Iterable[bytes]) -> Codec:
        """`everything` is all splits: an alphabet may be closed over them, statistics are taken from `train` alone."""
        raise NotImplementedError

    def meaning(self) -> str:
        """All that the tokens of a text depend on besides the text."""
        return repr(self)


@dataclass(frozen=True)
class Bytes(Vocabulary):
    """The 256 bytes: reads any file, UTF-8 or not."""

    def learn(self, train: bytes, everything: Iterable[bytes]) -> ByteCodec:
        return ByteCodec()


@dataclass(frozen=True)
class Characters(Vocabulary):
    """The Unicode characters that the corpus uses."""

    def learn(self, train: bytes, everything: Iterable[bytes]) -> CharacterCodec:
        seen = np.zeros(CODE_POINTS, bool)
        for raw in everything:
            seen[code_points(text_of(raw))] = True
        return CharacterCodec("".join(map(chr, np.flatnonzero(seen))))


@dataclass(frozen=True)
class Words(Vocabulary):
    """Words between spaces, the most frequent first; <eos> for a newline, <unk> for a word that was cut.

    Cut are words seen fewer than `minimum_count` times, then the rarest until `size` tokens are left.
    """

    minimum_count: Count = 1
    size: int | None = None
    codec: ClassVar[type[WordCodec]] = WordCodec

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and self.size < 2:
            raise UserError(f"Words(size={self.size}) is too small: {EOS} and {UNK} alone are 2")

    def learn(self, train: bytes, everything: Iterable[bytes]) -> WordCodec:
        counts = count_words(train, self.codec.split)
        words = [word for word, count in counts.most_common() if count >= self.minimum_count and word not in (EOS, UNK)]
        kept = set(words[: None if self.size is None else self.size - 2]) | {EOS, UNK}
        for word in list(counts):
            if word not in kept:
                counts[UNK] += counts.pop(word)
        counts.update({EOS: 0, UNK: 0})
        return self.codec([word for word, _ in counts.most_common()])


@dataclass(frozen=True)
class PunctuatedWords(Words):
    """As Words, of running text: punctuation marks are words of their own, those inside a word @-@, as in WikiText."""

    codec = PunctuatedWordCodec


def count_words(raw: bytes, split: Callable[[str], Iterator[str]] = words_of) -> Counter[str]:
    """Words and ends of lines in the order in which they first appear."""
    counts: Counter[str] = Counter()
    for text in passages(raw):
        counts.update(split(text))
    return counts


@dataclass(frozen=True)
class SubWords(Vocabulary):
    """At most `size` pieces of words by byte-pair encoding, spaces and newlines kept; no text is unknown."""

    size: Size = 2000

    def learn(self, train: bytes, everything: Iterable[bytes]) -> SubWordCodec:
        return SubWordCodec(base64.b64encode(learn_pieces(text_of(train), self.size)).decode())


def codec_from_json(saved: dict[str, Any]) -> Codec:
    kinds = {kind.__name__: kind for kind in _codecs(Codec)}
    name, kept = saved["codec"], {key: value for key, value in saved.items() if key != "codec"}
    if name not in kinds:
        raise unknown("codec", name, list(kinds))
    return kinds[name](**kept)


def _codecs(kind: type[Codec]) -> list[type[Codec]]:
    return [kind, *chain.from_iterable(map(_codecs, kind.__subclasses__()))]
