"""A corpus as tokens: encoded once, kept in token files, read through memory maps ever after."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import write_atomically
from .codec import passages
from .corpora import Corpus
from .downloads import cache
from .vocabulary import Codec, Vocabulary, codec_from_json

FORMAT = "palimpsest tokens 1"


@dataclass(frozen=True, eq=False)
class Split:
    """`ids` are of the smallest unsigned type that holds the vocabulary; `characters` is None for what is not UTF-8."""

    name: str
    ids: np.ndarray
    characters: int | None
    bytes: int

    @property
    def tokens(self) -> int:
        return len(self.ids)


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
    sidecar = folder / f"{_key(sources, vocabulary, codec)}.json"
    try:
        if stored := _load(sidecar):
            return stored
    except Damaged as damage:
        notice(f"the token cache is damaged ({damage}); it is built again")
    tokens = _encode(raw, codec or _learn(corpus, vocabulary, raw))
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


def _encode(raw: dict[str, bytes], codec: Codec) -> Tokens:
    ids = {name: codec.encode_bytes(text).astype(_dtype(codec), copy=False) for name, text in raw.items()}
    return Tokens(codec, {name: Split(name, ids[name], _characters(raw[name]), len(raw[name])) for name in raw})


def _dtype(codec: Codec) -> np.dtype:
    return np.min_scalar_type(codec.size - 1)


def _characters(raw: bytes) -> int | None:
    try:
        return sum(map(len, passages(raw)))
    except UserError:
        return None


def _key(sources: dict[str, str], vocabulary: Vocabulary, codec: Codec | None) -> str:
    meaning = vocabulary.meaning() if codec is None else json.dumps(codec.to_json(), sort_keys=True)
    return _sha256(json.dumps([FORMAT, meaning, sources], sort_keys=True).encode())


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
    path = _token_file(folder, kept["sha256"])
    count = kept["tokens"]
    try:
        # a file of no bytes cannot be mapped
        ids = np.memmap(path, dtype, "r") if count else np.zeros(0, dtype)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name}: {error}") from None
    if len(ids) != count or _sha256(ids) != kept["sha256"]:
        raise Damaged(f"{path.name} does not match its checksum")
    return Split(name, ids, kept["characters"], kept["bytes"])


def _store(sidecar: Path, tokens: Tokens, sources: dict[str, str]) -> None:
    sidecar.parent.mkdir(parents=True, exist_ok=True)
    dtype = _dtype(tokens.codec).newbyteorder("<")
    splits = {}
    for name, split in tokens.splits.items():
        ids = np.ascontiguousarray(split.ids, dtype)
        counts = {"tokens": split.tokens, "characters": split.characters, "bytes": split.bytes}
        splits[name] = {**counts, "sha256": _sha256(ids), "source": sources[name]}
        write_atomically(_token_file(sidecar.parent, splits[name]["sha256"]), ids.data)
    entry = {"format": FORMAT, "dtype": dtype.str, "splits": splits, "codec": tokens.codec.to_json()}
    write_atomically(sidecar, json.dumps(entry, indent=1).encode())


def _token_file(folder: Path, digest: str) -> Path:
    """Named by its own content, so that two processes building at once can never mix their entries."""
    return folder / f"{digest}.bin"
