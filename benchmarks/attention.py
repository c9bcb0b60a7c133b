"""Speed and memory of attention on a CPU: short spans beside long ones, and beside other ways to compute the same.

    python benchmarks/attention.py [--threads 2] [--quick] [--output FILE]

What is measured is the attention sub-layer, projections included, reading one segment after a memory full of tokens:
a forward and a backward pass, with the gradient of the segment and of every parameter. Spans are given as shares of
the limit. Beside ours stand the originals' way with the same spans, where the widest head of a layer sets the cost of
all, and for Transformer-XL's attention the scores of all queries and keys at once. Before anything is timed, the
blocked form must agree with the definition, and with those scores.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
from torch import Tensor, nn
from torch.nn.functional import pad

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, HeadGroup, SegmentCache
from palimpsest.kernels.attention import ATTENTION_BACKENDS
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.mixers.mixer import Mixer
from palimpsest.mixers.softmax_attention import Asked, HiddenCache, SoftmaxAttention

RESULTS = Path(__file__).parent / "results" / "attention-cpu.json"
LONG = (1.0, 1.0, 1.0, 1.0)
SHORT = (0.06, 0.06, 0.06, 0.06)
MIXED = (1.0, 0.06, 0.06, 0.06)


@dataclass(frozen=True)
class Size:
    batch: int
    length: int  # tokens of a segment
    memory: int  # tokens before it that may be seen
    heads: int
    width: int


@dataclass(frozen=True)
class SubLayer(Contender):
    mixer: Mixer
    size: Size
    spans: tuple[float, ...] = ()  # of each head, where they are adaptive

    def ready(self) -> Pass:
        chance = torch.Generator().manual_seed(0)
        module = self.mixer.build(self.size.width)
        draw(module, self.spans, chance)
        state = self.full(module.initial_state(self.size.batch), chance)
        x, weights = self.segment(chance).requires_grad_(), self.segment(chance)

        def forward_and_backward() -> list[Tensor]:
            y, _ = module(x, state)
            return [y.detach(), *torch.autograd.grad((y * weights).sum(), [x, *module.parameters()])]

        return forward_and_backward

    def full(self, state: Any, chance: torch.Generator) -> Any:
        """The state after as many tokens as may be seen."""
        leaves = {
            "hidden": torch.randn(state.hidden.shape, generator=chance),
            "seen": torch.full((self.size.batch,), self.size.memory),
        }
        return state._replace(**{name: leaves[name] for name in state._fields})

    def segment(self, chance: torch.Generator) -> Tensor:
        return torch.randn(self.size.batch, self.size.length, self.size.width, generator=chance)

    def tiny(self) -> "SubLayer":
        size = replace(self.size, batch=1, length=self.size.length // 8, memory=self.size.memory // 8)
        return replace(self, size=size, spans=(0.0,) * len(self.spans))


@torch.no_grad()
def draw(module: nn.Module, spans: tuple[float, ...], chance: torch.Generator) -> None:
    for name, parameter in module.named_parameters():
        if name.endswith("ratio"):
            parameter.copy_(torch.tensor(spans))
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=chance)


def adaptive(size: Size, spans: tuple[float, ...]) -> SubLayer:
    mixer = SoftmaxAttention(SharedRelative(size.memory), Adaptive(limit=size.memory, ramp=32), heads=size.heads)
    return SubLayer(mixer, size, spans)


def original_adaptive(size: Size, spans: tuple[float, ...]) -> SubLayer:
    return SubLayer(AdaptivePastAttention(limit=size.memory, ramp=32, heads=size.heads), size, spans)


def transformer_xl(size: Size) -> SubLayer:
    return SubLayer(SoftmaxAttention(SinusoidalRelative(), SegmentCache(size.memory), heads=size.heads), size)


def dense_transformer_xl(size: Size) -> SubLayer:
    return SubLayer(DenseAttention(SinusoidalRelative(), SegmentCache(size.memory), heads=size.heads), size)


@dataclass(frozen=True)
class DenseAttention(SoftmaxAttention):
    """Transformer-XL's attention with all T × (T + M) scores of all heads at once."""

    def build(self, width: int, norm: nn.Module | None = None) -> "Dense":
        return Dense(self, width, norm)


class Dense(HiddenCache):
    def attend(self, group: HeadGroup, asked: Asked, keys: Tensor, values: Tensor, empty: Tensor | None) -> Tensor:
        content, relative = asked
        length, seen = content.shape[1], keys.shape[1]
        assert relative is not None
        by_content = torch.einsum("bthk,bshk->bhts", content, keys)
        by_place = torch.einsum("bthk,rhk->bhtr", relative.queries, relative.table.flip(0))
        # with one more column in front and all written out end to end, every row lies one place further left than
        # the one below it
        shifted = pad(by_place, (1, 0)).flatten(-2)[..., length:].unflatten(-1, (length, seen))
        future = torch.ones(length, seen, dtype=torch.bool).triu(seen - length + 1)
        weights = (by_content + shifted).masked_fill(future, -torch.inf).softmax(-1)
        return torch.einsum("bhts,bshv->bthv", weights, values)


@dataclass(frozen=True)
class Plan:
    adaptive: Size
    transformer_xl: Size
    turns: int


FULL = Plan(
    adaptive=Size(batch=2, length=256, memory=8192, heads=4, width=256),
    transformer_xl=Size(batch=4, length=512, memory=512, heads=8, width=512),
    turns=9,
)
QUICK = Plan(
    adaptive=Size(batch=2, length=128, memory=1024, heads=4, width=256),
    transformer_xl=Size(batch=2, length=128, memory=128, heads=8, width=512),
    turns=3,
)
SMALL = Size(batch=2, length=160, memory=480, heads=4, width=64)  # more than a block of queries, and not a whole number


def by_definition(contender: Contender) -> list[Tensor]:
    """What a pass returns when the reference form stands in the place of the blocked one."""
    with patch.dict(ATTENTION_BACKENDS, blocked=ATTENTION_BACKENDS["reference"]):
        return contender.ready()()


def agreement() -> float:
    ours = [adaptive(SMALL, MIXED), transformer_xl(SMALL)]
    found = [disagreement(one.ready()(), by_definition(one)) for one in ours]
    return max(*found, disagreement(transformer_xl(SMALL).ready()(), dense_transformer_xl(SMALL).ready()()))


def measure(plan: Plan) -> Results:
    found = agreement()
    ours = {
        "all spans at 1.0": adaptive(plan.adaptive, LONG),
        "all spans at 0.06": adaptive(plan.adaptive, SHORT),
        "one span at 1.0, three at 0.06": adaptive(plan.adaptive, MIXED),
    }
    originals = {
        "originals' way, all at 1.0": original_adaptive(plan.adaptive, LONG),
        "originals' way, all at 0.06": original_adaptive(plan.adaptive, SHORT),
        "originals' way, one at 1.0, three at 0.06": original_adaptive(plan.adaptive, MIXED),
    }
    segments = {
        "Transformer-XL, blocked": transformer_xl(plan.transformer_xl),
        "Transformer-XL, all scores at once": dense_transformer_xl(plan.transformer_xl),
    }
    seconds = time_in_turns(ours | originals, plan.turns) | time_in_turns(segments, plan.turns)
    memory = {name: peak_memory(contender) for name, contender in (ours | originals | segments).items()}
    return Results(found, seconds, memory, ratios(seconds, memory))


def ratios(seconds: dict[str, Timing], memory: dict[str, float]) -> list[Ratio]:
    times = {name: timing.median for name, timing in seconds.items()}
    pairs = [
        ("0.06 / 1.0", "all spans at 0.06", "all spans at 1.0"),
        ("mixed / 1.0", "one span at 1.0, three at 0.06", "all spans at 1.0"),
        ("originals / ours, 1.0", "originals' way, all at 1.0", "all spans at 1.0"),
        ("originals / ours, 0.06", "originals' way, all at 0.06", "all spans at 0.06"),
        ("originals / ours, mixed", "originals' way, one at 1.0, three at 0.06", "one span at 1.0, three at 0.06"),
        ("Transformer-XL, at once / blocked", "Transformer-XL, all scores at once", "Transformer-XL, blocked"),
    ]
    aims = {
        "time: 0.06 / 1.0": "at most 0.15",
        "memory: 0.06 / 1.0": "at most 0.15",
        "time: mixed / 1.0": "at most 0.4",
    }
    return [
        Ratio(said := f"{kind}: {name}", numbers[one] / numbers[other], aims.get(said, ""))
        for kind, numbers in {"time": times, "memory": memory}.items()
        for name, one, other in pairs
    ]


def said(plan: Plan) -> str:
    def sizes(size: Size) -> str:
        return f"B {size.batch}, T {size.length}, width {size.width}, heads {size.heads}"

    adaptive = f"adaptive spans: {sizes(plan.adaptive)}, limit {plan.adaptive.memory}"
    segments = f"Transformer-XL: {sizes(plan.transformer_xl)}, memory {plan.transformer_xl.memory}"
    return f"forward and backward, float32; {adaptive}; {segments}"


if __name__ == "__main__":
    report(__doc__ or "", RESULTS, FULL, QUICK, measure, said)
