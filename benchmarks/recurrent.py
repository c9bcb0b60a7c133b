"""Speed and memory of the recurrent fast weight programmers on a CPU, beside plain token loops.

    python benchmarks/recurrent.py [--threads 2] [--quick] [--output FILE]

What is measured is the mixer, projections included, reading one segment: a forward and a backward pass, with the
gradient of the segment and of every parameter. Beside each stands the loop that one first writes down from its
equations, every token in turn, with the same weights and gradients by autograd. Before anything is timed, the two
must agree.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from measuring import (
    Contender,
    Pass,
    Ratio,
    Results,
    Timing,
    disagreement,
    peak_memory,
    report,
    time_in_turns,
)
from torch import Tensor

from palimpsest.mixers.delta_lstm import DeltaLSTM, DeltaLSTMMixer
from palimpsest.mixers.delta_rnn import DeltaRNN, DeltaRNNMixer
from palimpsest.mixers.mixer import Mixer, MixerModule
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNet, RecurrentDeltaNetMixer

RESULTS = Path(__file__).parent / "results" / "recurrent-cpu.json"


@dataclass(frozen=True)
class Size:
    batch: int = 8
    length: int = 256
    heads: int = 8
    width: int = 128


def in_parallel(mixer: MixerModule, x: Tensor) -> Tensor:
    return mixer(x)[0]


def rewrite(page: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    """The delta rule, `… k v`."""
    note = beta[..., None] * (value - read(key, page))
    return page + torch.einsum("...k,...v->...kv", key, note)


def read(query: Tensor, page: Tensor) -> Tensor:
    return torch.einsum("...k,...kv->...v", query, page)


def phi(x: Tensor) -> Tensor:
    x = torch.nn.functional.elu(x) + 1
    return x / x.sum(-1, keepdim=True)


def delta_rnn_loop(mixer: DeltaRNNMixer, x: Tensor) -> Tensor:
    memory, recurrent, said, _ = mixer.initial_state(len(x))
    width, outputs = mixer.head_width, []
    for token in mixer.project(x).unflatten(-1, (mixer.spec.heads, -1)).unbind(1):
        q, k, v, rk, rv, betas = token.split([width] * 5 + [2], dim=-1)
        beta, recurrent_beta = betas.sigmoid().unbind(-1)
        memory = rewrite(memory, phi(k), v, beta)
        recurrent = rewrite(recurrent, rk.softmax(-1), rv, recurrent_beta)
        said = read(phi(q), memory) + read(said.softmax(-1), recurrent)
        outputs.append(said)
    return mixer.out(torch.stack(outputs, dim=1).flatten(-2))


def delta_lstm_loop(mixer: DeltaLSTMMixer, x: Tensor) -> Tensor:
    memory, recurrent, said, cell = mixer.initial_state(len(x))
    width, outputs = mixer.head_width, []
    for token in mixer.project(x).unflatten(-1, (mixer.spec.heads, -1)).unbind(1):
        vectors, betas = token.split([15 * width, 6], dim=-1)
        q, k, v, rk, rv = vectors.unflatten(-1, (3, 5, width)).unbind(-2)
        beta, recurrent_beta = betas.unflatten(-1, (3, 2)).sigmoid().unbind(-1)
        memory = rewrite(memory, phi(k), v, beta)
        recurrent = rewrite(recurrent, rk.softmax(-1), rv, recurrent_beta)
        heard = said.softmax(-1)[:, :, None].expand_as(v)
        gate, candidate, output = (read(phi(q), memory) + read(heard, recurrent)).unbind(2)
        cell = gate.sigmoid() * candidate + (1 - gate.sigmoid()) * cell
        said = output.sigmoid() * cell
        outputs.append(said)
    return mixer.out(torch.stack(outputs, dim=1).flatten(-2))


def recurrent_delta_loop(mixer: RecurrentDeltaNetMixer, x: Tensor) -> Tensor:
    memory, said = mixer.initial_state(len(x))
    width, outputs = mixer.head_width, []
    for token in mixer.project(x).unflatten(-1, (mixer.spec.heads, -1)).unbind(1):
        made = token + torch.einsum("bhv,hvx->bhx", said.tanh(), mixer.hear)
        q, k, v, logit = made.split([width, width, width, 1], dim=-1)
        memory = rewrite(memory, k.softmax(-1), v, logit.sigmoid().squeeze(-1))
        said = read(q.softmax(-1), memory)
        outputs.append(said)
    return mixer.out(torch.stack(outputs, dim=1).flatten(-2))


LOOPS: dict[type[Mixer], Callable[..., Tensor]] = {
    DeltaRNN: delta_rnn_loop,
    DeltaLSTM: delta_lstm_loop,
    RecurrentDeltaNet: recurrent_delta_loop,
}


@dataclass(frozen=True)
class SubLayer(Contender):
    mixer: type[Mixer]
    size: Size
    form: Callable[..., Tensor] = in_parallel

    def ready(self) -> Pass:
        chance = torch.Generator().manual_seed(0)
        module = self.mixer(heads=self.size.heads).build(self.size.width)  # pyright: ignore[reportCallIssue]
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=chance)
        x, weights = torch.randn(2, self.size.batch, self.size.length, self.size.width, generator=chance)
        x.requires_grad_()

        def forward_and_backward() -> list[Tensor]:
            y = self.form(module, x)
            return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])]

        return forward_and_backward

    def tiny(self) -> "SubLayer":
        return replace(self, size=replace(self.size, batch=1, length=self.size.length // 8))


@dataclass(frozen=True)
class Plan:
    size: Size
    turns: int


FULL = Plan(Size(), turns=9)
QUICK = Plan(Size(length=64), turns=3)


def measure(plan: Plan) -> Results:
    ours = {mixer: SubLayer(mixer, plan.size) for mixer in LOOPS}
    loops = {mixer: SubLayer(mixer, plan.size, loop) for mixer, loop in LOOPS.items()}
    found = max(disagreement(ours[mixer].ready()(), loops[mixer].ready()()) for mixer in LOOPS)
    contenders = {mixer.__name__: each for mixer, each in ours.items()}
    contenders |= {f"{mixer.__name__}, token loop": each for mixer, each in loops.items()}
    seconds = time_in_turns(contenders, plan.turns)
    memory = {name: peak_memory(contender) for name, contender in contenders.items()}
    return Results(found, seconds, memory, ratios(seconds, memory))


def ratios(seconds: dict[str, Timing], memory: dict[str, float]) -> list[Ratio]:
    names = [mixer.__name__ for mixer in LOOPS]
    times = {name: seconds[f"{name}, token loop"].median / seconds[name].median for name in names}
    bytes_ = {name: memory[f"{name}, token loop"] / memory[name] for name in names}
    found = [Ratio(f"time: {name}, token loop / ours", value, "at least 3") for name, value in times.items()]
    return found + [Ratio(f"memory: {name}, token loop / ours", value) for name, value in bytes_.items()]


def said(plan: Plan) -> str:
    size = plan.size
    heads = f"{size.heads} heads of {size.width // size.heads}"
    return f"forward and backward, float32, B {size.batch}, T {size.length}, {heads}"


if __name__ == "__main__":
    report(__doc__ or "", RESULTS, FULL, QUICK, measure, said)
