"""Speed of sliding-window evaluation: many windows at once beside one at a time, in one run, and that both agree.

    python benchmarks/evaluation.py [--device auto] [--threads 2] [--quick] [--tokens-at-once N] [--output FILE]

Models of bytes with random weights read the test split of enwik8, where it is prepared, and else as many random bytes.
Every window is read from a fresh state, and its last `stride` targets count. The contenders are

    the textbook     a loop that cuts a window out, calls the model and fetches the nats of the last targets
    one at a time    the reader of `evaluate` with batches of one window
    batched          the same as it is

All read the beginning of the text, the slow ones less of it; they take turns, and the fastest turn of each is shown,
since others may be at work on the machine. In float32 they must agree about every target that all of them have read.
On a GPU products are also made in TensorFloat32 and bfloat16, and at last the whole text is evaluated, in the numbers
and at the stride that the plan says.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import AGREEMENT, surroundings
from torch import nn

from palimpsest.batch import Batch
from palimpsest.data.standard import Enwik8
from palimpsest.errors import UserError
from palimpsest.evaluation.perplexity import SlidingWindow, evaluate, read_text, suited_to
from palimpsest.mixers import FastWeight, SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.models.language_model import LanguageModel
from palimpsest.serialise import to_json
from palimpsest.training.precision import BFloat16, Precision, Single, TensorFloat32
from palimpsest.world import World

RESULTS = Path(__file__).parent / "results"
BYTES, TEST = 256, 5_000_000
LARGE = {
    "softmax, 12 layers of width 512": LanguageModel(
        width=512, layers=12, block=PreNorm(SoftmaxAttention(heads=8), Relu(inner=2048))
    ),
    "delta, 12 layers of width 512": LanguageModel(
        width=512, layers=12, block=PreNorm(FastWeight(heads=8), Relu(inner=2048))
    ),
}
SMALL = {
    "softmax, 4 layers of width 128": LanguageModel(block=PreNorm(SoftmaxAttention(), Relu(inner=512))),
    "delta, 4 layers of width 128": LanguageModel(block=PreNorm(FastWeight(), Relu(inner=512))),
}


COLUMNS = {"textbook": 20, "one at a time": 15, "batched": 12}  # of the table, and how wide they are


@dataclass(frozen=True)
class Plan:
    models: dict[str, LanguageModel]
    precisions: tuple[Precision, ...] = (Single(),)
    context: int = 512
    strides: tuple[int, ...] = (1, 64)
    windows: int = 1024  # of which the batched reader is timed
    alone: int = 16  # … and those who read one at a time
    turns: int = 3
    text: int = TEST  # bytes
    whole: tuple[Precision, int] | None = None  # the numbers and the stride in which all the text is evaluated

    def to_json(self) -> dict[str, Any]:
        models = {name: to_json(spec) for name, spec in self.models.items()}
        return {"models": models, "windows": self.windows, "alone": self.alone, "turns": self.turns, "text": self.text}


ON_GPU = Plan(LARGE | SMALL, (Single(), TensorFloat32(), BFloat16()), whole=(TensorFloat32(), 256))
ON_CPU = Plan(SMALL, strides=(1, 64, 512), windows=128)
QUICK = Plan(SMALL, context=64, strides=(1, 64), windows=24, alone=8, turns=1, text=20_000, whole=(Single(), 64))


@dataclass(frozen=True)
class Speed:
    """Windows and tokens read in a second, by contender, and how far apart their nats of a target are."""

    windows: dict[str, float]
    tokens: dict[str, float]
    disagreement: float

    def gain(self, over: str) -> float:
        return self.windows["batched"] / self.windows[over]


@dataclass(frozen=True)
class Course:
    """What the contenders run with: a model, at a length and a stride, on a device."""

    model: nn.Module
    context: int
    stride: int
    world: World
    at_once: int  # tokens, of those who read many windows at once

    def text(self, text: np.ndarray, windows: int) -> np.ndarray:
        return text[: self.context + (windows - 1) * self.stride + 1]

    def textbook(self, text: np.ndarray) -> np.ndarray:
        """Nats by the place of the target, as those who follow return them."""
        ids, nats = torch.from_numpy(text.astype(np.int64)), np.zeros(len(text))
        with torch.inference_mode():
            for start in range(0, len(text) - self.context, self.stride):
                window = ids[start : start + self.context + 1].to(self.world.device)[None]
                found, _ = self.model(Batch(window[:, :-1], window[:, 1:]))
                new = self.stride if start else self.context
                nats[start + self.context + 1 - new : start + self.context + 1] = found[0, -new:].double().cpu()
        return nats

    def one_at_a_time(self, text: np.ndarray) -> np.ndarray:
        return self.read(text, self.context)

    def batched(self, text: np.ndarray) -> np.ndarray:
        return self.read(text, self.at_once)

    def read(self, text: np.ndarray, at_once: int) -> np.ndarray:
        return read_text(self.model, text, SlidingWindow(self.context, self.stride), self.world, at_once).nats.numpy()


def main() -> None:
    options = parse()
    world = World.enter(options.device, options.threads)
    on_gpu = world.device.type == "cuda"
    plan = QUICK if options.quick else ON_GPU if on_gpu else ON_CPU
    text, name = read_test(plan)
    at_once = options.tokens_at_once or suited_to(world.device)
    device = str(world.describe()["device"])
    print(f"{name}, windows of {plan.context}, at most {at_once:,} tokens at once, on {device}")
    found = {what: measure(plan, what, spec, text, world, at_once) for what, spec in plan.models.items()}
    output = options.output or RESULTS / f"evaluation-{'gpu' if on_gpu else 'cpu'}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    told = {"device": device, "text": name, "tokens_at_once": at_once, "plan": plan.to_json(), "models": found}
    output.write_text(json.dumps(surroundings() | told, indent=2) + "\n")
    print(f"\nwritten to {output}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="short windows, few of them: to see that it runs")
    parser.add_argument("--tokens-at-once", type=int, help="of the batched reader (default: as suits the device)")
    parser.add_argument("--output", type=Path, help="where the numbers go, as JSON (default: beside the others)")
    return parser.parse_args()


def read_test(plan: Plan) -> tuple[np.ndarray, str]:
    try:
        text, name = Enwik8().read()["test"], "enwik8's test split"
    except UserError:
        text, name = np.random.default_rng(0).bytes(TEST), "random bytes (enwik8 is not prepared)"
    return np.frombuffer(text, np.uint8)[: plan.text], name


def measure(plan: Plan, name: str, spec: LanguageModel, text: np.ndarray, world: World, at_once: int) -> dict[str, Any]:
    model = spec.build(BYTES, torch.Generator().manual_seed(0)).to(world.device).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"\n{name}, {parameters / 1e6:.1f}M parameters")
    print(f"{'':28}{'windows/s: textbook':>20}{'one at a time':>15}{'batched':>12}{'gain':>8}{'apart by':>10}")
    speeds = []
    for precision in plan.precisions:
        for stride in plan.strides:
            with precision.at_work(world.device):
                speed = race(plan, Course(model, plan.context, stride, world, at_once), text)
            if precision == Single() and speed.disagreement > AGREEMENT:
                raise SystemExit(f"they disagree by {speed.disagreement:.1e} nats: there is nothing to compare")
            show(f"{type(precision).__name__}, stride {stride}", speed)
            speeds.append({"precision": type(precision).__name__, "stride": stride} | asdict(speed))
    return {"parameters": parameters, "speeds": speeds, "whole": read_whole(plan, model, text, world, at_once)}


def race(plan: Plan, course: Course, text: np.ndarray) -> Speed:
    few, many = (course.text(text, windows) for windows in (plan.alone, plan.windows))
    contenders = {
        "textbook": partial(course.textbook, few),
        "one at a time": partial(course.one_at_a_time, few),
        "batched": partial(course.batched, many),
    }
    nats = [run()[: len(few)] for run in contenders.values()]  # which warms them up
    turns = [{name: seconds(run) for name, run in contenders.items()} for _ in range(plan.turns)]
    counts = {"textbook": plan.alone, "one at a time": plan.alone, "batched": plan.windows}
    windows = {name: count / min(turn[name] for turn in turns) for name, count in counts.items()}
    apart = max(float(np.abs(one - nats[0]).max()) for one in nats)
    return Speed(windows, {name: course.context * found for name, found in windows.items()}, apart)


def seconds(run: Callable[[], object]) -> float:
    """All of them end with numbers on the host, so that the device has done its work."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def read_whole(plan: Plan, model: nn.Module, text: np.ndarray, world: World, at_once: int) -> dict[str, Any] | None:
    if plan.whole is None:
        return None
    precision, stride = plan.whole
    start = time.perf_counter()
    with precision.at_work(world.device):
        protocol = SlidingWindow(plan.context, stride)
        score = evaluate(model, text, protocol, None, len(text) - 1, world, at_once)
    took = time.perf_counter() - start
    print(f"all {score.tokens:,} targets, {type(precision).__name__}, stride {stride}: {took:.1f} s")
    return {"precision": type(precision).__name__, "score": score.to_json(), "seconds": took}


def show(what: str, speed: Speed) -> None:
    numbers = "".join(f"{speed.windows[name]:>{width},.1f}" for name, width in COLUMNS.items())
    print(f"{what:28}{numbers}{speed.gain('one at a time'):>7.1f}×{speed.disagreement:>10.1e}")


if __name__ == "__main__":
    main()
