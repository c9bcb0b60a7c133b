"""What it means here that two results are the same."""

from collections.abc import Mapping

import torch
from torch import Tensor

from palimpsest.state import State, leaves


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9, what: str = "the result") -> None:
    """No number is off by more than `tolerance` of the largest one expected (of one, where all are zero)."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if not expected.is_floating_point():
        assert torch.equal(actual, expected), f"{what}: {actual}, expected {expected}"
    elif expected.numel():
        scale = expected.double().abs().max().item() or 1.0
        error = (actual.double() - expected.double()).abs().max().item() / scale
        assert error <= tolerance, f"{what}: off by {error:.1e} of the largest number expected"


def all_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-9) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        close(actual[name], expected[name], tolerance, name)


def states_close(actual: State, expected: State) -> None:
    for number, (one, other) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
        close(one, other, what=f"leaf {number} of the state")
