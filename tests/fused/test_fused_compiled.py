"""Kernels as they are compiled for GPUs that are not here: they fit into shared memory, and into registers.

And they are found again by the next process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_for.py")
# capability, and bytes of shared memory for a program
A100, GEFORCE, H200, B200 = (80, 166_912), (89, 101_376), (90, 232_448), (100, 232_448)
SPILLED = 6000  # bytes of a thread's registers: beyond, ptxas has given up, and a kernel takes ten times as long

SCANS = [  # map, scale, keep, width, ν, features, values
    ["DPFP", "SumToOne", "all", 16, 3, 96, 16],
    ["DPFP", "SumToOne", "all", 32, 3, 192, 32],
    ["DPFP", "SumToOne", "heads", 64, 1, 128, 64],
    ["Favor", "SumToOne", "all", 64, 1, 128, 64],
    ["EluPlusOne", "SumToOne", "all", 256, 1, 256, 256],
    ["Silu", "UnitNorm", "heads", 128, 1, 128, 128],
    ["Silu", "UnitNorm", "heads", 256, 1, 256, 16],
    ["Silu", "UnitNorm", "features", 128, 1, 128, 128],
]
WIDEST = [SCANS[3], SCANS[4], SCANS[7]]  # those that need the most


def cases():
    for case in SCANS:
        yield H200, "scan", case
    for case in WIDEST:
        yield GEFORCE, "scan", case
    for gpu in (H200, GEFORCE):
        yield gpu, "long scan", SCANS[4]
    for gpu in (H200, GEFORCE):
        for width in (128, 256):
            yield gpu, "sum", [width, width]
            yield gpu, "attention", [width]
        for width in (256, 512):
            yield gpu, "head", [width]
    for gpu in (A100, B200):
        yield gpu, "scan", SCANS[-1]
        yield gpu, "attention", [256]


ASKED = """
import sys
from palimpsest.kernels.fused import decode, features, scan_kernels
from palimpsest.kernels.fused.launching import give_keys
kernels = [scan_kernels.prepare_kernel, scan_kernels.carry_kernel, scan_kernels.gradients_kernel, decode.decode_kernel]
for kernel in kernels[:: int(sys.argv[1])]:
    give_keys(kernel.__module__)
    _ = kernel.cache_key
print(*[kernel.cache_key for kernel in kernels])
"""


@pytest.mark.slow
def test_a_kernel_has_one_key_whatever_was_asked_for_before_it():
    def keys(order: int) -> list[str]:
        command = [sys.executable, "-c", ASKED, str(order)]
        return subprocess.check_output(command, env=os.environ | {"TRITON_INTERPRET": "0"}, text=True).split()

    found = keys(1)
    assert len({*found}) == 4
    assert keys(-1) == found


@pytest.mark.slow
@pytest.mark.parametrize("gpu, family, case", [*cases()], ids=str)
def test_a_kernel_fits(gpu, family, case):
    capability, room = gpu
    command = [sys.executable, str(SCRIPT), str(capability), str(room), family, json.dumps(case)]
    told = subprocess.check_output(command, env=os.environ | {"TRITON_INTERPRET": "0"}, text=True)
    found = json.loads(told)
    assert len(found) >= (2 if family == "sum" else 4)
    assert not [each for each in found if each["shared"] > room or each["spilled"] > SPILLED]
