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


HALVES = (torch.float16, torch.bfloat16)


def no_worse(
    found: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    dtype: torch.dtype,
    most: float,
) -> None:
    """No result is off by more than `most` times what the plain form's is off by in float16.

    Not every CPU multiplies bfloat16. What it would cost the plain form is told by how much coarser it is, and twice
    that is allowed.
    """
    allowed = most if dtype == torch.float16 else 2 * torch.finfo(dtype).eps / torch.finfo(torch.float16).eps
    for name, truth in expected.items():
        ours, theirs = ((form[name] - truth).norm() for form in (found, plain))
        assert ours <= allowed * theirs, f"{name}: off by {ours:.1e}, the plain form by {theirs:.1e} in float16"


def states_close(actual: State, expected: State) -> None:
    for number, (one, other) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
        close(one, other, what=f"leaf {number} of the state")
