"""What every test of a fused kernel may rely on."""

import pytest
import torch

from palimpsest.kernels.trust import HAS_TRITON

collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]  # then there are no kernels to test


@pytest.fixture(autouse=True)
def nothing_is_left_unwritten():
    """Whatever is made empty holds no numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
