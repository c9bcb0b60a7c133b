"""How passes on a GPU are measured: as they are called, as replayed CUDA graphs, in memory, and beside what it can do.

Times are medians of turns. In a turn many calls are queued one behind the other, as in training, and the device's own
clock tells how long all of them took: where the host is slower than the device, that is the time of the host. Gradients
are found in the thread that asks for them, whoever's they are, as that is how palimpsest trains. Several runs on inputs
of their own take turns, so that none finds its inputs in the device's cache.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import triton
from measuring import surroundings
from torch import Tensor

from palimpsest.kernels.tuning import recorded
from palimpsest.world import in_this_thread

Run = Callable[[], object]
TURNS = 7
TURN = 20.0  # milliseconds of a turn, at least
MOST_CALLS = 200
CACHE = 2**27  # bytes: more than a device keeps close to its processors


@dataclass(frozen=True)
class Ceilings:
    """What this device does at most, as measured: copies in GB/s, bfloat16 products of matrices in TFLOP/s."""

    copy: float
    product: float

    def milliseconds(self, bytes: float, operations: float) -> float:
        """The least time for so many bytes and operations, which may overlap."""
        return max(bytes / self.copy / 1e6, operations / self.product / 1e9)


def time_eager(*runs: Run) -> float:
    """Milliseconds of a call."""
    with in_this_thread():
        for run in runs * 2:
            run()
        return median_of_turns(cycle(runs))


def time_graph(*runs: Run) -> float:
    """The same as CUDA graphs."""
    return median_of_turns(cycle([recorded(run) for run in runs]))


def median_of_turns(runs: Iterator[Run]) -> float:
    turn(islice(runs, 3))
    calls = min(MOST_CALLS, max(3, round(TURN / turn(islice(runs, 3)))))
    return statistics.median(turn(islice(runs, calls)) for _ in range(TURNS))


def turn(runs: Iterable[Run]) -> float:
    """Milliseconds of one of these."""
    start, end, calls = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), 0
    start.record()
    for run in runs:
        run()
        calls += 1
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def peak_bytes(run: Run) -> int:
    """What a run needs beside what was there before it."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copies_for(tensors: Iterable[Tensor]) -> int:
    """How many inputs as large as these do not fit into the cache."""
    return 1 + CACHE // sum(x.numel() * x.element_size() for x in tensors)


def ceilings() -> Ceilings:
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.numel() * source.element_size()
    copy = copied / time_eager(lambda: target.copy_(source)) / 1e6
    size = 8192
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    product = 2 * size**3 / time_eager(lambda: torch.mm(left, right, out=out)) / 1e9
    return Ceilings(copy, product)


def save(output: Path, found: dict[str, Any]) -> None:
    write(output, found)
    partial(output).unlink(missing_ok=True)
    print(f"\nwritten to {output}")


def save_so_far(output: Path, found: dict[str, Any]) -> None:
    """Beside what an earlier run has found, until all is measured: who has to stop a run keeps its numbers."""
    write(partial(output), found)


def partial(output: Path) -> Path:
    return output.with_suffix(".partial.json")


def write(output: Path, found: dict[str, Any]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(surroundings_gpu() | found, indent=2) + "\n")


def surroundings_gpu() -> dict[str, Any]:
    around: dict[str, Any] = surroundings()
    properties = torch.cuda.get_device_properties(0)
    around["versions"] |= {"cuda": torch.version.cuda, "triton": triton.__version__, "driver": driver()}
    around["hardware"] |= {"gpu": properties.name, "multiprocessors": properties.multi_processor_count}
    return around


def driver() -> str:
    """Of the GPU."""
    told = Path("/proc/driver/nvidia/version")
    numbers = re.search(r"\d+\.\d+[.\d]*", told.read_text()) if told.exists() else None
    return numbers[0] if numbers else "unknown"
