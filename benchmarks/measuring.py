"""How contenders are measured: time in turns, memory in fresh processes, and where the numbers go.

A pass is a forward and a backward pass in float32. The contenders take turns; the median of the turns is shown, and
the quartiles around it. A busy machine slows many small operations more than few large ones, so quartiles that lie
far apart make a run worthless, and it says so.

Memory is the peak resident size of a fresh process during one pass, inputs and gradients included, less its
peak before, when torch is loaded and a pass of a hundredth of the size is done; the median of three processes. They
have one thread each, and tensors are given back to the system at once: what threads and the allocator keep for
themselves would make short sequences look large.
"""

import argparse
import json
import os
import platform
import resource
import shlex
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

AGREEMENT = 1e-4  # of the largest number: float32 over a few hundred tokens
Pass = Callable[[], list[Tensor]]
PlanT = TypeVar("PlanT")


class Contender(ABC):
    @abstractmethod
    def ready(self) -> Pass:
        """The pass that is measured: it returns what was computed and the gradient of every input."""

    @abstractmethod
    def tiny(self) -> "Contender":
        """The same at about a hundredth of the size."""


@dataclass(frozen=True)
class Timing:
    """Seconds of a forward and a backward pass."""

    median: float
    lower_quartile: float
    upper_quartile: float
    turns: int

    @property
    def steady(self) -> bool:
        return self.upper_quartile < 1.25 * self.lower_quartile


@dataclass(frozen=True)
class Ratio:
    name: str
    value: float
    aim: str = ""


@dataclass(frozen=True)
class Results:
    disagreement: float
    seconds: dict[str, Timing]
    bytes: dict[str, float]
    ratios: list[Ratio]


def disagreement(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """The largest difference between two results, each in units of its largest number; too large a one is the end."""
    found = max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(one, other, strict=True))
    if found > AGREEMENT:
        raise SystemExit(f"the forms disagree by {found:.1e}: there is nothing to compare")
    return found


def time_in_turns(contenders: Mapping[str, Contender], turns: int) -> dict[str, Timing]:
    passes = {name: contender.ready() for name, contender in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for turn in range(turns + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            run()
            if turn > 0:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: timing(each) for name, each in seconds.items()}


def timing(seconds: list[float]) -> Timing:
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, lower, upper, len(seconds))


def peak_memory(contender: Contender, processes: int = 3) -> float:
    """Bytes, the median of several fresh processes."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**16)  # read by glibc when a process starts, so not by this one
    found = []
    for _ in range(processes):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            found.append(fresh.submit(added_peak, contender).result())
    return statistics.median(found)


def added_peak(contender: Contender) -> int:
    torch.set_num_threads(1)
    contender.tiny().ready()()
    before = peak_resident()
    contender.ready()()
    return peak_resident() - before


def peak_resident() -> int:
    """In bytes. Linux' ru_maxrss would remember the process that started this one, so there the kernel is asked."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(peak.split()[1])


def report(
    about: str,
    output: Path,
    full: PlanT,
    quick: PlanT,
    measure: Callable[[PlanT], Results],
    said: Callable[[PlanT], str],
) -> None:
    """A benchmark from its command line to its file; `said` tells the sizes of a plan."""
    chosen = options(about, output)
    plan = quick if chosen.quick else full
    results = measure(plan)
    print(f"{said(plan)}, {torch.get_num_threads()} threads; the forms agree to {results.disagreement:.1e}\n")
    show(results)
    save(chosen.output, plan, results)


def options(about: str, output: Path) -> argparse.Namespace:
    """What the command line says; torch has as many threads from here on."""
    parser = argparse.ArgumentParser(
        description=about, epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="shorter sequences and fewer turns: to see that it runs")
    parser.add_argument("--output", type=Path, default=output, help="where the numbers go, as JSON (%(default)s)")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    return chosen


def show(results: Results) -> None:
    print(f"{'':42} {'median':>10} {'quartiles':>21} {'peak memory':>13}")
    for name, t in results.seconds.items():
        quartiles = f"{t.lower_quartile * 1e3:.1f} – {t.upper_quartile * 1e3:.1f} ms"
        memory = f"{results.bytes[name] / 2**20:.0f} MiB" if name in results.bytes else ""
        print(f"{name:42} {t.median * 1e3:7.1f} ms {quartiles:>21} {memory:>13}")
    print()
    for ratio in results.ratios:
        print(f"{ratio.name:55} {ratio.value:7.2f}   {ratio.aim and f'aim: {ratio.aim}'}")
    if unsteady := [name for name, t in results.seconds.items() if not t.steady]:
        print(f"\nThe machine was busy; do not trust the times of: {'; '.join(unsteady)}")


def save(output: Path, plan: Any, results: Results) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(surroundings() | {"plan": asdict(plan)} | asdict(results), indent=2) + "\n")
    print(f"\nwritten to {output}")


def surroundings() -> dict[str, object]:
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "hardware": {"cpu": cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
    }


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
