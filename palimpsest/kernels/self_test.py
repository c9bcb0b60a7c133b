"""Every form of every kernel, tried on a device: float32 against the definition in float64 on the CPU.

What is compared is what comes out and the gradient of everything that goes in. On a GPU a fused form is tried in
bfloat16 too: there it may lose twice what the plain form loses.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import elu, normalize

from ..gates import Gates
from ..look import Look
from ..relative import Relative
from .activations import Softmax, Tanh
from .attention import ATTENTION_BACKENDS, relative_attention
from .convolution import CONVOLUTION_BACKENDS, short_convolution
from .cross_entropy import CROSS_ENTROPY_BACKENDS, linear_cross_entropy
from .delta_lstm import delta_lstm
from .delta_rnn import delta_rnn
from .fused.launching import compile_ahead, rehearsal
from .pages import FORMS
from .recurrent_delta import recurrent_delta
from .scan import BACKENDS, BackendRefused, counted_scan, memory_scan

TOLERANCE = 1e-4  # of the largest number expected: a hundred times what float32 loses here
HALF = torch.bfloat16
BOTH = (torch.float32, HALF)
SHARE = 2  # of what the plain form loses in half precision
LENGTH = 150  # tokens: a few chunks and a piece of one
LONG = 6200  # enough for a scan of one page in three parts
ROWS, HEADS, FEATURES, WIDTH, WIDE, WIDER, VECTORS = 2, 2, 16, 8, 40, 72, 3
MANY, BRIEF = 80, 40  # rows, enough for every processor of a card to have a page; and tokens of theirs

Inputs = dict[str, Tensor]
Results = dict[str, Tensor]
Compute = Callable[[Inputs, str], Results]


@dataclass(frozen=True)
class Trial:
    """One form of a kernel on one device, given the gates or terms of one case."""

    kernel: str
    backend: str
    device: str
    case: str
    dtype: str = "float32"
    error: float | None = None  # None where nothing came out; in float32 of the largest number expected
    of: str = "what comes out"  # or one thing of that, whose error is the largest
    allowed: float = TOLERANCE
    milliseconds: float | None = None  # there and back
    refused: str | None = None  # what the form says it is not for
    broken: str | None = None  # what went wrong instead of an answer

    @property
    def passed(self) -> bool:
        return self.refused is not None or (self.error is not None and self.error <= self.allowed)

    @property
    def complaint(self) -> str:
        kind = "" if self.dtype == "float32" else f", {self.dtype}"
        wrong = self.broken
        if self.error is not None:
            wrong = f"{self.of} is off by {self.error:.1e}, of at most {self.allowed:.1e}"
        return f"{self.case}{kind}: {wrong}"


@dataclass(frozen=True)
class Case:
    kernel: str
    name: str
    backends: Collection[str]
    inputs: Inputs
    compute: Compute
    definition: str = "reference"
    plain: str = "plain"  # the form that a fused one stands in for
    first: tuple[torch.dtype, ...] = (HALF,)  # in which a fused form is tried before it is used: every kind is compiled

    def outcome(self, backend: str, dtype: torch.dtype, device: torch.device) -> Results:
        """What comes out, and the gradient of a weighted sum of it for each input."""
        with current(device):
            given = {name: x.to(device, dtype).requires_grad_() for name, x in self.inputs.items()}
            found = self.compute(given, backend)
            chance = torch.Generator().manual_seed(1)
            # numbers that are the same in every precision
            weights = [torch.randn(x.shape, generator=chance).to(HALF).to(x) for x in found.values()]
            gradients = torch.autograd.grad(list(found.values()), list(given.values()), weights)
        names = [f"the gradient of {name}" for name in given]
        return {name: x.detach() for name, x in [*found.items(), *zip(names, gradients, strict=True)]}

    def expected(self) -> Results:
        return self.outcome(self.definition, torch.float64, torch.device("cpu"))

    def trials(self, backends: Collection[str], device: torch.device) -> Iterator[Trial]:
        try:
            expected = self.expected()
        except Exception as error:  # then there is nothing to hold the others against
            yield Trial(self.kernel, self.definition, "cpu", self.name, broken=told(error))
            return
        for backend in backends:
            yield self.attempt(backend, device, expected)
            if backend == "fused" and device.type != "cpu":
                yield self.attempt_in_half(backend, device)

    def first_trials(self, device: torch.device) -> Iterator[Trial]:
        """Of the fused form, before it is used."""
        if torch.float32 in self.first:
            yield self.attempt("fused", device, self.expected())
        if HALF in self.first:
            yield self.attempt_in_half("fused", device)

    def attempt(self, backend: str, device: torch.device, expected: Results) -> Trial:
        started = Trial(self.kernel, backend, str(device), self.name)
        try:
            self.outcome(backend, torch.float32, device)  # once for what is only made ready the first time
            start = time.perf_counter()
            found = {name: x.double().cpu() for name, x in self.outcome(backend, torch.float32, device).items()}
            milliseconds = 1000 * (time.perf_counter() - start)
        except BackendRefused as refusal:
            return replace(started, refused=str(refusal))
        except Exception as error:  # whatever it is, it is what we were asked to find
            return replace(started, broken=told(error))
        error, worst = largest_error(found, expected)
        if not math.isfinite(error):
            return replace(started, broken=f"{worst} is not a number")
        return replace(started, error=error, of=worst, milliseconds=milliseconds)

    def attempt_in_half(self, backend: str, device: torch.device) -> Trial:
        """Everything that is given and all that comes out is rounded; the definition is given the same numbers."""
        started = Trial(self.kernel, backend, str(device), self.name, dtype=str(HALF).removeprefix("torch."))
        case = replace(self, inputs={name: x.to(HALF) for name, x in self.inputs.items()})
        try:
            expected = case.expected()
            lost = losses(case.outcome(self.plain, HALF, device), expected)
            start = time.perf_counter()
            found = losses(case.outcome(backend, HALF, device), expected)
            milliseconds = 1000 * (time.perf_counter() - start)
        except BackendRefused as refusal:
            return replace(started, refused=str(refusal))
        except Exception as error:
            return replace(started, broken=told(error))
        for name, error in found.items():
            if not math.isfinite(error):
                return replace(started, broken=f"{name} is not a number")
        worst = max(found, key=lambda name: found[name] / lost[name])
        return replace(started, error=found[worst], of=worst, allowed=SHARE * lost[worst], milliseconds=milliseconds)


class OneWay(Case):
    """Of a kernel that is for those alone who ask for no gradients."""

    def outcome(self, backend: str, dtype: torch.dtype, device: torch.device) -> Results:
        with current(device), torch.inference_mode():
            return self.compute({name: x.to(device, dtype) for name, x in self.inputs.items()}, backend)


def self_test(device: torch.device) -> Iterator[Trial]:
    """Every form with every case on the device; the fused ones are for GPUs."""
    for case in cases():
        backends = [name for name in case.backends if name != "fused" or device.type == "cuda"]
        yield from case.trials(backends, device)


def fused_trials(kernel: str, device: torch.device, asked: Callable[[], object] | None = None) -> Iterator[Trial]:
    """What a fused form is tried with before it is used; what is asked of it then is compiled meanwhile."""
    chosen = [case for case in cases() if case.kernel == kernel]
    if device.type == "cuda":
        rehearse(chosen, device, asked)
    for case in chosen:
        yield from case.first_trials(device)


def rehearse(cases: Iterable[Case], device: torch.device, asked: Callable[[], object] | None) -> None:
    """Compile all that the first trials of these will need, side by side instead of one after the other."""
    with rehearsal() as noted:
        if asked is not None:
            with suppress(Exception):  # who asks will be told
                asked()
        for case in cases:
            for dtype in case.first:
                with suppress(Exception):  # the trial itself will tell
                    case.outcome("fused", dtype, device)
    compile_ahead(noted, device)


def cases() -> Iterator[Case]:
    yield from scans()
    yield from long_scans()
    yield from decodings()
    yield from attentions()
    yield from recurrences()
    yield from cross_entropies()
    yield from convolutions()


def scans() -> Iterator[Case]:
    """Gates that are there are those of the update rule in the name; wide pages and many are cut otherwise than few."""
    chance = torch.Generator().manual_seed(0)
    few, many = (ROWS, LENGTH, HEADS), (MANY, min(BRIEF, LENGTH), HEADS)
    log_keep, delta = fading(few, chance), rewriting(few, chance)
    wiped = log_keep.where(log_keep < -0.05, -torch.inf)  # one token in twenty begins a document
    narrow, wide = addressed(FEATURES, WIDTH, few, chance), addressed(WIDE, WIDE, few, chance)
    given: dict[str, Inputs] = {
        "Sum": narrow,
        "Delta": wide | delta,
        "GatedDelta": narrow | delta | {"log_keep": log_keep},
        "GatedDelta, many pages": (
            addressed(WIDE, WIDE, many, chance) | rewriting(many, chance) | {"log_keep": fading(many, chance)}
        ),
        "FeatureGatedDelta": narrow | delta | {"log_keep": fading((*few, FEATURES), chance)},
        "GatedDelta, packed": narrow | delta | {"log_keep": wiped},
    }
    for rule, inputs in given.items():
        yield Case("memory_scan", rule, BACKENDS, inputs, scan, plain="chunked")
    column = torch.rand(ROWS, HEADS, FEATURES, 1, generator=chance)
    counted = narrow | {"log_keep": wiped, "write": delta["write"], "column": column}
    yield Case("memory_scan", "GatedSum, raw and counted", BACKENDS, counted, scan_counted, plain="chunked")
    raw = narrow | {"erase": torch.randn(few, generator=chance)}
    yield Case("memory_scan", "Delta, raw", BACKENDS, raw, scan_raw, plain="chunked", first=BOTH)
    closed = delta["erase"].where(delta["erase"] > 0.05, 0.0)  # some gates, whose gradients are found another way
    wider = addressed(WIDER, WIDE, few, chance) | {"erase": closed}
    yield Case("memory_scan", "Delta, one gate", BACKENDS, wider, scan_by_one_gate, plain="chunked")


def long_scans() -> Iterator[Case]:
    """Of one page, whose parts start at once; what is written in one is not forgotten in the next, or all of it is."""
    chance = torch.Generator().manual_seed(0)
    tokens = (1, LONG, 1)
    summed = addressed(WIDE, WIDE, tokens, chance)
    erase, write = rewriting(tokens, chance).values()
    forgotten = addressed(WIDER, WIDE, tokens, chance) | {"erase": 0.7 + 0.3 * erase}
    given: dict[str, tuple[Inputs, Compute]] = {
        "Sum, long": (summed, scan),
        "Delta, long": (summed | {"erase": erase / 100, "write": write}, scan),
        "Delta, one gate, long": (forgotten, scan_by_one_gate),
    }
    for rule, (inputs, compute) in given.items():
        yield Case("memory_scan", rule, ["fused"], inputs, compute, definition="chunked", plain="chunked")


def decodings() -> Iterator[Case]:
    """The first token of each scan that is of one text."""
    for case in scans():
        if "packed" not in case.name:
            inputs = {name: x if name in ("memory", "column") else x[:, :1] for name, x in case.inputs.items()}
            yield OneWay(
                "memory_decode", case.name, ["fused"], inputs, case.compute, plain="recurrent", first=case.first
            )


def addressed(features: int, width: int, tokens: tuple[int, int, int], chance: torch.Generator) -> Inputs:
    rows, _, heads = tokens
    return {
        "queries": normalize(torch.randn(*tokens, features, generator=chance), dim=-1),
        "keys": normalize(torch.randn(*tokens, features, generator=chance), dim=-1),
        "values": torch.randn(*tokens, width, generator=chance),
        "memory": torch.randn(rows, heads, features, width, generator=chance),
    }


def fading(shape: tuple[int, ...], chance: torch.Generator) -> Tensor:
    return -torch.rand(shape, generator=chance)


def rewriting(tokens: tuple[int, int, int], chance: torch.Generator) -> Inputs:
    erase, write = torch.rand(2, *tokens, generator=chance)
    return {"erase": erase, "write": write}


def scan(given: Inputs, backend: str) -> Results:
    gates = Gates(given.get("log_keep"), given.get("erase"), given.get("write"))
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    reads, memory = memory_scan(*arguments, backend=backend)
    return {"reads": reads, "memory": memory}


def scan_by_one_gate(given: Inputs, backend: str) -> Results:
    return scan(given | {"write": given["erase"]}, backend)


def scan_raw(given: Inputs, backend: str) -> Results:
    """Features and gates are made on the way."""
    look = Look(positive, map="EluPlusOne", scale="SumToOne", floor=1e-6)
    gates = Gates(erase=given["erase"], write=given["erase"], limit=1.0)
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    reads, memory = memory_scan(*arguments, look=look, backend=backend)
    return {"reads": reads, "memory": memory}


def scan_counted(given: Inputs, backend: str) -> Results:
    """Queries also read the sum of all keys."""
    look = Look(lambda x: elu(x) + 1, map="EluPlusOne")
    arguments = (given["queries"], given["keys"], given["values"], Gates(given["log_keep"], write=given["write"]))
    found = counted_scan(*arguments, given["memory"], given["column"], look=look, backend=backend)
    return dict(zip(("reads", "memory", "mass", "column"), found, strict=True))


def positive(x: Tensor) -> Tensor:
    features = elu(x) + 1
    return features / features.sum(-1, keepdim=True)


def attentions() -> Iterator[Case]:
    """Products alone, then each of the terms that may be added to them."""
    chance = torch.Generator().manual_seed(0)
    shared = {
        "queries": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance),
        "keys": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance) / FEATURES**0.5,
        "values": torch.randn(ROWS, LENGTH, HEADS, WIDTH, generator=chance),
    }
    distances = {
        "places": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance),
        "table": torch.randn(LENGTH, HEADS, FEATURES, generator=chance) / FEATURES**0.5,
    }
    mask = torch.rand(HEADS, LENGTH, generator=chance)
    mask[-1, :100] = 1  # tiles that a head sees wholly, as it does within its span
    terms: dict[str, Inputs] = {
        "products": {},
        "distances": distances,
        "distances and biases": distances | {"bias": torch.randn(LENGTH, HEADS, generator=chance)},
        "spans and vectors": {
            "table": distances["table"],
            "mask": mask,
            "persistent_keys": torch.randn(HEADS, VECTORS, FEATURES, generator=chance) / FEATURES**0.5,
            "persistent_values": torch.randn(HEADS, VECTORS, WIDTH, generator=chance),
        },
    }
    for name, present in terms.items():
        first = BOTH if name == "distances" else (HALF,)
        inputs = shared | present
        yield Case("relative_attention", name, ATTENTION_BACKENDS, inputs, attend, plain="blocked", first=first)


def attend(given: Inputs, backend: str) -> Results:
    reads = relative_attention(
        given["queries"],
        given["keys"],
        given["values"],
        relative=Relative(given.get("places"), given["table"], given.get("bias")) if "table" in given else None,
        mask=given.get("mask"),
        persistent=(given["persistent_keys"], given["persistent_values"]) if "persistent_keys" in given else None,
        backend=backend,
    )
    return {"reads": reads}


def recurrences() -> Iterator[Case]:
    """Those that go token by token; their plain form is their definition."""
    chance = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance)

    tokens, rows, made = (ROWS, LENGTH, HEADS), (ROWS, HEADS), 3 * WIDTH + 1
    fed = {"fed": draw(*rows, WIDTH).softmax(-1)}
    one = {
        "inputs": draw(*tokens, WIDTH),
        "keys": draw(*tokens, WIDTH).softmax(-1),
        "values": draw(*tokens, WIDTH),
        "betas": torch.rand(tokens, generator=chance),
        "memory": draw(*rows, WIDTH, WIDTH),
    }
    three = {
        "inputs": draw(*tokens, 3, WIDTH),
        "keys": draw(*tokens, 3, WIDTH).softmax(-1),
        "values": draw(*tokens, 3, WIDTH),
        "betas": torch.rand(*tokens, 3, generator=chance),
        "memory": draw(*rows, 3, WIDTH, WIDTH),
        "cell": draw(*rows, WIDTH),
        "beside": draw(*tokens, WIDTH),
    }
    asking = {
        "inputs": draw(*tokens, made),
        "weights": draw(HEADS, WIDTH, made) / WIDTH**0.5,
        "memory": draw(*rows, WIDTH, WIDTH),
        "read": draw(*rows, WIDTH),
    }
    yield Case("delta_rnn", "Softmax", FORMS, one | fed, run_delta_rnn, definition="plain", first=BOTH)
    yield Case("delta_lstm", "Softmax, Tanh", FORMS, three | fed, run_delta_lstm, definition="plain", first=BOTH)
    yield Case("recurrent_delta", "Softmax", FORMS, asking, run_recurrent_delta, definition="plain", first=BOTH)


def run_delta_rnn(given: Inputs, backend: str) -> Results:
    sums, memory = delta_rnn(**given, activation=Softmax(), backend=backend)
    return {"sums": sums, "memory": memory}


def run_delta_lstm(given: Inputs, backend: str) -> Results:
    sums, memory, cell = delta_lstm(**given, activation=Softmax(), squash=Tanh(), backend=backend)
    return {"sums": sums, "memory": memory, "cell": cell}


def run_recurrent_delta(given: Inputs, backend: str) -> Results:
    reads, memory = recurrent_delta(**given, softmax=Softmax(), backend=backend)
    return {"reads": reads, "memory": memory}


def cross_entropies() -> Iterator[Case]:
    """Hidden states of three widths, each of which is cut otherwise."""
    chance = torch.Generator().manual_seed(0)
    rows, tokens = LENGTH, 4 * LENGTH + 3
    for width, first in {WIDE: BOTH, 5 * WIDE: BOTH, 10 * WIDE: (HALF,)}.items():
        inputs = {
            "hidden": torch.randn(rows, width, generator=chance),
            "weight": torch.randn(tokens, width, generator=chance) / width**0.5,
            "bias": torch.randn(tokens, generator=chance),
        }
        backends = CROSS_ENTROPY_BACKENDS
        yield Case("linear_cross_entropy", f"{width} wide", backends, inputs, score, plain="pieces", first=first)


def score(given: Inputs, backend: str) -> Results:
    """All rows with a bias, and some of them without."""
    hidden, weight = given["hidden"], given["weight"]
    row = torch.arange(len(hidden), device=hidden.device)
    targets, options = row * 7 % len(weight), {"z_loss": 1e-2, "smoothing": 0.1, "backend": backend}
    every = linear_cross_entropy(hidden, weight, given["bias"], targets, **options)
    some = linear_cross_entropy(hidden, weight, None, targets, counted=row % 3 > 0, **options)
    return {"nats": every, "nats of some rows": some}


def convolutions() -> Iterator[Case]:
    """The usual size, of channels in tiles and of odd ones, and sizes for which a thread has more or fewer of them."""
    chance = torch.Generator().manual_seed(0)
    for size, channels, first in ((2, WIDE, (HALF,)), (4, 8 * WIDE, BOTH), (4, WIDE + 1, BOTH), (9, 2 * WIDE, (HALF,))):
        inputs = {
            "x": torch.randn(ROWS, LENGTH, channels, generator=chance),
            "recent": torch.randn(ROWS, size - 1, channels, generator=chance),
            "taps": torch.randn(channels, size, generator=chance),
        }
        name = f"{size} of {channels}"
        yield Case("short_convolution", name, CONVOLUTION_BACKENDS, inputs, convolve, first=first)


def convolve(given: Inputs, backend: str) -> Results:
    return {"sums": short_convolution(given["x"], given["recent"], given["taps"], backend=backend)}


def current(device: torch.device) -> AbstractContextManager:
    """Triton launches on the device that is current, wherever the numbers are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def losses(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Each result's difference as a share of what is expected, by their norms, after the last rounding."""
    differences = {name: found[name].to(HALF).double().cpu() - x for name, x in expected.items()}
    return {name: (differences[name].norm() / x.norm()).item() for name, x in expected.items()}


def largest_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
    """Of each result's largest difference, as a share of its largest number, the largest, and what it is of."""
    shares = {name: ((found[name] - x).abs().max() / x.abs().max()).item() for name, x in expected.items()}
    worst = max(shares, key=lambda name: math.inf if math.isnan(shares[name]) else shares[name])
    return shares[worst], worst


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
