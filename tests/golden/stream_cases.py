"""Batches as the originals made them, against the legacy orders. Expected values are read here only."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from palimpsest.data.streams import Order
from palimpsest.legacy.streams import (
    AdaptiveSpanBlocks,
    LmtoolSlidingWindows,
    TransformerXLRandomLengths,
    TransformerXLSegments,
    TransformerXLSentences,
    TransformerXLShuffledSentences,
)


def check(folder: Path) -> None:
    """A folder of the form lmtool_txl/data, adaptive_span/data or adaptive_span/train_*."""
    checks = [
        *((check_iterators, path) for path in sorted(folder.glob("txl_*.json"))),
        *((check_sliding, path) for path in sorted(folder.glob("fwms_*_sliding.json"))),
        *((check_blocks, path) for path in sorted(folder.glob("config.json"))),
    ]
    assert checks, f"nothing about batches in {folder}"
    for compare, path in checks:
        compare(path)


def check_iterators(path: Path) -> None:
    text = json.loads(path.read_text())
    for name, case in text["iterators"].items():
        kind, split, seed = part(r"^[a-z]+", name), part(r"train|valid|test", name), part(r"(?<=seed)\d+", name)
        ids, files = sentences_of(text, split) if kind in ("shuffled", "multifile") else (text[split], ())
        check_batches(order_of(kind, case, files), np.array(ids), case, int(seed or 0), name)


def check_sliding(path: Path) -> None:
    text = json.loads(path.with_name(path.name.replace("fwms_", "txl_").replace("_sliding", "")).read_text())
    for name, case in json.loads(path.read_text()).items():
        ids = text[part(r"train|valid|test", name)]
        check_batches(LmtoolSlidingWindows(), np.array(ids), case, 0, name)


def check_blocks(path: Path) -> None:
    config = json.loads(path.read_text())
    if "steps" in config:
        check_places(config, load_file(path.with_name("io.safetensors"))["data"])
        return
    for name, case in config.items():
        for key in case:
            if key.startswith("batchify"):
                rows = torch.tensor(case[key])
                stream = AdaptiveSpanBlocks().build(np.array(case["train"]), len(rows), 1, 0)
                batches = [stream.next()[0] for _ in range(rows.shape[1] - 1)]
                assert torch.equal(torch.cat([batch.inputs for batch in batches], 1), rows[:, :-1]), f"{name} {key}"
                assert torch.equal(torch.cat([batch.targets for batch in batches], 1), rows[:, 1:]), f"{name} {key}"


def check_places(config: dict, rows: torch.Tensor) -> None:
    """Blocks begin where the original's training loop was, and rows continue but after a leap back."""
    block, place = config["block_size"], 0
    stream = AdaptiveSpanBlocks().build(rows.flatten().numpy(), len(rows), block, config["python_random_seed"])
    for number, step in enumerate(config["steps"]):
        batch, continues = stream.next()
        assert torch.equal(batch.inputs, rows[:, place : place + block]), f"update {number + 1}"
        assert torch.equal(batch.targets, rows[:, place + 1 : place + block + 1]), f"update {number + 1}"
        assert continues == (place >= block and number > 0), f"update {number + 1}"
        place = step["pos_after"]


def order_of(kind: str, case: dict, files: tuple[int, ...]) -> Order:
    extra = case.get("ext_len", 0)
    if kind == "ordered":
        return TransformerXLSegments(extra)
    if kind == "varlen":
        return TransformerXLRandomLengths(extra)
    assert kind in ("shuffled", "multifile"), f"batches of an unknown kind: {kind}"
    return (TransformerXLShuffledSentences if case["shuffle"] else TransformerXLSentences)(files, extra)


def sentences_of(text: dict, split: str) -> tuple[list[int], tuple[int, ...]]:
    """The sentences of a split, or those of the training files, one after another; how many each file has."""
    files = [text[split]] if split in text else [text["train_files_encoded"][path] for path in text["train_paths"]]
    return [token for file in files for sentence in file for token in sentence], tuple(map(len, files))


def check_batches(order: Order, ids: np.ndarray, case: dict, seed: int, name: str) -> None:
    """All the batches of one epoch, and that it ends there. The originals' axes are time and batch."""
    stream = order.build(ids, case["bsz"], case["bptt"], seed)
    for number, expected in enumerate(case["batches"]):
        where = f"{name}, batch {number}"
        batch, continues = stream.next()
        length = expected["seq_len"]
        assert batch.inputs.T.tolist() == expected["data"], where
        assert batch.targets[:, -length:].T.tolist() == expected["target"], where
        assert batch.count() == length * case["bsz"], where
        assert batch.mask is None or bool(batch.mask[:, -length:].all()), where
        assert continues == (order.continues and number > 0), where
    position = stream.position()
    batch, continues = stream.next()
    ended = not continues and stream.position()["epoch"] > 0
    assert ended, f"{name}: the epoch does not end after {len(case['batches'])} batches"
    stream.seek(position)
    assert torch.equal(stream.next()[0].inputs, batch.inputs), name


def part(pattern: str, name: str) -> str:
    found = re.search(pattern, name)
    return found.group() if found else ""
