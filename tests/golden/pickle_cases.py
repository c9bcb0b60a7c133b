"""Whole modules as the originals pickled them, against the weights of the case of the same name."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from palimpsest.legacy import pickles


def check(folder: Path, cases: Path) -> None:
    """`folder` holds model.pt and is named like a case among `cases`: the same names, the same numbers."""
    expected = load_file(cases / folder.name / "weights.safetensors")
    found = pickles.read(folder / "model.pt")
    assert found.kind == "module"
    assert found.weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.weights[name].dtype == tensor.dtype, name
        assert torch.equal(found.weights[name], tensor), name
