"""The triangular system of a chunk's notes: its inverse is as exact as float32 is, whatever the keys are."""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from palimpsest.kernels.fused.chunk import inverse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def inverse_kernel(given, found, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    place = tl.arange(0, CHUNK)
    at = place[:, None] * CHUNK + place[None, :]
    tl.store(found + at, inverse(tl.load(given + at), CHUNK, PRECISION))


def random_keys(chunk: int) -> Tensor:
    keys = torch.randn(chunk, 8, generator=torch.Generator().manual_seed(chunk), dtype=torch.float64)
    return keys @ keys.T / 8


def one_key(chunk: int) -> Tensor:
    """For all tokens, and β = 1: powers of the system are binomials, its inverse has nothing but ones."""
    return torch.ones(chunk, chunk, dtype=torch.float64)


def two_keys(chunk: int) -> Tensor:
    """In turns, and β = 2: what is written is mirrored, and nothing fades."""
    place = torch.arange(chunk)
    return 2.0 * ((place[:, None] - place[None, :]) % 2 == 0).double()


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
@pytest.mark.parametrize("chunk", [16, 32])
@pytest.mark.parametrize("overlaps", [random_keys, one_key, two_keys])
def test_a_system_is_solved_to_the_precision_of_float32(overlaps, chunk, precision):
    system = overlaps(chunk).tril(-1).float().to(DEVICE)
    found = torch.full_like(system, torch.nan)
    inverse_kernel[(1,)](system, found, chunk, precision)
    truth = torch.linalg.inv(torch.eye(chunk, dtype=torch.float64) + system.double().cpu())
    # no worse than a solver that knows the system is triangular, but for a few roundings
    plain = torch.linalg.solve_triangular(
        system.cpu() + torch.eye(chunk), torch.eye(chunk), upper=False, unitriangular=True
    )
    error, allowed = ((x.double().cpu() - truth).norm() / truth.norm() for x in (found, plain))
    assert error <= 2 * allowed + 1e-6


def test_whatever_is_not_below_the_diagonal_stays_as_it_is():
    system = random_keys(32).tril(-1).float().to(DEVICE)
    found = torch.empty_like(system)
    inverse_kernel[(1,)](system, found, 32, "ieee")
    assert torch.equal(found.triu().cpu(), torch.eye(32))
