"""Speed of the recurrent fast weight programmers on a GPU: the plain forms, token by token, beside the fused ones.

    python benchmarks/recurrent_gpu.py [--quick] [--warps 1 2 4] [--output FILE]

What is measured is the recurrence alone, forward and backward, with the gradient of everything given: bfloat16 tokens
and float32 pages, at the sizes of the recipes recurrent-fwp-*. The fused form is timed as it is called and as a
replayed CUDA graph; `--warps` adds replays with other numbers of warps. Before anything is timed, the fused form in
float32 is held against the plain one in float64, with 1 to 8 warps: no result and no gradient may be off by more than
twice what the plain form loses in float32.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from measuring_gpu import save, time_eager, time_graph
from torch import Tensor

from palimpsest.kernels.activations import Bare, Softmax
from palimpsest.kernels.delta_lstm import delta_lstm
from palimpsest.kernels.delta_rnn import delta_rnn
from palimpsest.kernels.fused import delta_lstm as fused_lstm
from palimpsest.kernels.fused import delta_rnn as fused_rnn
from palimpsest.kernels.fused import recurrent_delta as fused_recurrent_delta
from palimpsest.kernels.recurrent_delta import recurrent_delta

RESULTS = Path(__file__).parent / "results" / "recurrent-gpu.json"
EPSILON = 1e-6  # as the recipes have it


@dataclass(frozen=True)
class Size:
    batch: int
    length: int
    heads: int = 8
    width: int = 16


SIZES = (Size(96, 256), Size(56, 384))
QUICK = (Size(8, 64),)
TRIED = Size(3, 50, heads=2)


def draw_rnn(size: Size) -> list[Tensor]:
    tokens, state = (size.batch, size.length, size.heads), (size.batch, size.heads)
    inputs, keys, values = torch.randn(3, *tokens, size.width)
    memory, fed = torch.randn(*state, size.width, size.width), torch.randn(*state, size.width)
    return [inputs, keys.softmax(-1), values, torch.rand(tokens), memory, fed.softmax(-1)]


def draw_lstm(size: Size) -> list[Tensor]:
    tokens, state = (size.batch, size.length, size.heads, 3), (size.batch, size.heads)
    inputs, keys, values = torch.randn(3, *tokens, size.width)
    memory, (fed, cell) = torch.randn(*state, 3, size.width, size.width), torch.randn(2, *state, size.width)
    return [inputs, keys.softmax(-1), values, torch.rand(tokens), memory, fed.softmax(-1), cell]


def draw_recurrent_delta(size: Size) -> list[Tensor]:
    made, state = 3 * size.width + 1, (size.batch, size.heads)
    inputs = torch.randn(size.batch, size.length, size.heads, made)
    weights = torch.randn(size.heads, size.width, made) / size.width**0.5
    return [inputs, weights, torch.randn(*state, size.width, size.width), torch.randn(*state, size.width)]


@dataclass(frozen=True)
class Net:
    draw: Callable[[Size], list[Tensor]]
    door: Callable[..., tuple[Tensor, ...]]
    fused: Callable[..., tuple[Tensor, ...]]  # takes `warps`
    tokens: int  # of what is given, so many of the first are in the type of tokens


def fused_lstm_alone(*given: Tensor, warps: int) -> tuple[Tensor, ...]:
    return fused_lstm.delta_lstm(*given, None, "Softmax", EPSILON, "Bare", warps)  # pyright: ignore[reportCallIssue]


NETS = {
    "DeltaRNN": Net(
        draw_rnn,
        lambda *given, backend: delta_rnn(*given, Softmax(EPSILON), backend=backend),  # pyright: ignore
        lambda *given, warps: fused_rnn.delta_rnn(*given, "Softmax", EPSILON, warps),  # pyright: ignore
        tokens=4,
    ),
    "DeltaLSTM": Net(
        draw_lstm,
        lambda *given, backend: delta_lstm(*given, Softmax(EPSILON), Bare(), backend=backend),  # pyright: ignore
        fused_lstm_alone,
        tokens=4,
    ),
    "RecurrentDeltaNet": Net(
        draw_recurrent_delta,
        lambda *given, backend: recurrent_delta(*given, Softmax(), backend=backend),  # pyright: ignore
        lambda *given, warps: fused_recurrent_delta.recurrent_delta(*given, 0.0, warps),  # pyright: ignore
        tokens=1,
    ),
}


def passes(run: Callable[..., tuple[Tensor, ...]], given: list[Tensor]) -> Callable[[], list[Tensor]]:
    """Forward and backward: results and the gradient of one weighted sum of them for everything given."""
    learned = [x.detach().requires_grad_() for x in given]
    chance = torch.Generator("cuda").manual_seed(0)
    weights = [torch.randn(z.shape, generator=chance, device="cuda").to(z) for z in run(*learned)]

    def once() -> list[Tensor]:
        results = run(*learned)
        return [*(z.detach() for z in results), *torch.autograd.grad(results, learned, weights)]

    return once


def off(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True)]


def hold_to_float64(name: str, net: Net) -> dict[str, float]:
    """The largest error of the plain form and of the fused one with each number of warps; too large is the end."""
    given = [x.cuda() for x in net.draw(TRIED)]
    plain = partial(net.door, backend="plain")
    exact = passes(plain, [x.double() for x in given])()
    lost = off(passes(plain, given)(), exact)
    found = {"plain": max(lost)}
    for warps in (1, 2, 4, 8):
        errors = off(passes(partial(net.fused, warps=warps), given)(), exact)
        if any(not one <= 2 * other + 1e-6 for one, other in zip(errors, lost, strict=True)):
            raise SystemExit(f"{name} with {warps} warps is off by {errors}, the plain form by {lost}")
        found[f"fused, {warps} warps"] = max(errors)
    return found


def measure(net: Net, size: Size, warps: list[int]) -> dict[str, float]:
    drawn = [x.cuda() for x in net.draw(size)]
    given = [x.bfloat16() if number < net.tokens else x for number, x in enumerate(drawn)]
    plain, fused = (passes(partial(net.door, backend=backend), given) for backend in ("plain", "fused"))
    found = {"plain": time_eager(plain), "fused": time_eager(fused), "fused, replayed": time_graph(fused)}
    for number in warps:
        other = passes(partial(net.fused, warps=number), given)
        found[f"fused, replayed, {number} warps"] = time_graph(other)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small size: to see that it runs")
    parser.add_argument("--warps", type=int, nargs="*", default=[], help="other numbers of warps to time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    errors = {name: hold_to_float64(name, net) for name, net in NETS.items()}
    times = []
    for size in QUICK if chosen.quick else SIZES:
        print(f"forward and backward, bfloat16, {asdict(size)}")
        for name, net in NETS.items():
            found = measure(net, size, chosen.warps)
            times.append({"net": name, "size": asdict(size), "milliseconds": found})
            print(f"  {name:18}", *(f"{form} {ms:.3f} ms  " for form, ms in found.items()))
    save(chosen.output, {"errors": errors, "times": times})


if __name__ == "__main__":
    main()
