"""Decoding speed: how long a token of a translation takes, as the translation grows.

    python benchmarks/translation.py [--threads 2] [--device cpu] [--quick] [--output FILE]

Decoders of one size that differ in their attentions alone translate the same sources, as a beam search does that never
ends. Softmax attention keeps every token of the translation and looks at all of them again for each new one; a page of
linear attention or of the delta rule is read and written at one cost. Shown are tokens of all hypotheses in a second,
from one length to the next; the decoders take turns, and the median of the turns counts.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measuring import surroundings
from torch import nn

from palimpsest.attention.positions import NoPositions
from palimpsest.batch import Source
from palimpsest.memory.feature_maps import DPFP, EluPlusOne
from palimpsest.memory.key_scales import SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.memory.update_rules import Delta, Sum
from palimpsest.mixers import FastWeight, MemorySource, Mixer, SoftmaxAttention, SoftmaxSource, SourceAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.models.translation_model import TranslationModel
from palimpsest.state import leaves, rows_of

RESULTS = Path(__file__).parent / "results"
HEADS, TOKENS = 4, 8000
DECODERS: dict[str, tuple[SourceAttention, Mixer]] = {
    "softmax": (SoftmaxSource(HEADS), SoftmaxAttention(NoPositions(), heads=HEADS)),
    "linear": (
        MemorySource(EluPlusOne(), heads=HEADS),
        FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised(), heads=HEADS),
    ),
    "delta": (MemorySource(DPFP(), heads=HEADS), FastWeight(DPFP(), SumToOne(), Delta(), Plain(), heads=HEADS)),
}


@dataclass(frozen=True)
class Plan:
    sentences: int = 4
    beam: int = 4
    source: int = 64  # tokens
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    width: int = 256
    layers: int = 3
    turns: int = 2


@dataclass(frozen=True)
class Speed:
    tokens_per_second: dict[int, float]  # by length so far
    state_bytes: dict[int, int]  # of one hypothesis, by length so far


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    plan = Plan(sentences=2, beam=2, lengths=(8, 16), width=32, turns=1) if options.quick else Plan()
    device = torch.device(options.device)
    models = {name: build(plan, *attentions).to(device).eval() for name, attentions in DECODERS.items()}
    turns = [{name: decode(model, plan, device) for name, model in models.items()} for _ in range(plan.turns + 1)][1:]
    speeds = {name: middle([turn[name] for turn in turns]) for name in models}
    show(plan, speeds)
    output = options.output or RESULTS / f"translation-{'cpu' if device.type == 'cpu' else 'gpu'}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    where = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"}
    found = {name: asdict(speed) for name, speed in speeds.items()}
    output.write_text(json.dumps(surroundings() | where | {"plan": asdict(plan), "decoders": found}, indent=2) + "\n")
    print(f"\nwritten to {output}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="short translations: to see that it runs")
    parser.add_argument("--output", type=Path, help="where the numbers go, as JSON (default: beside the others)")
    return parser.parse_args()


def build(plan: Plan, source: SourceAttention, mixer: Mixer) -> nn.Module:
    model = TranslationModel(
        width=plan.width,
        encoder_layers=plan.layers,
        layers=plan.layers,
        encoder=source,
        cross=source,
        block=PreNorm(mixer, Relu(inner=2 * plan.width)),
    )
    return model.build(TOKENS, torch.Generator().manual_seed(0))


@torch.inference_mode()
def decode(model: nn.Module, plan: Plan, device: torch.device) -> Speed:
    """What a beam search does at each step: predict, choose, and gather the states of those that are followed up."""
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(TOKENS, (plan.sentences, plan.source), generator=chance).to(device)
    state = model.begin(Source(ids, torch.ones_like(ids, dtype=torch.bool)))  # pyright: ignore[reportCallIssue]
    state = rows_of(state, torch.arange(plan.sentences, device=device).repeat_interleave(plan.beam))
    rows = plan.sentences * plan.beam
    last = torch.zeros(rows, 1, dtype=torch.long, device=device)
    speeds, sizes, start, before = {}, {}, time.perf_counter(), 0
    for length in range(1, max(plan.lengths) + 1):
        log_probabilities, state = model.predict(last, state)  # pyright: ignore[reportCallIssue]
        last = log_probabilities.argmax(-1, keepdim=True)
        parents = torch.arange(rows, device=device).view(-1, plan.beam).roll(1, dims=1).flatten()
        last, state = last[parents], rows_of(state, parents)
        if length in plan.lengths:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            now = time.perf_counter()
            speeds[length] = rows * (length - before) / (now - start)
            sizes[length] = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state.blocks)) // rows
            start, before = now, length
    return Speed(speeds, sizes)


def middle(turns: list[Speed]) -> Speed:
    lengths = turns[0].tokens_per_second
    return Speed(
        {length: statistics.median(turn.tokens_per_second[length] for turn in turns) for length in lengths},
        turns[0].state_bytes,
    )


def show(plan: Plan, speeds: dict[str, Speed]) -> None:
    print(f"{plan.sentences} sentences × a beam of {plan.beam}, {plan.layers} layers of width {plan.width}")
    print(f"\n{'tokens/s up to a length of':30}" + "".join(f"{length:>10,}" for length in plan.lengths))
    for name, speed in speeds.items():
        print(f"{name:30}" + "".join(f"{found:>10,.0f}" for found in speed.tokens_per_second.values()))
    print("\nKiB kept of a translation")
    for name, speed in speeds.items():
        print(f"{name:30}" + "".join(f"{found / 1024:>10,.0f}" for found in speed.state_bytes.values()))


if __name__ == "__main__":
    main()
