"""Speed and memory of the memory scan on a CPU: our chunked form and a plain token loop, side by side in one run.

    python benchmarks/scan.py [--threads 2] [--quick] [--output FILE]

Time is that of a forward and a backward pass, with the gradient of every input. Before anything is timed, loop and
chunked form must agree.
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
from torch.nn.functional import normalize

from palimpsest.kernels import Gates, memory_scan

RESULTS = Path(__file__).parent / "results" / "scan-cpu.json"


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
        gates = [gate for gate in self.gates[:3] if gate is not None]
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
    erase, write = (beta, beta.clone()) if rule.erases else (None, None)
    gates = Gates(log_keep if rule.keeps else None, erase, write)
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
class Scanner(Contender):
    scan: Scan
    rule: Rule
    size: Size

    def ready(self) -> Pass:
        problem = draw(self.size, self.rule)
        weights = torch.randn(problem.values.shape, generator=torch.Generator().manual_seed(1))

        def forward_and_backward() -> list[Tensor]:
            reads, memory = self.scan(problem)
            gradients = torch.autograd.grad((reads * weights).sum() + memory.sum(), problem.leaves())
            return [reads.detach(), memory.detach(), *gradients]

        return forward_and_backward

    def tiny(self) -> "Scanner":
        return replace(self, size=replace(self.size, batch=1, heads=1, length=self.size.length // 8))


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


def measure(plan: Plan) -> Results:
    loop = Scanner(token_loop, DELTA, plan.short)
    delta = Scanner(chunked, DELTA, plan.short)
    long = replace(delta, size=plan.long)
    found = disagreement(delta.ready()(), loop.ready()())

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


def said(plan: Plan) -> str:
    sizes = (
        f"{plan.short.features} features, {plan.short.values} values, T {plan.short.length}, long T {plan.long.length}"
    )
    return f"forward and backward, float32, B {plan.short.batch}, heads {plan.short.heads}, {sizes}"


if __name__ == "__main__":
    report(__doc__ or "", RESULTS, FULL, QUICK, measure, said)
