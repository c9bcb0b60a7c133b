"""Kernels as they are compiled for an H200, run instruction by instruction (device.py), are as right as on any GPU.

What Triton makes of a kernel is wrong at times, for some numbers of warps and not for others: the interpreter, which
runs what it is made of, does not see that.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from palimpsest.kernels import self_test
from palimpsest.kernels.self_test import Trial
from palimpsest.kernels.trust import HAS_TRITON

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_TRITON, reason="there is no Triton to compile kernels")]
SCRIPT = Path(__file__).with_name("try_compiled.py")
KERNELS = sorted({case.kernel for case in self_test.cases()})


def trials(*command: str) -> list[Trial]:
    """In a process of its own, which compiles where this one interprets."""
    told = subprocess.check_output([sys.executable, str(SCRIPT), *command], text=True)
    found = [Trial(**trial) for trial in json.loads(told)]
    assert found
    assert not [trial for trial in found if trial.refused]
    return found


def complaints(found: list[Trial]) -> list[str]:
    return [trial.complaint for trial in found if not trial.passed]


@pytest.mark.parametrize("kernel", [*KERNELS, "parts"])
def test_compiled_kernels_pass_the_trial_before_their_first_use(kernel):
    assert not complaints(trials(kernel))


@pytest.mark.parametrize("warps", ["2", "8"])
@pytest.mark.parametrize("case", ["Delta", "Delta, one gate", "GatedDelta", "FeatureGatedDelta"])
def test_they_do_so_with_other_numbers_of_warps(case, warps):
    assert not complaints(trials("memory_scan", "--case", case, "--warps", warps))


@pytest.mark.parametrize("word", ["bar.sync", "cp.async.wait_group", "wgmma.wait_group", "fence.proxy.async"])
def test_an_instruction_that_is_missing_is_noticed(word):
    """All those that make one thread wait for another, or for memory."""
    assert complaints(trials("memory_scan", "--case", "Delta, one gate", "--without", word))
