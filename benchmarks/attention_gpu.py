"""Speed and memory of attention on a GPU: ours beside the same in plain operations, and beside what others have.

    python benchmarks/attention_gpu.py [--sweep] [--quick] [--output FILE]

A pass is a forward and a backward pass in bfloat16, with the gradient of everything that goes in. Transformer-XL's
attention stands beside the plain form, compiled; beside torch's own attention, which has no word on distances; and
beside FlexAttention, which reads it from a table of all queries and keys. Adaptive spans stand beside longer ones, and
beside the plain form with keys cut to what the widest head sees. Each is timed eagerly and as a replayed CUDA graph.
Before anything is timed, it must agree with the plain form.

--sweep first tries other tiles, warps and stages for each of the kernels, and tells which are fastest.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from measuring_gpu import copies_for, peak_bytes, save, save_so_far, time_eager, time_graph
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from palimpsest.attention.spans import shares
from palimpsest.kernels import attention_blocked
from palimpsest.kernels.fused import attention
from palimpsest.kernels.fused.attention import Launch, Settings
from palimpsest.relative import Relative

RESULTS = Path(__file__).parent / "results" / "attention-gpu.json"
AGREEMENT = 0.05  # of the largest number: both round scores or weights to eight bits
RAMP = 32

Pass = Callable[[], list[Tensor]]
Passes = Callable[[int], Pass]  # each with inputs of its own, by their seed


def disagreement(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference between two results, each in units of its largest number."""
    pairs = [(a.double(), b.double()) for a, b in zip(one, other, strict=True)]
    return max((a - b).abs().max().item() / (b.abs().max().item() or 1.0) for a, b in pairs)


# --------------------------------------------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Row:
    batch: int
    queries: int
    keys: int
    heads: int = 8
    width: int = 64
    limit: int | None = None  # of adaptive spans
    span: float = 1.0  # of the limit

    @property
    def reach(self) -> int:
        return self.limit or self.keys

    @property
    def sees(self) -> int:
        """How far the widest head looks."""
        return self.reach if self.limit is None else min(self.limit, int(self.span * self.limit) + RAMP)

    @property
    def pairs(self) -> int:
        places = range(self.keys - self.queries + 1, self.keys + 1)
        return self.batch * self.heads * sum(min(place, self.sees) for place in places)

    def operations(self, products: int) -> float:
        return 2.0 * self.width * self.pairs * products

    def inputs(self, seed: int) -> dict[str, Tensor]:
        chance = torch.Generator("cuda").manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance, device="cuda", dtype=torch.bfloat16)

        queries, keys = (
            (self.batch, self.queries, self.heads, self.width),
            (self.batch, self.keys, self.heads, self.width),
        )
        made = {
            "queries": draw(*queries) * self.width**-0.5,
            "keys": draw(*keys),
            "values": draw(*keys),
            "table": draw(self.reach, self.heads, self.width),
        }
        if self.limit is None:
            made["place"] = draw(*queries) * self.width**-0.5
        else:  # adaptive spans ask for distances by the same queries
            made["spans"] = torch.full((self.heads,), self.span, device="cuda")
        return {name: x.requires_grad_() for name, x in made.items()}

    def mask(self, given: dict[str, Tensor], reach: int) -> Tensor | None:
        if self.limit is None:
            return None
        return shares(given["spans"], self.limit, RAMP, reach)

    def ready(self, attend: Callable[[dict[str, Tensor]], Tensor], names: tuple[str, ...] = ()) -> Passes:
        """Passes that give the reads, and the gradients of the inputs of these names, or of all."""

        def passing(seed: int) -> Pass:
            given, chance = self.inputs(seed), torch.Generator("cuda").manual_seed(seed + 1)
            leaves = [given[name] for name in names or given]
            weights = torch.randn(given["queries"].shape, generator=chance, device="cuda").to(given["queries"])

            def run() -> list[Tensor]:
                found = attend(given)
                return [found.detach(), *torch.autograd.grad(found, leaves, weights)]

            return run

        return passing

    def several(self, passes: Passes) -> list[Pass]:
        """So many that none finds its inputs in the device's cache."""
        return [passes(seed) for seed in range(copies_for(self.inputs(0).values()))]

    def fused(self, settings: Settings | None = None) -> Passes:
        def attend(given: dict[str, Tensor]) -> Tensor:
            relative = Relative(given.get("place"), given["table"])
            terms = (self.reach, relative, self.mask(given, self.reach), None, None, 0.0)
            return attention.attend(given["queries"], given["keys"], given["values"], *terms, settings=settings)

        return self.ready(attend)

    def plain(self, compiled: bool) -> Passes:
        """With the keys that the widest head sees, in windows of 64 tokens, as the mixer gives them."""
        reach = min(self.reach, -(-self.sees // 64) * 64)
        first = max(0, self.keys - self.queries + 1 - reach)
        form = torch.compile(attention_blocked.attend, dynamic=False) if compiled else attention_blocked.attend

        def attend(given: dict[str, Tensor]) -> Tensor:
            relative = Relative(given.get("place"), given["table"][:reach])
            terms = (reach, relative, self.mask(given, reach), None, None, 0.0)
            return form(given["queries"], given["keys"][:, first:], given["values"][:, first:], *terms)

        return self.ready(attend)

    def torchs_own(self) -> Passes:
        bias = causal_lower_right(self.queries, self.keys)

        def attend(given: dict[str, Tensor]) -> Tensor:
            parts = (given[name].transpose(1, 2) for name in ("queries", "keys", "values"))
            return scaled_dot_product_attention(*parts, attn_mask=bias, scale=1.0).transpose(1, 2)

        return self.ready(attend, ("queries", "keys", "values"))

    def flex(self) -> Passes:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        cached = self.keys - self.queries

        def seen(row, head, query, key):
            return query + cached >= key

        tiles = create_block_mask(seen, None, None, self.queries, self.keys, device="cuda")

        def form(queries: Tensor, keys: Tensor, values: Tensor, place: Tensor, table: Tensor) -> Tensor:
            by_distance = torch.einsum("bthk,rhk->bhtr", place, table)

            def word(score, row, head, query, key):
                return score + by_distance[row, head, query, (query + cached - key).clamp(min=0)]

            parts = (x.transpose(1, 2) for x in (queries, keys, values))
            return flex_attention(*parts, score_mod=word, block_mask=tiles, scale=1.0).transpose(1, 2)

        compiled = torch.compile(form, dynamic=False)
        names = ("queries", "keys", "values", "place", "table")
        return self.ready(lambda given: compiled(*(given[name] for name in names)))


TRANSFORMER_XL = Row(22, 512, 1024)
LONG = Row(16, 512, 512 + 8191, limit=8192)
SHORT = replace(LONG, span=0.06)


@dataclass(frozen=True)
class Contender:
    row: Row
    form: Callable[[Row], Passes]
    products: int = 9  # of all queries and keys that a pass cannot do without
    checked: bool = False  # against the plain form


@dataclass
class Measured:
    eager_ms: float
    graph_ms: float
    tflops: float  # of the replayed graph
    peak_mib: float
    disagreement: float | None


@dataclass
class Found:
    measured: dict[str, Measured] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    sweep: dict[str, dict[str, float]] = field(default_factory=dict)
    settings: dict[str, list[int]] = field(default_factory=dict)


def contenders(xl: Row, long: Row, short: Row, chosen: dict[str, Settings]) -> dict[str, Contender]:
    def plain(row: Row) -> Passes:
        return row.plain(compiled=True)

    def fused(name: str) -> Callable[[Row], Passes]:
        return lambda row: row.fused(chosen.get(name))

    return {
        "Transformer-XL, fused": Contender(xl, fused("Transformer-XL"), checked=True),
        "spans of 1.0, fused": Contender(long, fused("spans"), checked=True),
        "spans of 0.06, fused": Contender(short, fused("spans"), checked=True),
        "Transformer-XL, torch's own, no distances": Contender(xl, Row.torchs_own, products=6),
        "Transformer-XL, plain, compiled": Contender(xl, plain),
        "spans of 0.06, plain, compiled": Contender(short, plain),
        "Transformer-XL, FlexAttention": Contender(xl, Row.flex),
    }


def measure(contender: Contender) -> Measured:
    row, off = contender.row, None
    if contender.checked:
        few = replace(row, batch=2)  # the plain form needs much memory
        off = agreement(contender.form(few)(0)(), few.plain(compiled=False)(0)())
    runs = row.several(contender.form(row))
    eager, graph = time_eager(*runs), time_graph(*runs)
    done = row.operations(contender.products) / graph / 1e9
    return Measured(eager, graph, done, peak_bytes(runs[0]) / 2**20, off)


def agreement(found: list[Tensor], expected: list[Tensor]) -> float:
    off = disagreement(found, expected)
    if not off <= AGREEMENT:
        raise RuntimeError(f"disagrees with the plain form by {off:.1e}")
    return off


# ---------------------------------------------------------------------------------------------------------- the sweep

TRIALS: dict[str, list] = {
    "forward": [Launch(64, 4, 2), Launch(64, 4, 1), Launch(64, 4, 3), Launch(128, 8, 2)],
    "queries": [Launch(64, 4, 2), Launch(64, 4, 1), Launch(64, 4, 3), Launch(64, 8, 2)],
    "keys": [Launch(64, 4, 2), Launch(64, 4, 1), Launch(64, 4, 3), Launch(128, 8, 1)],
    "programs": [528, 1, 264, 1056, 10000],
}


def sweep(row: Row, until: float) -> tuple[dict[str, float], Settings]:
    """One kernel after the other; the time of a whole pass with each setting, and the fastest settings together."""
    times: dict[str, float] = {}
    best = attention.settings_for(row.width, torch.bfloat16)
    few = replace(row, batch=2)
    expected = few.plain(compiled=False)(0)()
    for kernel, trials in TRIALS.items():
        fastest = (float("inf"), getattr(best, kernel))
        for trial in trials:
            settings, name = best._replace(**{kernel: trial}), f"{kernel} {trial}"
            if time.monotonic() > until:
                break
            try:
                agreement(few.fused(settings)(0)(), expected)
                times[name] = time_graph(*row.several(row.fused(settings)))
            except Exception as error:  # too much shared memory, too many registers, or wrong: not a setting
                print(f"  {name:50} {str(error).splitlines()[0][:80]}", flush=True)
                continue
            print(f"  {name:50} {times[name]:8.3f} ms", flush=True)
            fastest = min(fastest, (times[name], trial))
        best = best._replace(**{kernel: fastest[1]})
    print(f"  fastest: {best}", flush=True)
    return times, best


# ------------------------------------------------------------------------------------------------------------- report


def ratios(measured: dict[str, Measured]) -> dict[str, float]:
    pairs = {
        "Transformer-XL: plain, compiled / fused (aim: at least 4)": (
            "Transformer-XL, plain, compiled",
            "Transformer-XL, fused",
        ),
        "Transformer-XL: fused / torch's own (aim: at most 3)": (
            "Transformer-XL, fused",
            "Transformer-XL, torch's own, no distances",
        ),
        "spans: 0.06 / 1.0 (aim: at most 0.12)": ("spans of 0.06, fused", "spans of 1.0, fused"),
    }
    return {
        f"{name}, {kind}": getattr(measured[one], f"{kind}_ms") / getattr(measured[other], f"{kind}_ms")
        for name, (one, other) in pairs.items()
        if one in measured and other in measured
        for kind in ("eager", "graph")
    }


def show(found: Found) -> None:
    print(f"\n{'':44} {'eager':>10} {'graph':>10} {'TFLOP/s':>8} {'peak':>10}  off by")
    for name, m in found.measured.items():
        off = "" if m.disagreement is None else f"{m.disagreement:.1e}"
        print(f"{name:44} {m.eager_ms:7.3f} ms {m.graph_ms:7.3f} ms {m.tflops:8.0f} {m.peak_mib:6.0f} MiB  {off}")
    for name, why in found.failed.items():
        print(f"{name:44} {why}")
    print()
    for name, value in found.ratios.items():
        print(f"{name:70} {value:6.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="try other settings of the kernels first")
    parser.add_argument("--seconds", type=float, default=60, help="how long the sweep may take (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small batches: to see that it runs")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    rows = (TRANSFORMER_XL, LONG, SHORT)
    xl, long, short = (replace(row, batch=2) for row in rows) if chosen.quick else rows
    plan = {"plan": {"rows": [asdict(row) for row in (xl, long, short)], "dtype": "bfloat16"}}
    found, fastest = Found(), {}
    start = time.monotonic()
    if chosen.sweep:
        for name, row, share in (("Transformer-XL", xl, 0.6), ("spans", long, 1.0)):
            print(f"{name}:")
            found.sweep[name], fastest[name] = sweep(row, start + share * chosen.seconds)
    for name, contender in contenders(xl, long, short, fastest).items():
        began = time.monotonic()
        try:
            found.measured[name] = measure(contender)
        except Exception as error:  # of others' programs too: their absence is no reason to lose our numbers
            found.failed[name] = (str(error).splitlines() or [repr(error)])[0][:100]
        torch.cuda.empty_cache()
        save_so_far(chosen.output, plan | asdict(found))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    found.ratios = ratios(found.measured)
    found.settings = {name: settings.numbers() for name, settings in fastest.items()}
    show(found)
    save(chosen.output, plan | asdict(found))


if __name__ == "__main__":
    main()
