"""How long the host takes for a pass of each fused kernel, on any machine: what a GPU would be told is not sent.

    python benchmarks/host.py [--quick] [--output FILE]

A pass is a forward and a backward pass through the kernel's door, in bfloat16, with the gradient of everything that
goes in; all is done that is done on a GPU, but for the launches themselves. Beside them stands the least there can be:
a function of torch of four tensors, whose gradients are there already. All take turns, and the best turn of each
counts: whatever else a machine does makes it longer and never shorter.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is there: the doors then take tensors of a CPU

import torch
import triton
from measuring import surroundings
from torch import Tensor
from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import driver

from palimpsest.attention.spans import shares
from palimpsest.gates import Gates
from palimpsest.kernels import linear_cross_entropy, memory_scan, relative_attention, short_convolution
from palimpsest.kernels.fused import (
    attention_kernels,
    convolution_kernels,
    cross_entropy_kernels,
    decode,
    scan_kernels,
    sum_kernels,
)
from palimpsest.look import Look
from palimpsest.relative import Relative

RESULTS = Path(__file__).parent / "results" / "host-cpu.json"
TOKENS = (2, 64, 8, 16)

Run = Callable[[], object]


class Launcher(CudaLauncher):
    """Triton's own, but that what it would launch is told nobody."""

    global_scratch_size = profile_scratch_size = 0
    global_scratch_align = profile_scratch_align = num_ctas = 1
    launch_cooperative_grid = launch_pdl = gsan_enabled = False

    def __init__(self):
        self.arg_annotations, self.kernel_signature = (), b""

    def launch(self, *told) -> None:
        pass


class Told:
    """In place of a kernel: it says that it was compiled."""

    run, function, packed_metadata = Launcher(), 0, ()

    def __init__(self, kernel: Any):
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid: tuple) -> Callable[..., "Told"]:
        return lambda *arguments, **named: self


class Driver:
    """In place of Triton's, as much of it as launches ask for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def silence(module: ModuleType) -> None:
    for name, found in list(vars(module).items()):
        if name.endswith("_kernel"):
            setattr(module, name, Told(found))


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def there_and_back(door: Callable[..., Tensor], *given: Tensor) -> Run:
    coming = torch.ones_like(door(*given))
    return lambda: torch.autograd.grad(door(*given), given, coming)


class Bare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *given):
        ctx.save_for_backward(*given)
        return given[0].new_empty(*given[0].shape)

    @staticmethod
    def backward(ctx, *grads):
        return ctx.saved_tensors


def scanned(queries, keys, values, beta=None, log_keep=None, look=None) -> Tensor:
    return memory_scan(queries, keys, values, Gates(log_keep, beta, beta), look=look, backend="fused")[0]


def sums(queries, keys, values) -> Tensor:
    return scanned(queries, keys, values)


def looked(queries, keys, values, beta) -> Tensor:
    return scanned(queries, keys, values, beta, look=Look(map="EluPlusOne", scale="SumToOne"))


def attended(queries, keys, values, places, table, bias) -> Tensor:
    return relative_attention(queries, keys, values, relative=Relative(places, table, bias), backend="fused")


def spanned(queries, keys, values, table, ratios) -> Tensor:
    relative, mask = Relative(None, table, None), shares(ratios, 64, 32, 64)
    return relative_attention(queries, keys, values, relative=relative, mask=mask, backend="fused")


def scored(hidden, weight, bias) -> Tensor:
    targets = torch.zeros(len(hidden), dtype=torch.int64)
    return linear_cross_entropy(hidden, weight, bias, targets, backend="fused")


def convolved(x, recent, taps) -> Tensor:
    return short_convolution(x, recent, taps, backend="fused")


def decoded() -> Run:
    queries, keys, values = (draw(2, 1, 8, 16).detach() for _ in range(3))
    gates, page = Gates(erase=torch.ones(2, 1, 8), write=torch.ones(2, 1, 8)), torch.zeros(2, 8, 16, 16)
    return lambda: memory_scan(queries, keys, values, gates, page, backend="fused")


def runs() -> dict[str, Run]:
    q, k, v, places, beta = *(draw(*TOKENS) for _ in range(4)), draw(*TOKENS[:3])
    log_keep = (-torch.rand(TOKENS[:3])).requires_grad_()
    table, bias = draw(64, 8, 16), draw(64, 8, dtype=torch.float32)
    return {
        "torch alone, four tensors": there_and_back(Bare.apply, q, k, v, beta),
        "sum": there_and_back(sums, q, k, v),
        "delta": there_and_back(scanned, q, k, v, beta),
        "delta, ELU on chip": there_and_back(looked, q, k, v, beta),
        "gated delta": there_and_back(scanned, q, k, v, beta, log_keep),
        "relative attention": there_and_back(attended, q, k, v, places, table, bias),
        "adaptive spans": there_and_back(spanned, q, k, v, table, torch.rand(8).requires_grad_()),
        "cross-entropy": there_and_back(scored, draw(64, 64), draw(256, 64), draw(256)),
        "short convolution": there_and_back(convolved, draw(2, 64, 128), draw(2, 3, 128), draw(128, 4)),
        "one token of delta, no gradient": decoded(),
    }


def microseconds(passes: dict[str, Run], turns: int, calls: int) -> dict[str, float]:
    best = dict.fromkeys(passes, float("inf"))
    for _ in range(turns):
        for name, run in passes.items():
            run()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns: to see that it runs")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    driver.set_active(Driver())  # pyright: ignore[reportArgumentType]
    for module in (attention_kernels, convolution_kernels, cross_entropy_kernels, decode, scan_kernels, sum_kernels):
        silence(module)
    found = microseconds(runs(), *((2, 3) if chosen.quick else (20, 300)))
    least, *_ = found.values()
    for name, each in found.items():
        print(f"{name:34} {each:7.1f} µs {each / least:6.2f} ×")
    measured = [{"pass": name, "microseconds": each, "of_torch_alone": each / least} for name, each in found.items()]
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    around: dict[str, Any] = surroundings()
    around["versions"] |= {"triton": triton.__version__}  # whose launcher it is
    chosen.output.write_text(json.dumps(around | {"measured": measured}, indent=2) + "\n")
    print(f"\nwritten to {chosen.output}")


if __name__ == "__main__":
    main()
