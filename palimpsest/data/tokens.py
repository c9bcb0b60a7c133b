"""A corpus as tokens: encoded once, kept in token files, read through memory maps ever after."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import cache, write_atomically
from .codec import passages
from .corpora import Corpus
from .vocabulary import Codec, Vocabulary, codec_from_json

FORMAT = "palimpsest tokens 2"
BORDERS = "<i8"  # the numbers of documents' borders


@dataclass(frozen=True, eq=False)
class Split:
    """`ids` are of the smallest unsigned type that holds the vocabulary; `characters` is None for what is not UTF-8."""

    name: str
    ids: np.ndarray
    characters: int | None
    bytes: int
    documents: np.ndarray | None = None  # where each begins, and where the last one ends; None: all is one text

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> int:
        """Tokens that something foretells: all but the first of the text, or of each document."""
        return len(self.ids) - (1 if self.documents is None else len(self.documents) - 1)


@dataclass(frozen=True, eq=False)
class Tokens:
    codec: Codec
    splits: dict[str, Split]


class Damaged(Exception):
    """An entry of the cache is not what was stored."""


def tokenise(
    corpus: Corpus,
    vocabulary: Vocabulary,
    codec: Codec | None = None,
    cache: Path | None = None,
    notice: Callable[[str], object] = lambda line: None,
) -> Tokens:
    """The tokens of every split; with a `codec`, such as a trained model's own, no vocabulary is learned."""
    raw = corpus.read()
    sources = {name: _sha256(text) for name, text in raw.items()}
    folder = cache or cache_folder()
    sidecar = folder / f"{_key(sources, vocabulary, codec, corpus.documents)}.json"
    try:
        if stored := _load(sidecar):
            return stored
    except Damaged as damage:
        notice(f"the token cache is damaged ({damage}); it is built again")
    tokens = _encode(raw, codec or _learn(corpus, vocabulary, raw), corpus.documents)
    try:
        _store(sidecar, tokens, sources)
        return _load(sidecar) or tokens
    except (OSError, Damaged) as error:
        notice(f"the token cache {folder} cannot be written ({error}); the tokens stay in memory")
        return tokens


def cache_folder() -> Path:
    return cache() / "tokens"


def _learn(corpus: Corpus, vocabulary: Vocabulary, raw: dict[str, bytes]) -> Codec:
    if "train" not in raw:
        raise UserError(f"{corpus.name} has no train split to learn a vocabulary from, only {', '.join(raw)}")
    return vocabulary.learn(raw["train"], raw.values())


def _encode(raw: dict[str, bytes], codec: Codec, end: str | None) -> Tokens:
    return Tokens(codec, {name: _encode_split(name, text, codec, end) for name, text in raw.items()})


def _encode_split(name: str, text: bytes, codec: Codec, end: str | None) -> Split:
    """Each document by itself, so that no token reaches into the next."""
    pieces = [text] if end is None else _cut_after(text, end.encode())
    encoded = [codec.encode_bytes(piece).astype(_dtype(codec), copy=False) for piece in pieces]
    ids = encoded[0] if len(encoded) == 1 else np.concatenate(encoded)
    borders = None
    if end is not None:
        borders = np.unique(np.cumsum([0, *map(len, encoded)]))  # once: a document may have no tokens at all
    return Split(name, ids, _characters(text), len(text), borders)


def _cut_after(text: bytes, end: bytes) -> list[bytes]:
    *ended, rest = text.split(end)
    return [*(piece + end for piece in ended), *([rest] if rest or not ended else [])]


def _dtype(codec: Codec) -> np.dtype:
    return np.min_scalar_type(codec.size - 1)


def _characters(raw: bytes) -> int | None:
    try:
        return sum(map(len, passages(raw)))
    except UserError:
        return None


def _key(sources: dict[str, str], vocabulary: Vocabulary, codec: Codec | None, end: str | None) -> str:
    meaning = vocabulary.meaning() if codec is None else json.dumps(codec.to_json(), sort_keys=True)
    return _sha256(json.dumps([FORMAT, meaning, sources, *([end] if end else [])], sort_keys=True).encode())


def _sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _load(sidecar: Path) -> Tokens | None:
    """What is stored, checked against its checksums; None where nothing is."""
    try:
        entry = json.loads(sidecar.read_text("utf-8"))
    except OSError:
        return None
    except ValueError:
        raise Damaged(f"{sidecar.name} is not JSON") from None
    try:
        splits = {name: _open(sidecar.parent, name, entry["dtype"], kept) for name, kept in entry["splits"].items()}
        return Tokens(codec_from_json(entry["codec"]), splits)
    except (KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{sidecar.name} lacks {error}") from None


def _open(folder: Path, name: str, dtype: str, kept: dict[str, Any]) -> Split:
    ids = _map(folder, dtype, kept["tokens"], kept["sha256"])
    documents = kept["documents"] and _map(folder, BORDERS, kept["documents"]["borders"], kept["documents"]["sha256"])
    return Split(name, ids, kept["characters"], kept["bytes"], documents)


def _map(folder: Path, dtype: str, count: int, digest: str) -> np.ndarray:
    path = _token_file(folder, digest)
    try:
        # a file of no bytes cannot be mapped
        numbers = np.memmap(path, dtype, "r") if count else np.zeros(0, dtype)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: {error}") from None
    if len(numbers) != count or _sha256(numbers) != digest:
        raise Damaged(f"{path.name} does not match its checksum")
    return numbers


def _store(sidecar: Path, tokens: Tokens, sources: dict[str, str]) -> None:
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    dtype = _dtype(tokens.codec).newbyteorder("<")
    splits = {}
    for name, split in tokens.splits.items():
        ids = np.ascontiguousarray(split.ids, dtype)
        counts = {"tokens": split.tokens, "characters": split.characters, "bytes": split.bytes}
        documents = None
        if split.documents is not None:
            borders = np.ascontiguousarray(split.documents, BORDERS)
            documents = {"borders": len(borders), "sha256": _write(sidecar.parent, borders)}
        digest = _write(sidecar.parent, ids)
        splits[name] = {**counts, "sha256": digest, "source": sources[name], "documents": documents}
    entry = {"format": FORMAT, "dtype": dtype.str, "splits": splits, "codec": tokens.codec.to_json()}
    write_atomically(sidecar, json.dumps(entry, indent=1).encode())


def _write(folder: Path, numbers: np.ndarray) -> str:
    digest = _sha256(numbers)
    write_atomically(_token_file(folder, digest), numbers.data)
    return digest


def _token_file(folder: Path, digest: str) -> Path:
    """Named by its own content, so that two processes building at once can never mix their entries."""
    return folder / f"{digest}.bin"
