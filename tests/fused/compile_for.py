"""What compiled kernels need of a GPU that is not here: `compile_for.py CAPABILITY ROOM FAMILY CASE` tells it as JSON.

All is done that is done before a launch; what would be launched is compiled for such a GPU, and nothing runs.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import torch
import triton
from elsewhere import Elsewhere
from torch import Tensor
from triton.backends.nvidia.compiler import get_ptxas

from palimpsest.gates import Gates
from palimpsest.kernels.fused import attention, cross_entropy, scan, scan_launches, sums
from palimpsest.kernels.fused.tuned import with_numbers
from palimpsest.look import Look
from palimpsest.relative import Relative

ROWS, LENGTH, HEADS = 40, 64, 4


def needs_of(kernel: Any, arguments, way, ptxas: str) -> dict[str, Any]:
    found = way()
    options = found.constants | found.options
    binary = kernel.run(*arguments, *found.numbers, grid=found.grid, warmup=True, **options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as written:
        written.write(binary.asm["ptx"])
        written.flush()
        (target,) = re.findall(r"\.target (\w+)", binary.asm["ptx"])
        command = [ptxas, "-v", f"-arch={target}", written.name, "-o", "/dev/null"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (spilled,) = re.findall(r"(\d+) bytes spill stores", told)
    return {"kernel": kernel.__name__, "shared": binary.metadata.shared, "spilled": int(spilled)}


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def scanned(map: str, scale: str, keep: str, width: int, nu: int, features: int, values: int) -> Tensor:
    tokens, matrix = (ROWS, LENGTH, HEADS), None
    if map == "Favor":
        matrix = torch.zeros(width, features // 2)
    log_keep = None if keep == "all" else draw(*tokens, *([features] if keep == "features" else []))
    gates = Gates(log_keep, draw(*tokens), draw(*tokens), 1.0)
    memory = draw(ROWS, HEADS, features, values, dtype=torch.float32)
    look = Look(matrix=matrix, map=map, scale=scale, nu=nu)
    return scan.scan(draw(*tokens, width), draw(*tokens, width), draw(*tokens, values), gates, memory, look)[0]


def added_up(features: int, values: int) -> Tensor:
    tokens = (ROWS, LENGTH, HEADS)
    return scan.scan(draw(*tokens, features), draw(*tokens, features), draw(*tokens, values), Gates(), None)[0]


def scanned_in_parts(*case) -> Tensor:
    usual = scan.settings_for
    scan.settings_for = lambda *about: with_numbers(usual(*about), {"parts": 3})
    return scanned(*case)


def attended(width: int) -> Tensor:
    tokens, vectors = (ROWS, LENGTH, HEADS, width), (HEADS, 16, width)
    queries, keys, values, places = (draw(*tokens) for _ in range(4))
    relative = Relative(places, draw(LENGTH, HEADS, width), draw(LENGTH, HEADS))
    persistent = draw(*vectors), draw(*vectors)
    return attention.attend(queries, keys, values, LENGTH, relative, draw(HEADS, LENGTH), persistent, None, 0.1)


def scored(width: int) -> Tensor:
    targets = torch.zeros(ROWS, dtype=torch.int64)
    return cross_entropy.nats_of(draw(ROWS, width), draw(1000, width), draw(1000), targets, None, 1e-4, 0.1)


FAMILIES = {
    "scan": (scan_launches, scanned),
    "long scan": (scan_launches, scanned_in_parts),
    "sum": (sums, added_up),
    "attention": (attention, attended),
    "head": (cross_entropy, scored),
}


def main(capability: str, room: str, family: str, case: str) -> None:
    triton.runtime.driver.set_active(Elsewhere(int(capability)))  # pyright: ignore[reportArgumentType]
    module, call = FAMILIES[family]
    found, ptxas = {}, get_ptxas(int(capability)).path  # that of Triton, which may have several

    def launch(compiled, purpose, kernel, arguments, way) -> None:
        found[purpose] = needs_of(kernel, arguments, way, ptxas)

    module.launch = launch
    scan.room_of = attention.room_of = cross_entropy.room_of = lambda device: int(room)
    call(*json.loads(case)).sum().backward()
    print(json.dumps([*found.values()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
