"""Speed and memory of the memory scan on a GPU: our fused form, our chunked form in plain operations, and FLA's.

    python benchmarks/scan_gpu.py [--rows NAME …] [--fla NAME …] [--patience 400] [--output FILE]

A pass is a forward and a backward pass in bfloat16, with the gradient of everything that goes in: called as in
training, and replayed as a CUDA graph. Before the fused form is timed it must agree with the plain one. In rows with a
feature map ours are given raw queries and keys, and the fused form makes their features on chip; FLA is given features
that are ready.

The floor is the least time in which this device could do it, by what it copies and multiplies in the same run: every
input read and the reads written, then for backward every input and the gradient of the reads read, every gradient
written and queries, keys and values read once more; and the operations of the chunked form, with chunks of as many
tokens as there are values but no more than 64, three times as many for backward as for forward. TFLOP/s and GB/s count
these bytes and operations and no others.

--fla names rows that FLA (pip install fla-core) does too. It tunes itself for minutes before its first pass, and some
of its kernels take the process down with them: each of its rows has a process of its own, and at most --patience
seconds.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from measuring_gpu import Ceilings, ceilings, copies_for, peak_bytes, save, save_so_far, time_eager, time_graph
from torch import Tensor
from torch.nn.functional import normalize

from palimpsest.kernels import Gates, memory_scan
from palimpsest.look import Look
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, FeatureMap
from palimpsest.memory.key_scales import SumToOne

RESULTS = Path(__file__).parent / "results" / "scan-gpu.json"
AGREEMENT = 0.03  # by norms: both round what they give to eight bits, and the plain form its features too
DEVICE, DTYPE, BYTES = "cuda", torch.bfloat16, 2
CHUNK = 64  # tokens at most, for counting operations
SHORT = 1000  # tokens of the trial, in one row of the batch
WORDS = 120  # letters of them, about what failed

Pass = Callable[[], list[Tensor]]
Scan = Callable[..., Tensor]


@dataclass(frozen=True)
class Row:
    batch: int
    length: int
    heads: int
    width: int  # of raw queries and keys
    values: int
    map: FeatureMap | None = None  # on chip, with SumToOne; None: queries and keys are features
    erases: bool = True
    keeps: str = "all"  # "heads" has a gate for each head, "features" one for each feature

    @property
    def features(self) -> int:
        return self.width if self.map is None else self.map.features(self.width)

    @property
    def shape(self) -> str:
        width = str(self.width) if self.features == self.width else f"{self.width}→{self.features}"
        return f"{self.batch},{self.length},{self.heads},{width},{self.values}"

    @property
    def look(self) -> Look | None:
        if self.map is None:
            return None
        numbers: dict[str, Any] = self.map.numbers() | SumToOne().numbers()
        return Look(self.look_of, None, type(self.map).__name__, "SumToOne", **numbers)

    def look_of(self, x: Tensor) -> Tensor:
        return x if self.map is None else SumToOne()(self.map.map(x))

    def bytes(self) -> float:
        tokens = self.batch * self.length * self.heads
        keys, values = 2 * BYTES * self.width, BYTES * self.values
        gates = BYTES * self.erases + 4 * {"all": 0, "heads": 1, "features": self.features}[self.keeps]
        inputs = keys + values + gates
        return tokens * ((inputs + values) + (inputs + values + inputs) + (keys + values))

    def operations(self) -> float:
        page, chunk = self.features * self.values, min(CHUNK, self.values)
        overlap = chunk * (self.features + self.values)
        solve = page + chunk * (3 * self.features + self.values) if self.erases else 0
        return 4 * 2 * (2 * page + overlap + solve) * self.batch * self.length * self.heads

    def inputs(self, seed: int, ready: bool) -> dict[str, Tensor]:
        """Keys of length one where there is no map, β anywhere between 0 and 1, pages that fade by some per cent."""
        chance = torch.Generator(DEVICE).manual_seed(seed)
        tokens = (self.batch, self.length, self.heads)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*tokens, *shape, generator=chance, device=DEVICE)

        queries, keys = draw(self.width), draw(self.width)
        if self.map is None:
            queries, keys = normalize(queries, dim=-1), normalize(keys, dim=-1)
        elif ready:
            queries, keys = self.look_of(queries), self.look_of(keys)
        made = {"queries": queries, "keys": keys, "values": draw(self.values)}
        if self.erases:
            made["beta"] = draw().sigmoid()
        made = {name: x.to(DTYPE) for name, x in made.items()}
        if self.keeps != "all":
            logits = draw() if self.keeps == "heads" else draw(self.features)
            made["log_keep"] = -0.1 * logits.sigmoid()
        return {name: x.requires_grad_() for name, x in made.items()}

    def passes(self, scan: Scan, ready: bool, seed: int = 0) -> Pass:
        given = self.inputs(seed, ready)
        chance = torch.Generator(DEVICE).manual_seed(seed)
        weights = torch.randn(given["values"].shape, generator=chance, device=DEVICE).to(DTYPE)

        def run() -> list[Tensor]:
            reads = scan(self, **given)
            return [reads.detach(), *torch.autograd.grad(reads, list(given.values()), weights)]

        return run


def ours(row: Row, backend: str, queries, keys, values, beta=None, log_keep=None) -> Tensor:
    gates = Gates(log_keep, beta, beta)
    return memory_scan(queries, keys, values, gates, look=row.look, backend=backend)[0]


def fused(row: Row, **given: Tensor) -> Tensor:
    return ours(row, "fused", **given)


def plain(row: Row, **given: Tensor) -> Tensor:
    return ours(row, "chunked", **given)


def flas(row: Row, queries, keys, values, beta=None, log_keep=None) -> Tensor:
    """Without a final state: FLA does less work then."""
    if beta is None:
        return fla("linear_attn", "chunk_linear_attn")(queries, keys, values, scale=1.0, normalize=False)[0]
    if log_keep is None:
        return fla("delta_rule", "chunk_delta_rule")(queries, keys, values, beta, scale=1.0)[0]
    name = "gated_delta_rule" if row.keeps == "heads" else "kda"
    return fla(name, f"chunk_{name}")(queries, keys, values, log_keep, beta, scale=1.0)[0]


def fla(module: str, name: str) -> Callable[..., tuple[Tensor, ...]]:
    return getattr(import_module(f"fla.ops.{module}"), name)


NARROW = Row(96, 256, 8, 16, 16)
MEDIUM = Row(8, 2048, 16, 64, 64)
WIDE = Row(8, 4096, 8, 128, 128)
LONG = Row(1, 65536, 16, 128, 128)
ROWS = {
    "delta-elu-16": replace(NARROW, map=EluPlusOne()),
    "delta-dpfp-96": replace(NARROW, map=DPFP(3)),
    "delta-16": NARROW,
    "delta-64": MEDIUM,
    "delta-128": WIDE,
    "delta-long": LONG,
    "sum-elu-16": replace(NARROW, map=EluPlusOne(), erases=False),
    "sum-dpfp-96": replace(NARROW, map=DPFP(3), erases=False),
    "sum-16": replace(NARROW, erases=False),
    "sum-64": replace(MEDIUM, erases=False),
    "sum-128": replace(WIDE, erases=False),
    "sum-long": replace(LONG, erases=False),
    "gated-delta-128": replace(WIDE, keeps="heads"),
    "kda-128": replace(WIDE, keeps="features"),
}


@dataclass(frozen=True)
class Form:
    scan: Scan
    ready: bool = False  # it is given features, where the row has a map


FORMS = {"fused": Form(fused), "plain": Form(plain), "FLA": Form(flas, ready=True)}


@dataclass(frozen=True)
class Measured:
    row: str
    form: str
    shape: str
    eager_ms: float | None = None
    graph_ms: float | None = None
    peak_mib: float | None = None
    tflops: float | None = None  # these and the shares are of the replayed graph
    gb_per_s: float | None = None
    share_of_floor: float | None = None
    share_of_floor_eager: float | None = None
    disagreement: float | None = None
    failed: str | None = None


def measure(name: str, form: str, most: Ceilings) -> Measured:
    """What fails is told, and the rest is kept."""
    row, (scan, ready) = ROWS[name], (FORMS[form].scan, FORMS[form].ready)
    found = Measured(name, form, row.shape)
    least = most.milliseconds(row.bytes(), row.operations())
    try:
        if form == "fused":
            found = replace(found, disagreement=disagreement(row))
        copies = copies_for(row.inputs(0, ready).values())
        runs = [row.passes(scan, ready, seed) for seed in range(copies)]
        eager = time_eager(*runs)
        found = replace(found, eager_ms=eager, share_of_floor_eager=least / eager)
        found = replace(found, peak_mib=peak_bytes(runs[0]) / 2**20)
        graph = time_graph(*runs)
        rates = {"tflops": row.operations() / graph / 1e9, "gb_per_s": row.bytes() / graph / 1e6}
        return replace(found, graph_ms=graph, share_of_floor=least / graph, **rates)
    except Exception as error:  # refused, wrong, out of memory, or not to be recorded
        return replace(found, failed=told(error))


def told(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:WORDS]


def disagreement(row: Row) -> float:
    """Between the fused form and the plain one; too much is the end of the row."""
    few = replace(row, batch=1, length=min(row.length, SHORT))
    pairs = zip(few.passes(fused, False)(), few.passes(plain, False)(), strict=True)
    off = max(((a.double() - b.double()).norm() / b.double().norm()).item() for a, b in pairs)
    if not off <= AGREEMENT:
        raise RuntimeError(f"disagrees with the plain form by {off:.1e}")
    return off


# ---------------------------------------------------------------------------------------------------------------- FLA


def measure_apart(name: str, most: Ceilings, patience: float) -> Measured:
    row = ROWS[name]
    command = [sys.executable, __file__, "--apart", name, *map(str, (most.copy, most.product))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return Measured(name, "FLA", row.shape, failed=f"nothing came of it in {patience:g} seconds")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return Measured(name, "FLA", row.shape, failed=reason[:WORDS])
    return Measured(**json.loads(lines[-1]))


# ------------------------------------------------------------------------------------------------------------- report


def show(found: list[Measured]) -> None:
    columns = ("eager ms", "graph ms", "TFLOP/s", "GB/s", "floor", "peak MiB", "eager ×", "graph ×")
    print(f"{'':16} {'B,T,H,K,V':22} {'':6}", *(f"{column:>9}" for column in columns))
    ahead = {each.row: each for each in found if each.form == "fused"}
    for each in found:
        first = f"{each.row:16} {each.shape:22} {each.form:6}"
        share = None if each.share_of_floor is None else 100 * each.share_of_floor
        fused = ahead.get(each.row)
        times = [
            None if fused is None or each is fused or one is None or other is None else one / other
            for one, other in (
                (each.eager_ms, fused and fused.eager_ms),
                (each.graph_ms, fused and fused.graph_ms),
            )
        ]
        numbers = (
            (each.eager_ms, "9.3f"),
            (each.graph_ms, "9.3f"),
            (each.tflops, "9.1f"),
            (each.gb_per_s, "9.0f"),
            (share, "8.1f"),
            (each.peak_mib, "9.0f"),
            *((ratio, "9.2f") for ratio in times),
        )
        told = [f"{'–':>9}" if x is None else f"{x:{kind}}{'%' if kind == '8.1f' else ''}" for x, kind in numbers]
        print(first, *told, each.failed or "", flush=True)


def report(most: Ceilings, found: list[Measured]) -> dict[str, Any]:
    return {"ceilings": asdict(most), "measured": [asdict(each) for each in found]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], metavar="NAME", help=", ".join(ROWS))
    parser.add_argument("--fla", nargs="+", choices=ROWS, default=[], metavar="NAME", help="rows for FLA too")
    parser.add_argument("--patience", type=float, default=400, help="seconds for each row of FLA's (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    parser.add_argument("--apart", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.apart:
        name, *numbers = chosen.apart
        print(json.dumps(asdict(measure(name, "FLA", Ceilings(*map(float, numbers))))))
        return
    most, found = ceilings(), []
    print(f"copies {most.copy:.0f} GB/s, products {most.product:.0f} TFLOP/s\n")
    # those that may leave the device in disorder come last
    for form in ("fused", "FLA", "plain"):
        for name in chosen.fla if form == "FLA" else chosen.rows:
            apart = form == "FLA"
            one = measure_apart(name, most, chosen.patience) if apart else measure(name, form, most)
            print(f"{one.row}, {one.form}: {one.failed or f'{one.eager_ms:.3f} ms, {one.graph_ms:.3f} ms'}", flush=True)
            found.append(one)
            save_so_far(chosen.output, report(most, found))
            torch.cuda.empty_cache()
    print()
    show(sorted(found, key=lambda each: [*ROWS].index(each.row)))
    save(chosen.output, report(most, found))


if __name__ == "__main__":
    main()
