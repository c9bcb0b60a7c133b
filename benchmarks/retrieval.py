"""Speed of a retrieval run's training step on a CPU: the answer of the last page by a triangular system, and by a loop.

    python benchmarks/retrieval.py [--threads 1] [--quick] [--output FILE]

DPFP-1, the delta rule, keys with replacement, in float32: forward, backward and the step of Adam, as in a run. The loop
erases and writes the page token by token, as the original did. Before anything is timed, both must agree in answers and
gradients.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from measuring import Contender, Pass, Ratio, Results, disagreement, report, time_in_turns
from torch import Tensor
from torch.nn.functional import one_hot

from palimpsest.evaluation.retrieval import squared_errors
from palimpsest.experiment.retrieval import Outcome, Run, Shelf
from palimpsest.legacy.retrieval import CommandLine, OriginalDelta

RESULTS = Path(__file__).parent / "results" / "retrieval-cpu.json"


class TokenLoop(OriginalDelta):
    """The delta rule written out."""

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        keys, queries, beta = self.feature_map(keys), self.feature_map(queries), heard.sigmoid()
        keys, shown = keys / keys.sum(-1, keepdim=True), one_hot(values, self.values).to(keys.dtype)
        page = keys.new_zeros(len(keys), self.values, keys.shape[-1])
        for token in range(keys.shape[1]):
            key, fraction = keys[:, token], beta[:, token]
            recalled = torch.einsum("bvk,bk->bv", page, key)
            mixed = fraction * shown[:, token] + (1 - fraction) * recalled
            page = page - torch.einsum("bv,bk->bvk", recalled, key) + torch.einsum("bv,bk->bvk", mixed, key)
        return queries @ page.mT / (queries.sum(-1, keepdim=True) + 1e-6)


@dataclass(frozen=True)
class Step(Contender):
    """A training step, with one form of the memory or the other."""

    keys: int
    loop: bool = False

    def open(self) -> Run:
        line = CommandLine("dpfp", 1, "ours", replace=True, begin=self.keys, end=self.keys)
        (asked,) = line.original()
        device = torch.device("cpu")
        shelf = Shelf(device)
        run = Run(Outcome(asked), shelf, device)
        if self.loop:
            run.network.recall.__class__ = TokenLoop  # pyright: ignore[reportAttributeAccessIssue]
        shelf.fill(asked.open().period(asked.every, sequences=1))
        run.begin()
        return run

    def ready(self) -> Pass:
        run = self.open()

        def step() -> list[Tensor]:
            run.cursor.zero_()
            run.step()
            return [run.losses[:1]]

        return step

    def answers_and_gradients(self) -> list[Tensor]:
        run = self.open()
        keys, values, queries, targets, _ = run.shelf.batch(run.cursor)
        reads = run.network(keys, values, queries)
        loss = squared_errors(reads, targets).mean()
        return [reads.detach(), *torch.autograd.grad(loss, run.parameters)]

    def tiny(self) -> "Step":
        return replace(self, keys=self.keys // 10)


@dataclass(frozen=True)
class Plan:
    keys: int = 100
    turns: int = 9


def measure(plan: Plan) -> Results:
    system, loop = Step(plan.keys), Step(plan.keys, loop=True)
    found = disagreement(system.answers_and_gradients(), loop.answers_and_gradients())
    seconds = time_in_turns({"triangular system": system, "token loop": loop}, plan.turns)
    ratio = seconds["token loop"].median / seconds["triangular system"].median
    return Results(found, seconds, {}, [Ratio("time: token loop / triangular system", ratio, "at least 30")])


def said(plan: Plan) -> str:
    return f"dpfp1 delta with replacement, {plan.keys} keys"


if __name__ == "__main__":
    report(__doc__ or "", RESULTS, Plan(), Plan(keys=20, turns=3), measure, said)
