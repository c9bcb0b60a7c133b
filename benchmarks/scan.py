"""Speed and memory of the memory scan on a CPU: our chunked form and a plain token loop, side by side in one run.

    python benchmarks/scan.py [--threads 2] [--quick] [--output FILE]

Time is that of a forward and a backward pass in float32, with the gradient of every input. The contenders take
turns; the median of the turns is shown, and the quartiles around it. Before anything is timed, loop and chunked
form must agree. A busy machine slows many small operations more than few large ones, so quartiles that lie far
apart make a run worthless, and it says so.

Memory is the peak resident size of a fresh process during one such pass, inputs and gradients included, less its
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from palimpsest.kernels import Gates, memory_scan

RESULTS = Path(__file__).parent / "results" / "scan-cpu.json"
AGREEMENT = 1e-4  # of the largest number: float32 over a few hundred tokens


@dataclass(frozen=True)
class Size:
    batch: int = 4
    length: int = 512
    heads: int = 4
    features: int = 64
    values: int = 64


@dataclass(frozen=True)
class Rule:
    """Which gates there are; `keep_per_feature` has one for each feature of the key, not one for each head."""

    keeps: bool = False
    erases: bool = False
    keep_per_feature: bool = False


SUM = Rule()
DELTA = Rule(erases=True)
GATED_DELTA = Rule(keeps=True, erases=True)
GATED_DELTA_PER_FEATURE = Rule(keeps=True, erases=True, keep_per_feature=True)


@dataclass(frozen=True)
class Problem:
    """What a scan is given."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    memory: Tensor
    gates: Gates

    def leaves(self) -> list[Tensor]:
        gates = [gate for gate in self.gates if gate is not None]
        return [self.queries, self.keys, self.values, self.memory, *gates]


def draw(size: Size, rule: Rule) -> Problem:
    """Queries and keys of length one, β anywhere between 0 and 1, a page that fades by some per cent a token."""
    chance = torch.Generator().manual_seed(0)
    tokens = (size.batch, size.length, size.heads)
    queries, keys = normalize(torch.randn(2, *tokens, size.features, generator=chance), dim=-1)
    values = torch.randn(*tokens, size.values, generator=chance)
    memory = torch.randn(size.batch, size.heads, size.features, size.values, generator=chance)
    log_keep = -0.1 * torch.rand((*tokens, size.features) if rule.keep_per_feature else tokens, generator=chance)
    beta = torch.rand(tokens, generator=chance)
    gates = Gates(log_keep if rule.keeps else None, *((beta, beta.clone()) if rule.erases else ()))
    problem = Problem(queries, keys, values, memory, gates)
    for leaf in problem.leaves():
        leaf.requires_grad_()
    return problem


def chunked(problem: Problem) -> tuple[Tensor, Tensor]:
    return memory_scan(problem.queries, problem.keys, problem.values, problem.gates, problem.memory, backend="chunked")


def token_loop(problem: Problem) -> tuple[Tensor, Tensor]:
    """The equations as one first writes them down: every token keeps, recalls, erases, writes and reads."""
    always = torch.ones(problem.values.shape[:3])
    keep = always if problem.gates.log_keep is None else problem.gates.log_keep.exp()
    erase = torch.zeros_like(always) if problem.gates.erase is None else problem.gates.erase
    write = always if problem.gates.write is None else problem.gates.write
    page, reads = problem.memory, []
    for t in range(problem.values.shape[1]):
        key = problem.keys[:, t]
        page = page * keep[:, t, :, None, None]
        recalled = torch.einsum("bhk,bhkv->bhv", key, page)
        note = write[:, t, :, None] * problem.values[:, t] - erase[:, t, :, None] * recalled
        page = page + torch.einsum("bhk,bhv->bhkv", key, note)
        reads.append(torch.einsum("bhk,bhkv->bhv", problem.queries[:, t], page))
    return torch.stack(reads, dim=1), page


Scan = Callable[[Problem], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Contender:
    scan: Scan
    rule: Rule
    size: Size

    def ready(self) -> Callable[[], list[Tensor]]:
        """The pass that is measured: it returns reads, last memory and the gradient of every input."""
        problem = draw(self.size, self.rule)
        weights = torch.randn(problem.values.shape, generator=torch.Generator().manual_seed(1))

        def forward_and_backward() -> list[Tensor]:
            reads, memory = self.scan(problem)
            gradients = torch.autograd.grad((reads * weights).sum() + memory.sum(), problem.leaves())
            return [reads.detach(), memory.detach(), *gradients]

        return forward_and_backward


def disagreement(one: Contender, other: Contender) -> float:
    """The largest difference between their results, each in units of its largest number."""
    pairs = zip(one.ready()(), other.ready()(), strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


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


def time_in_turns(contenders: dict[str, Contender], turns: int) -> dict[str, Timing]:
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
    tiny = replace(contender.size, batch=1, heads=1, length=contender.size.length // 8)
    replace(contender, size=tiny).ready()()
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


@dataclass(frozen=True)
class Plan:
    short: Size
    long: Size
    turns: int

    @property
    def growth(self) -> float:
        return self.long.length / self.short.length


FULL = Plan(Size(length=512), Size(length=8192), turns=9)
QUICK = Plan(Size(length=512), Size(length=2048), turns=3)


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


def measure(plan: Plan) -> Results:
    loop = Contender(token_loop, DELTA, plan.short)
    delta = Contender(chunked, DELTA, plan.short)
    long = replace(delta, size=plan.long)
    found = disagreement(delta, loop)
    if found > AGREEMENT:
        raise SystemExit(f"the loop and the chunked form disagree by {found:.1e}: there is nothing to compare")

    seconds = time_in_turns(
        {
            "token loop, Delta": loop,
            "chunked, Delta": delta,
            "chunked, Sum": replace(delta, rule=SUM),
            "chunked, GatedDelta": replace(delta, rule=GATED_DELTA),
            "chunked, GatedDelta, keep per feature": replace(delta, rule=GATED_DELTA_PER_FEATURE),
        },
        plan.turns,
    )
    alone = time_in_turns({"chunked, Delta, beside the long one": delta, "chunked, Delta, long": long}, plan.turns)
    memory = {
        "token loop, Delta": peak_memory(loop),
        "chunked, Delta": peak_memory(delta),
        "chunked, Delta, long": peak_memory(long),
    }
    return Results(found, seconds | alone, memory, ratios(seconds | alone, memory, plan.growth))


def ratios(seconds: dict[str, Timing], memory: dict[str, float], growth: float) -> list[Ratio]:
    def time_of(name: str, other: str = "chunked, Delta") -> float:
        return seconds[name].median / seconds[other].median

    def memory_of(name: str) -> float:
        return memory[name] / memory["chunked, Delta"]

    return [
        Ratio("time: token loop / chunked", time_of("token loop, Delta"), "at least 20"),
        Ratio("time: Sum / Delta", time_of("chunked, Sum")),
        Ratio("time: GatedDelta / Delta", time_of("chunked, GatedDelta")),
        Ratio("time: GatedDelta, keep per feature / Delta", time_of("chunked, GatedDelta, keep per feature")),
        Ratio(
            f"time: growth over {growth:g} times the length / {growth:g}",
            time_of("chunked, Delta, long", "chunked, Delta, beside the long one") / growth,
            "at most 1.2",
        ),
        Ratio("memory: token loop / chunked", memory_of("token loop, Delta")),
        Ratio(
            f"memory: growth over {growth:g} times the length / {growth:g}",
            memory_of("chunked, Delta, long") / growth,
            "at most 1.2",
        ),
    ]


def show(results: Results, plan: Plan) -> None:
    sizes = f"T {plan.short.length}, long T {plan.long.length}"
    print(f"forward and backward, float32, B {plan.short.batch}, heads {plan.short.heads}, ", end="")
    print(f"{plan.short.features} features, {plan.short.values} values, {sizes}, {torch.get_num_threads()} threads")
    print(f"the loop and the chunked form agree to {results.disagreement:.1e}\n")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--quick", action="store_true", help="a shorter long sequence and fewer turns: to see that it runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = QUICK if options.quick else FULL
    results = measure(plan)
    show(results, plan)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(surroundings() | {"plan": asdict(plan)} | asdict(results), indent=2) + "\n")
    print(f"\nwritten to {options.output}")


if __name__ == "__main__":
    main()
