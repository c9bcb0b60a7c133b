"""Sub-words: byte-pair pieces learned by sentencepiece, with single bytes for what they cannot spell."""

import base64
import io
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import UserError
from .codec import PieceCodec, bytes_of, text_of

SPACE = "▁"  # sentencepiece writes a space like this, so a real one must be kept away from it


def learn_pieces(text: str, size: int) -> bytes:
    """A serialised sentencepiece model; the same text and size give the same bytes."""
    sentencepiece, model = _sentencepiece(), io.BytesIO()
    if not text.strip("\r\n"):
        raise UserError("the training text is empty: there are no sub-words to learn from it")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.split("\n")),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            max_sentence_length=2**30,  # longer lines would be left out silently
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise _refusal(size, str(error)) from None
    return model.getvalue()


def _refusal(size: int, reason: str) -> UserError:
    needed = re.search(r"required_chars\. \d+ vs (\d+)", reason)
    if not needed:
        return UserError(f"sentencepiece cannot learn {size:,} sub-words from this text: {reason}")
    return UserError(
        f"{size:,} sub-words are too few: 256 bytes and the characters of this text alone are {int(needed[1]):,}. "
        f"Use SubWords with a size of {int(needed[1]):,} or more"
    )


@dataclass(frozen=True)
class SubWordCodec(PieceCodec):
    model: str  # base64
    unit = "sub-word"

    @cached_property
    def _processor(self) -> Any:
        return _sentencepiece().SentencePieceProcessor(model_proto=base64.b64decode(self.model))

    @cached_property
    def pieces(self) -> list[bytes]:
        return [_spelling(self._processor, token) for token in range(self._processor.vocab_size())]

    @cached_property
    def _separators(self) -> dict[str, list[int]]:
        token_of = self._processor.piece_to_id
        return {text: [token_of(f"<0x{byte:02X}>") for byte in text.encode()] for text in ("\n", SPACE)}

    def encode(self, text: str) -> np.ndarray:
        """Lines are encoded on their own: it takes half the time and gives the same tokens."""
        parts = re.split(f"([\n{SPACE}])", text_of(bytes_of(text), otherwise="train with --vocabulary Bytes"))
        encoded: list[list[int]] = self._processor.encode(parts[::2], num_threads=1)
        separators = [self._separators[separator] for separator in parts[1::2]]
        tokens = chain.from_iterable(chain(*pair) for pair in zip(encoded, [*separators, []], strict=True))
        return np.fromiter(tokens, np.int64)


def _spelling(processor: Any, token: int) -> bytes:
    piece: str = processor.id_to_piece(token)
    if processor.is_unknown(token):
        return "\N{REPLACEMENT CHARACTER}".encode()
    return bytes([int(piece[3:5], 16)]) if processor.is_byte(token) else piece.replace(SPACE, " ").encode()


def _sentencepiece() -> ModuleType:
    try:
        import sentencepiece
    except ModuleNotFoundError:
        raise UserError("sub-words need sentencepiece: pip install palimpsest[subwords]") from None
    return sentencepiece
