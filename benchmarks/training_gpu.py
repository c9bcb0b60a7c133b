"""Training speed on a GPU: whole steps of the models that the originals were measured with, tokens in a second.

    python benchmarks/training_gpu.py                       every row
    python benchmarks/training_gpu.py --rows delta-elu      one of them
    python benchmarks/training_gpu.py --warm                a few steps, so that a second call finds all compiled

A row is trained by the toolkit's own trainer, from batches to optimiser, on made-up tokens (words by Zipf's law), in
several ways: float32 as it is, bfloat16, and bfloat16 with compiled blocks and recorded steps. What counts are the
seconds between two lines of the log. Beside them stand the tokens in a second of the original on an H200 with TF32.
"""

import argparse
import json
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring_gpu import save
from rich.console import Console

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.data.streams import Contiguous, Order, Shuffled
from palimpsest.memory.feature_maps import DPFP, EluPlusOne
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.block import PostNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.language_model import LanguageModel
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention
from palimpsest.training.compilation import Blocks, Compilation, Whole
from palimpsest.training.log import Log
from palimpsest.training.optimisers import Adagrad, Adam, Optimiser
from palimpsest.training.precision import BFloat16, Precision, Single
from palimpsest.training.schedules import Constant
from palimpsest.training.trainer import Run, Trainer
from palimpsest.world import World

RESULTS = Path(__file__).parent / "results"
LOGGED = 20  # steps between two lines


@dataclass(frozen=True)
class Row:
    model: LanguageModel
    tokens: int
    batch: int
    segment: int
    original: int  # tokens in a second, on an H200 with TF32
    wanted: float  # times the original
    order: Order = Shuffled()
    optimiser: Optimiser = Adam(rate=1e-6)
    clip: float | None = 0.25


transformer_xl = SoftmaxAttention(SinusoidalRelative(), SegmentCache(512), heads=8, head_width=64)
segmented = with_attention(512, 12, transformer_xl, inner=2048, dropout=0.1)
spans = SoftmaxAttention(SharedRelative(8192), Adaptive(8192, initial=0.06), heads=8, dropout=0.3)
spanned = LanguageModel(512, 12, PostNorm(spans, Relu(2048, dropout=0.3)), head=SoftmaxHead(bias=True))
in_order = Row(segmented, 204, 22, 512, 38_294, 20, Contiguous())
adaptive = Row(spanned, 205, 16, 512, 106_132, 8, Contiguous(), Adagrad(1e-9, clip=0.03), None)
elu = Row(delta("elu", small, EluPlusOne()).model, 267_735, 96, 256, 190_163, 8)
dpfp = Row(delta("dpfp", small, DPFP(nu=3)).model, 267_735, 96, 256, 104_255, 12)
ROWS = {
    "transformer-xl": in_order,
    "delta-elu": elu,
    "delta-dpfp": dpfp,
    "adaptive-span": adaptive,
    # four times as many rows as the originals' batches have
    "transformer-xl-88": replace(in_order, batch=88),
    "delta-elu-384": replace(elu, batch=384),
    "delta-dpfp-384": replace(dpfp, batch=384),
    "adaptive-span-64": replace(adaptive, batch=64),
}


@dataclass(frozen=True)
class Way:
    precision: Precision = Single()
    compile: Compilation | None = None
    replay: bool = False


WAYS = {
    "float32": Way(),
    "bfloat16": Way(BFloat16()),
    "compiled": Way(BFloat16(), Blocks()),
    "replayed": Way(BFloat16(), None, replay=True),
    "compiled and replayed": Way(BFloat16(), Blocks(), replay=True),
    "whole and replayed": Way(BFloat16(), Whole(), replay=True),
}


@dataclass
class Speed:
    tokens_per_second: float
    milliseconds: float  # a step
    memory: float  # GiB
    mfu: float | None
    nats: float  # of the last steps: all ways should find the same
    first: float  # seconds of training until the first line of the log
    lines: list[float]  # tokens in a second of each line of the log


def main() -> None:
    options = parse()
    found: dict[str, dict[str, Any]] = {}
    for name in options.rows:
        row, found[name] = ROWS[name], {}
        print(f"\n{name}: {row.batch} × {row.segment}; the original {row.original:,} tokens/s, wanted {row.wanted} ×")
        for way in options.ways:
            try:
                speed = measure(row, WAYS[way], 2 if options.warm else options.lines)
            except Exception as error:  # the other ways are worth knowing
                print(f"  {way:24} {type(error).__name__}: {str(error)[:600]}", flush=True)
                continue
            found[name][way] = asdict(speed) | {"times_the_original": speed.tokens_per_second / row.original}
            print(
                f"  {way:24} {speed.tokens_per_second:>11,.0f} tokens/s {speed.tokens_per_second / row.original:6.2f} ×"
                f" {speed.milliseconds:8.2f} ms {speed.memory:6.2f} GiB  mfu {speed.mfu or 0:.3f}"
                f"  {speed.nats:.4f} nats  first line after {speed.first:.0f} s",
                flush=True,
            )
            torch.cuda.empty_cache()
    if not options.warm:
        save(options.output or RESULTS / "training-gpu.json", {"rows": found})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--lines", type=int, default=6, help="lines of the log, of which all but the first count")
    parser.add_argument("--warm", action="store_true", help="only get ready: compile, and save nothing")
    parser.add_argument("--output", type=Path, help="where the numbers go, as JSON (default: beside the others)")
    return parser.parse_args()


def measure(row: Row, way: Way, lines: int) -> Speed:
    torch.cuda.reset_peak_memory_stats()
    world = World.enter("cuda")
    model = row.model.build(row.tokens, torch.Generator().manual_seed(1)).to(world.device)
    stream = row.order.build(made_up(row, lines * LOGGED), row.batch, row.segment, 1)
    carry = isinstance(row.order, Contiguous)
    run = Run(
        steps=lines * LOGGED,
        carry=carry,
        clip=row.clip,
        log_every=LOGGED,
        validate_every=10**9,
        save_every=10**9,
        precision=way.precision,
        compile=way.compile,
        replay=way.replay,
    )
    with tempfile.TemporaryDirectory() as folder, Log(Path(folder) / "metrics.jsonl", run.steps, quiet()) as log:
        trainer = Measured(
            model, stream, lambda: {"nats": math.inf}, row.optimiser, Constant(), run, Path(folder), log, world
        )
        trainer.fit()
        told = [json.loads(line) for line in log.path.read_text().splitlines()]
    told = [line for line in told if line["event"] == "train"]
    speeds = [line["tokens_per_second"] for line in told[1:]]
    fastest = sorted(speeds)[len(speeds) // 2]
    milliseconds = 1e3 * row.batch * row.segment / fastest
    last, first = told[-1], told[0]["seconds"]
    return Speed(fastest, milliseconds, last["memory"], last.get("mfu"), last["nats"], first, speeds)


class Measured(Trainer):
    """Nothing is kept."""

    def save(self) -> None:
        self.read_outcomes()


def made_up(row: Row, steps: int) -> np.ndarray:
    """Tokens by Zipf's law, as words have it."""
    chance = np.random.default_rng(1)
    shares = 1 / (np.arange(row.tokens) + 2.7)
    count = row.batch * (row.segment * min(steps, 64) + 1) + 1
    return chance.choice(row.tokens, size=count, p=shares / shares.sum()).astype(np.int32)


def quiet() -> Console:
    return Console(quiet=True)


if __name__ == "__main__":
    main()
