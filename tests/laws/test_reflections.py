"""The laws of the scan where β is near two: a page that is turned over again and again stays as large as it is."""

import pytest
import torch
from closeness import all_close, close
from forms import EXACT_BACKENDS
from torch import Tensor

from palimpsest.kernels import Gates, memory_scan

NEARLY = 1.9999
LENGTHS = (7, 64, 65, 130)
KINDS = ("at random", "all the same", "nearly the same", "in turn")


def keys_of(kind: str, length: int, features: int = 8) -> Tensor:
    """Keys of length one, `b t h k`."""
    keys = torch.randn(2, length, 2, features)
    if kind == "all the same":
        keys = keys[:, :1].expand_as(keys)
    if kind == "nearly the same":
        keys = keys[:, :1] + 0.05 * keys
    if kind == "in turn":
        keys = torch.eye(features)[torch.arange(length) % features][None, :, None].expand_as(keys)
    return keys / keys.norm(dim=-1, keepdim=True)


def outcome(kind: str, length: int, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Reads, page and gradients. What is written is small, so that what is turned can be seen; numbers are such that
    float32 has them, as a key that is a little too long makes the page grow whatever is done."""
    torch.manual_seed(0)
    keys, queries = keys_of(kind, length), torch.randn(2, length, 2, 8)
    values, page = torch.randn(2, length, 2, 4) / length, torch.randn(2, 2, 8, 4)
    beta = torch.full((2, length, 2), NEARLY)
    given = [x.float().to(dtype).requires_grad_() for x in (queries, keys, values, beta, page)]
    queries, keys, values, beta, page = given
    reads, after = memory_scan(queries, keys, values, Gates(erase=beta, write=beta), page, backend=backend)
    chance = torch.Generator().manual_seed(1)
    sum((x * torch.randn(x.shape, generator=chance).to(x)).sum() for x in (reads, after)).backward()
    names = ("queries", "keys", "values", "β", "page")
    gradients = {f"gradient of {name}": x.grad for name, x in zip(names, given, strict=True)}
    return {"reads": reads.detach(), "last memory": after.detach()} | gradients


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_every_form_is_the_definition(kind, length):
    truth = outcome(kind, length, "reference", torch.float64)
    for backend in EXACT_BACKENDS:
        all_close(outcome(kind, length, backend, torch.float64), truth)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_chunked_form_stays_near_the_truth_in_float32(kind, length):
    truth = outcome(kind, length, "recurrent", torch.float64)
    all_close(outcome(kind, length, "chunked", torch.float32), truth, 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_that_is_only_turned_over_keeps_its_length(kind):
    keys, page = keys_of(kind, 1000), torch.randn(2, 2, 8, 4)
    twice, nothing = torch.full((2, 1000, 2), 2.0), torch.zeros(2, 1000, 2, 4)
    _, after = memory_scan(keys, keys, nothing, Gates(erase=twice, write=twice), page)
    close(after.flatten(2).norm(dim=-1), page.flatten(2).norm(dim=-1))
