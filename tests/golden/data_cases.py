"""Vocabularies and encoded splits of the originals, against the legacy ones. Expected values are read here only."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from palimpsest.data.codec import Codec
from palimpsest.data.standard import WikiText103
from palimpsest.legacy.corpora import TRANSFORMER_XL, Reading, reading_of, vocabulary_from
from palimpsest.legacy.vocabularies import AdaptiveSpanWords, RankedByteCodec, SentenceCodec, sentences


def check(folder: Path) -> None:
    """A folder of the form lmtool_txl/data (corpus/ and txl_*.json) or adaptive_span/data (config.json)."""
    cases = sorted(folder.glob("txl_*.json"))
    for path in cases:
        check_transformer_xl(folder / "corpus", json.loads(path.read_text("utf-8")))
    if not cases:
        check_adaptive_span(folder, json.loads((folder / "config.json").read_text("utf-8")))


def check_transformer_xl(corpora: Path, expected: dict) -> None:
    dataset, folder = expected["dataset"], corpora / expected["folder"]
    codec = vocabulary_from(folder, dataset)
    assert symbols(codec, dataset) == expected["idx2sym"], dataset
    assert codec.size == expected["vocab_size"], dataset
    if isinstance(codec, SentenceCodec):
        check_sentences(folder, codec, expected)
        return
    corpus, vocabulary = reading_of(folder, dataset)
    check_splits(Reading(corpus, vocabulary), expected, dataset)
    if (folder / "train.raw").exists() or (folder / "train.raw.hex").exists():
        check_preparation(folder, dataset)


def check_adaptive_span(folder: Path, expected: dict) -> None:
    for name, order in {"first_seen": "seen", "sorted": "count"}.items():
        reading = Reading(WikiText103(folder), AdaptiveSpanWords(order))
        codec = check_splits(reading, expected[name], name)
        assert symbols(codec, name) == expected[name]["vocab"], name


def check_splits(reading: Reading, expected: dict, name: str) -> Codec:
    raw = reading.corpus.read()
    codec = reading.vocabulary.learn(raw["train"], raw.values())
    for split in ("train", "valid", "test"):
        assert codec.encode_bytes(raw[split]).tolist() == expected[split], f"{name} {split}"
    return codec


def check_sentences(folder: Path, codec: SentenceCodec, expected: dict) -> None:
    files = {split: folder / f"{split}.txt" for split in ("valid", "test")} | {
        path: folder / path for path in expected["train_files_encoded"]
    }
    for name, path in files.items():
        wanted = expected["train_files_encoded"].get(name) or expected[name]
        assert [sentence.tolist() for sentence in sentences(path, codec)] == wanted, name
        assert codec.encode_bytes(path.read_bytes()).tolist() == list(chain(*wanted)), name
    corpus, _ = reading_of(folder, expected["dataset"])
    assert [str(path.relative_to(folder)) for path in corpus.files()["train"]] == sorted(expected["train_paths"])


def check_preparation(folder: Path, dataset: str) -> None:
    """The text before preparation gives what the prepared text gives."""
    with TemporaryDirectory() as raw:
        for split in ("train", "valid", "test"):
            packed = folder / f"{split}.raw.hex"
            text = bytes.fromhex(packed.read_text()) if packed.exists() else (folder / f"{split}.raw").read_bytes()
            (Path(raw) / f"{split}.txt").write_bytes(text)
        corpus = TRANSFORMER_XL[dataset].corpus
        assert replace(corpus, path=Path(raw)).read() == replace(corpus, path=folder).read(), dataset


def symbols(codec: Codec, dataset: str) -> list[str]:
    """The originals' own names of the tokens: decimal numbers in enwik8, letters and _ in text8."""
    if not isinstance(codec, RankedByteCodec):
        return codec.words
    return [str(value) if dataset == "enwik8" else chr(value).replace(" ", "_") for value in codec.values]
