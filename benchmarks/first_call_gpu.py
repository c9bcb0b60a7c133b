"""How long the first call of a fused kernel takes on a GPU, where nothing was ever compiled and nothing is trusted yet.

    python benchmarks/first_call_gpu.py [--output FILE]

A call is a forward and a backward pass in bfloat16, in a fresh process with empty caches. At its first use a kernel is
tried against its definition, and what the trial needs is compiled, and what the scan is asked for beside it. A second
process finds what the first one left. What torch takes to load and to find the device is in none of the numbers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from palimpsest.gates import Gates
from palimpsest.kernels import linear_cross_entropy, memory_scan, relative_attention, short_convolution
from palimpsest.kernels.trust import trusted
from palimpsest.relative import Relative

RESULTS = Path(__file__).parent / "results" / "first-call-gpu.json"


@dataclass(frozen=True)
class FirstCall:
    """Seconds."""

    kernel: str
    shape: str
    first: float
    again: float  # in the next process


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()


def scan(rows: int, length: int, heads: int, width: int) -> Tensor:
    queries, keys, values = (draw(rows, length, heads, width) for _ in range(3))
    beta = draw(rows, length, heads)
    return memory_scan(queries, keys, values, Gates(erase=beta, write=beta, limit=1.0))[0]


def attention(rows: int, length: int, heads: int, width: int) -> Tensor:
    queries, keys, values, places = (draw(rows, length, heads, width) for _ in range(4))
    return relative_attention(queries, keys, values, relative=Relative(places, draw(length, heads, width), None))


def head(rows: int, width: int, tokens: int) -> Tensor:
    targets = torch.randint(tokens, (rows,), device="cuda")
    return linear_cross_entropy(draw(rows, width), draw(tokens, width), draw(tokens), targets)


def convolution(rows: int, length: int, channels: int, size: int) -> Tensor:
    return short_convolution(draw(rows, length, channels), draw(rows, size - 1, channels), draw(channels, size))


CALLS = {
    "memory_scan": (scan, (8, 2048, 16, 64)),
    "relative_attention": (attention, (22, 512, 8, 64)),
    "linear_cross_entropy": (head, (8192, 128, 20000)),
    "short_convolution": (convolution, (8, 2048, 512, 4)),
}


def apart(kernel: str) -> None:
    """In a process of its own: prints the seconds of the call."""
    torch.zeros(1, device="cuda")
    call, sizes = CALLS[kernel]
    start = time.perf_counter()
    call(*sizes).sum().backward()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    if not trusted(kernel, torch.device("cuda", 0)):
        raise SystemExit(f"{kernel} is not trusted here: `palimpsest doctor` tells why")
    print(seconds)


def measure(kernel: str) -> FirstCall:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "PALIMPSEST_CACHE": f"{folder}/palimpsest"}
        command = [sys.executable, __file__, "--apart", kernel]
        told = [subprocess.check_output(command, env=os.environ | caches, text=True) for _ in range(2)]
    first, again = (float(each.splitlines()[-1]) for each in told)
    return FirstCall(kernel, ",".join(map(str, CALLS[kernel][1])), first, again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", choices=CALLS, default=[*CALLS], metavar="NAME", help=", ".join(CALLS))
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    parser.add_argument("--apart", choices=CALLS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.apart:
        apart(chosen.apart)
        return
    from measuring_gpu import save, save_so_far

    found = []
    for kernel in chosen.kernels:
        one = measure(kernel)
        print(f"{one.kernel:22} {one.shape:18} {one.first:.1f} s, again {one.again:.2f} s", flush=True)
        found.append(asdict(one))
        save_so_far(chosen.output, {"measured": found})
    save(chosen.output, {"measured": found})


if __name__ == "__main__":
    main()
