"""Every form of the scan and of attention, tried on a device: float32 against the definition in float64 on the CPU.

What is compared is what comes out and the gradient of everything that goes in.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..gates import Gates
from ..relative import Relative
from .attention import ATTENTION_BACKENDS, relative_attention
from .scan import BACKENDS, BackendRefused, memory_scan

TOLERANCE = 1e-4  # of the largest number expected: a hundred times what float32 loses here
LENGTH = 150  # tokens: a few chunks and a piece of one
ROWS, HEADS, FEATURES, WIDTH, VECTORS = 2, 2, 16, 8, 3

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
    error: float | None = None  # of the largest number expected; None where nothing came out
    milliseconds: float | None = None  # there and back
    refused: str | None = None  # what the form says it is not for
    broken: str | None = None  # what went wrong instead of an answer

    @property
    def passed(self) -> bool:
        return self.refused is not None or (self.error is not None and self.error <= TOLERANCE)


@dataclass(frozen=True)
class Case:
    kernel: str
    name: str
    backends: Mapping[str, object]
    inputs: Inputs
    compute: Compute

    def outcome(self, backend: str, dtype: torch.dtype, device: torch.device) -> Results:
        """What comes out, and the gradient of a weighted sum of it for each input."""
        given = {name: x.to(device, dtype).requires_grad_() for name, x in self.inputs.items()}
        found = self.compute(given, backend)
        chance = torch.Generator().manual_seed(1)
        weighed = [(x * torch.randn(x.shape, generator=chance).to(x)).sum() for x in found.values()]
        gradients = torch.autograd.grad(torch.stack(weighed).sum(), list(given.values()))
        names = [f"the gradient of {name}" for name in given]
        return {**found, **dict(zip(names, gradients, strict=True))}

    def expected(self) -> Results:
        return self.outcome("reference", torch.float64, torch.device("cpu"))

    def attempt(self, backend: str, device: torch.device, expected: Results) -> Trial:
        named = (self.kernel, backend, str(device), self.name)
        try:
            self.outcome(backend, torch.float32, device)  # once for what is only made ready the first time
            start = time.perf_counter()
            found = {name: x.double().cpu() for name, x in self.outcome(backend, torch.float32, device).items()}
            milliseconds = 1000 * (time.perf_counter() - start)
        except BackendRefused as refusal:
            return Trial(*named, refused=str(refusal))
        except Exception as error:  # whatever it is, it is what we were asked to find
            return Trial(*named, broken=told(error))
        error = largest_error(found, expected)
        if not math.isfinite(error):
            return Trial(*named, broken="something that came out is not a number")
        return Trial(*named, error, milliseconds)


def self_test(device: torch.device) -> Iterator[Trial]:
    """Every form with every case on the device."""
    for case in [*scans(), *attentions()]:
        try:
            expected = case.expected()
        except Exception as error:  # then there is nothing to hold the others against
            yield Trial(case.kernel, "reference", "cpu", case.name, broken=told(error))
            continue
        for backend in case.backends:
            yield case.attempt(backend, device, expected)


def scans() -> Iterator[Case]:
    """Gates that are there are those of the update rule in the name."""
    chance = torch.Generator().manual_seed(0)
    tokens = (ROWS, LENGTH, HEADS)
    log_keep = -torch.rand(tokens, generator=chance)
    wiped = log_keep.where(log_keep < -0.05, -torch.inf)  # one token in twenty begins a document
    keep_by_feature = -torch.rand(*tokens, FEATURES, generator=chance)
    erase, write = torch.rand(2, *tokens, generator=chance)
    shared = {
        "queries": normalize(torch.randn(*tokens, FEATURES, generator=chance), dim=-1),
        "keys": normalize(torch.randn(*tokens, FEATURES, generator=chance), dim=-1),
        "values": torch.randn(*tokens, WIDTH, generator=chance),
        "memory": torch.randn(ROWS, HEADS, FEATURES, WIDTH, generator=chance),
    }
    gates: dict[str, Inputs] = {
        "Sum": {},
        "Delta": {"erase": erase, "write": write},
        "GatedDelta": {"log_keep": log_keep, "erase": erase, "write": write},
        "FeatureGatedDelta": {"log_keep": keep_by_feature, "erase": erase, "write": write},
        "GatedDelta, packed": {"log_keep": wiped, "erase": erase, "write": write},
    }
    for rule, present in gates.items():
        yield Case("memory_scan", rule, BACKENDS, shared | present, scan)


def scan(given: Inputs, backend: str) -> Results:
    gates = Gates(given.get("log_keep"), given.get("erase"), given.get("write"))
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    reads, memory = memory_scan(*arguments, backend=backend)
    return {"reads": reads, "memory": memory}


def attentions() -> Iterator[Case]:
    """Products alone, then each of the terms that may be added to them."""
    chance = torch.Generator().manual_seed(0)
    shared = {
        "queries": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance),
        "keys": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance) / FEATURES**0.5,
        "values": torch.randn(ROWS, LENGTH, HEADS, WIDTH, generator=chance),
    }
    terms: dict[str, Inputs] = {
        "products": {},
        "distances": {
            "places": torch.randn(ROWS, LENGTH, HEADS, FEATURES, generator=chance),
            "table": torch.randn(LENGTH, HEADS, FEATURES, generator=chance) / FEATURES**0.5,
            "bias": torch.randn(LENGTH, HEADS, generator=chance),
        },
        "mask and vectors": {
            "mask": torch.rand(HEADS, LENGTH, generator=chance),
            "persistent_keys": torch.randn(HEADS, VECTORS, FEATURES, generator=chance) / FEATURES**0.5,
            "persistent_values": torch.randn(HEADS, VECTORS, WIDTH, generator=chance),
        },
    }
    for name, present in terms.items():
        yield Case("relative_attention", name, ATTENTION_BACKENDS, shared | present, attend)


def attend(given: Inputs, backend: str) -> Results:
    reads = relative_attention(
        given["queries"],
        given["keys"],
        given["values"],
        relative=Relative(given["places"], given["table"], given["bias"]) if "table" in given else None,
        mask=given.get("mask"),
        persistent=(given["persistent_keys"], given["persistent_values"]) if "persistent_keys" in given else None,
        backend=backend,
    )
    return {"reads": reads}


def largest_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Each result's largest difference as a share of its largest number."""
    shares = [(found[name] - x).abs().max() / x.abs().max() for name, x in expected.items()]
    return torch.stack(shares).max().item()


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"
