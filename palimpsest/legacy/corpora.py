"""The standard corpora as the original toolkits read them, from our prepared folders or from their own.

A folder of theirs holds train.txt, valid.txt and test.txt: words as they are, enwik8 as decimal numbers, text8 as
letters a space apart. What their preparation left out is left out here, so that a score is per byte they scored.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..data.codec import Codec
from ..data.standard import Enwik8, OneBillionWord, PennTreebank, Standard, Text8, WikiText2, WikiText103
from ..errors import UserError, unknown
from .vocabularies import (
    AdaptiveSpanBytes,
    AdaptiveSpanWords,
    Counted,
    TransformerXLBytes,
    TransformerXLWordList,
    TransformerXLWords,
)

NEWLINE, ZERO, NINE = 10, 48, 57
BLOCK = 2**24  # bytes


@dataclass(frozen=True)
class AdaptiveSpanEnwik8(Enwik8):
    """Enwik8 as adaptive-span reads it: every split ends with a newline."""

    def read(self) -> dict[str, bytes]:
        return {split: ended(from_decimals(raw)) for split, raw in super().read().items()}


@dataclass(frozen=True)
class TransformerXLEnwik8(Enwik8):
    """Enwik8 as Transformer-XL reads it: without its newlines."""

    def read(self) -> dict[str, bytes]:
        return {split: from_decimals(raw).replace(b"\n", b"") for split, raw in super().read().items()}


@dataclass(frozen=True)
class TransformerXLText8(Text8):
    """Text8 as Transformer-XL reads it: no space at either end of a split."""

    def read(self) -> dict[str, bytes]:
        return {split: from_letters(raw).strip().lower() for split, raw in super().read().items()}


@dataclass(frozen=True)
class AdaptiveSpanText8(Text8):
    """Text8 as adaptive-span reads it: each split one line, with no space at either end."""

    def read(self) -> dict[str, bytes]:
        return {split: ended(from_letters(raw).strip()) for split, raw in super().read().items()}


@dataclass(frozen=True)
class TransformerXLOneBillionWord(OneBillionWord):
    """One Billion Word as Transformer-XL reads it: validated on the sentences that it is tested on."""

    def files(self) -> dict[str, list[Path]]:
        found = super().files()
        return found | {"valid": found["test"]} if self.path is None and "test" in found else found


class Reading(NamedTuple):
    corpus: Standard
    vocabulary: Counted


TRANSFORMER_XL = {
    "wt103": Reading(WikiText103(), TransformerXLWords()),
    "wt2": Reading(WikiText2(), TransformerXLWords(counted="all")),
    "ptb": Reading(PennTreebank(), TransformerXLWords(counted="all", lower=True)),
    "enwik8": Reading(TransformerXLEnwik8(), TransformerXLBytes()),
    "text8": Reading(TransformerXLText8(), TransformerXLBytes()),
    "lm1b": Reading(TransformerXLOneBillionWord(), TransformerXLWordList()),
}
ADAPTIVE_SPAN = {
    "enwik8": Reading(AdaptiveSpanEnwik8(), AdaptiveSpanBytes()),
    "text8": Reading(AdaptiveSpanText8(), AdaptiveSpanBytes()),
    "wikitext-103": Reading(WikiText103(), AdaptiveSpanWords()),
}
ADAPTIVE_SPAN_SORTED = {
    "enwik8": Reading(AdaptiveSpanEnwik8(), AdaptiveSpanBytes("count")),
    "text8": Reading(AdaptiveSpanText8(), AdaptiveSpanBytes("count")),
    "wikitext-103": Reading(WikiText103(), AdaptiveSpanWords("count")),
}


def reading_of(folder: Path, dataset: str, original: dict[str, Reading] = TRANSFORMER_XL) -> Reading:
    """How an original reads a data folder of its own, by the name it gives the dataset."""
    if dataset not in original:
        raise unknown("dataset", dataset, list(original))
    corpus, vocabulary = original[dataset]
    if isinstance(vocabulary, TransformerXLWordList):
        vocabulary = replace(vocabulary, path=folder / OneBillionWord.vocabulary_file)
    return Reading(replace(corpus, path=folder), vocabulary)  # pyright: ignore[reportArgumentType]


def vocabulary_from(folder: Path, dataset: str, original: dict[str, Reading] = TRANSFORMER_XL) -> Codec:
    """The tokens of a model that was trained on a data folder of an original."""
    return learn(reading_of(folder, dataset, original))


def learn(reading: Reading) -> Codec:
    """The tokens of a model that read this."""
    corpus, vocabulary = reading
    missing = [split for split in vocabulary.splits if split not in corpus.files()]
    if missing:
        raise UserError(
            f"{corpus.folder} has no {', '.join(f'{split}.txt' for split in missing)}: the vocabulary of {corpus.name} "
            "is counted from the data that the model was trained on; give its folder with --data, or run "
            f"`palimpsest data prepare {corpus.name}`"
        )
    raw = corpus.read() if vocabulary.splits else {"train": b""}
    return vocabulary.learn(raw["train"], raw.values())


def ended(raw: bytes) -> bytes:
    return raw if raw.endswith(b"\n") else raw + b"\n"


def from_letters(raw: bytes) -> bytes:
    """`c l o c k _ t o w n` -> `clock town`; anything else as it is."""
    spaced = b"_" in raw or not raw[1::2].strip()
    return raw.translate(None, b" \n").replace(b"_", b" ") if spaced else raw


def from_decimals(raw: bytes) -> bytes:
    """`67 108 \\n 32` -> `Cl\\n `; anything else as it is."""
    if raw[:BLOCK].translate(None, b"0123456789 \n"):
        return raw
    pieces, start = [], 0
    while start < len(raw):
        space = raw.find(b" ", start + BLOCK)
        end = len(raw) if space < 0 else space + 1
        pieces.append(_from_decimals(np.frombuffer(raw, np.uint8, end - start, start)))
        start = end
    return b"".join(pieces)


def _from_decimals(text: np.ndarray) -> bytes:
    """Each number is read at its last digit, from that digit and up to two before it."""
    text = np.concatenate([np.full(2, NEWLINE, np.uint8), text])
    digit = (text >= ZERO) & (text <= NINE)
    last = digit & ~np.append(digit[1:], False)
    newline = text == NEWLINE
    newline[:2] = False
    places = np.flatnonzero(last | newline)
    worth = np.where(digit, text - ZERO, 0).astype(np.int16)
    tens = digit[places - 1]
    hundreds = tens & digit[places - 2]
    number = worth[places] + 10 * tens * worth[places - 1] + 100 * hundreds * worth[places - 2]
    number[newline[places]] = NEWLINE
    if number.size and number.max() > 255:
        raise UserError(f"the text of numbers holds {number.max()}, which is no byte: give enwik8 as it was prepared")
    return number.astype(np.uint8).tobytes()
