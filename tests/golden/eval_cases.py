"""The originals' evaluation scripts against ours: folders with `runs` in config.json and their losses beside it."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_cases import by_cluster
from safetensors.torch import load_file
from torch import Tensor, nn

from palimpsest.evaluation.perplexity import Protocol, evaluate, read_text
from palimpsest.legacy.protocols import LmtoolSlidingWindow, TransformerXLColumns

SETTINGS = {"bsz", "reset_length", "clamp_len", "same_length", "sliding", "skip_first"}
RESULTS = {"mean_loss", "ppl", "bpc", "positions", "n_model_calls"}
MEAN, TOKEN = 1e-5, 2e-5  # nats


def check(folder: Path, build: Callable[[Path], nn.Module]) -> None:
    """Every run of the folder; `build` makes our model of its configuration and weights."""
    config = json.loads((folder / "config.json").read_text())
    numbers = load_file(folder / "io.safetensors")
    ids, model = numbers["stream"].numpy(), build(folder).eval()
    assert config["runs"], f"{folder} has no runs"
    for name, run in config["runs"].items():
        cutoffs = config["constructor"].get("cutoffs", [])
        check_run(f"{folder.name}, {name}", model, ids, run, numbers[f"{name}.token_loss"], cutoffs)


def check_run(
    what: str, model: nn.Module, ids: np.ndarray, run: dict[str, Any], expected: Tensor, cutoffs: list[int]
) -> None:
    protocol = protocol_of(what, run)
    score = evaluate(model, ids, protocol, None, len(ids))
    assert score.tokens == run["positions"], f"{what}: {score.tokens} targets, expected {run['positions']}"
    for mean in (run["mean_loss"], log(run["ppl"]), run["bpc"] * log(2)):
        assert abs(score.nats_per_token - mean) <= MEAN, f"{what}: {score.nats_per_token} nats, expected {mean}"
    found = losses(protocol, model, ids, run["bsz"])
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if not run.get("sliding", False):
        found = segment_by_segment(found, ids, run, cutoffs)
    error = (found - expected.double()).abs().max().item()
    assert error <= TOKEN, f"{what}: a target is off by {error:.1e} nats"


def protocol_of(what: str, run: dict[str, Any]) -> Protocol:
    strange = run.keys() - SETTINGS - RESULTS
    assert not strange, f"{what}: settings that are not understood: {', '.join(sorted(strange))}"
    length, extra, memory = run["reset_length"]
    clamp = run.get("clamp_len", -1)
    clamp = clamp if clamp > 0 else None
    if run.get("sliding", False):
        assert (extra, memory) == (0, 0), f"{what}: sliding windows with extra context or memory are not understood"
        return LmtoolSlidingWindow(length, run.get("skip_first", False), clamp, run["bsz"])
    return TransformerXLColumns(length, memory, extra, run.get("same_length", False), clamp, run["bsz"])


def losses(protocol: Protocol, model: nn.Module, ids: np.ndarray, rows: int) -> Tensor:
    """Of every target that counts, as the originals keep them: one column for each row of the text."""
    tally = read_text(model, ids, protocol, tokens_at_once=4096)
    found = np.where(tally.times > 0, tally.nats, np.nan)
    table = found[: len(ids) // rows * rows].reshape(rows, -1).T
    return torch.from_numpy(table[~np.isnan(table).any(axis=1)])


def segment_by_segment(table: Tensor, ids: np.ndarray, run: dict[str, Any], cutoffs: list[int]) -> Tensor:
    """eval.py's adaptive softmax returns the targets of a segment cluster by cluster."""
    rows, segment = run["bsz"], run["reset_length"][0]
    targets = torch.from_numpy(ids[: len(ids) // rows * rows].reshape(rows, -1).T[1:].copy())
    pairs = zip(table.split(segment), targets.split(segment), strict=True)
    return torch.cat([by_cluster(piece, goals, cutoffs).view_as(piece) for piece, goals in pairs])
