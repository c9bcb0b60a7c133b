"""Files as the originals wrote them, against the weights of the cases they belong to."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from palimpsest.legacy import from_adaptive_span, pickles


def check(folder: Path, cases: Path) -> None:
    """`folder` holds model.pt and is named like a case among `cases`: the same names, the same numbers."""
    expected = load_file(cases / folder.name / "weights.safetensors")
    found = pickles.read(folder / "model.pt")
    assert found.kind == "module"
    assert found.weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.weights[name].dtype == tensor.dtype, name
        assert torch.equal(found.weights[name], tensor), name


def check_checkpoint(path: Path) -> None:
    """A training checkpoint of adaptive-span holds the last weights of the run it lies beside."""
    found = pickles.read(path)
    assert found.kind == "training checkpoint"
    last = {name: tensor for name, tensor in load_file(path.with_name("io.safetensors")).items() if "final." in name}
    assert last, f"{path} has no run beside it"
    for name, tensor in last.items():
        assert torch.equal(found.weights[name.removeprefix("final.")], tensor), name
    from_adaptive_span.translate(found.weights, json.loads(path.with_name("config.json").read_text())).build()
