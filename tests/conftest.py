"""What every test may rely on: one thread, repeatable chance, float64 where laws are checked, a cache of its own."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton: its kernels then run on a CPU
from hypothesis import settings

import palimpsest.legacy  # noqa: F401 (the laws hold for its parts too)
from palimpsest.kernels.trust import INTERPRETED

if INTERPRETED:
    from interpreter import teach_bfloat16, teach_masks, teach_patience

    teach_bfloat16()
    teach_masks()
    teach_patience()

HERE = Path(__file__).parent
EXACT = (HERE / "laws", HERE / "papers")

torch.set_num_threads(1)
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("repeatable")


def pytest_addoption(parser):
    parser.addoption("--golden", type=Path, default=HERE / "golden" / "cases", help="a folder of golden cases")


@pytest.fixture(scope="session", autouse=True)
def the_users_cache_is_not_touched(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PALIMPSEST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def chance_repeats_and_laws_are_exact(request):
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    if request.path.is_relative_to(EXACT[0]) or request.path.is_relative_to(EXACT[1]):
        torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
