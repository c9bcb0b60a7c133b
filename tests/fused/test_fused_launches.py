"""Triton's own launcher, in C, understands what we tell it: a driver hears the same as when Triton launches."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("launch_nowhere.py")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to make a driver with")
def test_a_driver_is_told_the_same_by_triton_by_us_and_with_addresses(tmp_path):
    found = json.loads(subprocess.check_output([sys.executable, str(SCRIPT), str(tmp_path)], text=True))
    assert len(found) == 13  # kernels of two scans and of attention
    for by_triton, by_us, by_address in found:
        assert by_triton == by_us == by_address
        assert any(number > 2**32 for number in by_triton)  # an address
