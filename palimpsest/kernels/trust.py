"""Whether a fused kernel is right on the GPU at hand: tried at its first use against the definition, and remembered.

A compiler may be wrong where its author never looked. The verdict is kept in the cache folder, for as long as GPU,
torch, Triton and kernels are the same; where it is bad, the plain form is used.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..direct import transformed
from ..errors import UserError
from ..files import cache, sources_of, write_atomically
from ..version import __version__

HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # then its kernels run on a CPU, for tests
CHOICE = "PALIMPSEST_TRUST"
CHOICES = {"all": True, "none": False}
FUSED = Path(__file__).with_name("fused")
VERDICTS: dict[tuple[str, torch.device], bool] = {}  # of this process


@dataclass(frozen=True)
class Place:
    """All that a verdict is about; where any of it is another one, the kernel is tried again."""

    kernel: str
    gpu: str
    capability: str
    torch: str
    triton: str
    palimpsest: str
    sources: str

    @property
    def file(self) -> Path | None:
        """Where its verdict is kept; None where there is no cache."""
        return self.kept_in("trust")

    def kept_in(self, shelf: str) -> Path | None:
        """Where something about it is kept."""
        name = sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        try:
            return cache() / shelf / f"{self.kernel}-{name}.json"
        except UserError:  # the core does without the library that finds it
            return None


def why_no_kernels() -> str | None:
    """Why there are no fused forms at all now, if so."""
    if not HAS_TRITON:
        return "the fused form needs Triton, which is not installed"
    if not torch.compiler.is_compiling() and transformed():
        return "torch.func transforms no fused form: leave the backend open, and it is a plain one"
    return None


def trusted(kernel: str, device: torch.device, asked: Callable[[], object] | None = None) -> bool:
    """Whether to use the fused form of a kernel on a GPU; the first time that this is asked, it is tried.

    What it will then be asked for, `asked` does, so that this is compiled beside what the trial needs.

    While torch.compile looks on or a CUDA graph is recorded, nothing is tried, and what is not known to be bad is used.
    """
    if torch.compiler.is_compiling():
        return trusted_unseen(kernel, device)
    verdict = VERDICTS.get((kernel, device))
    if verdict is not None:
        return verdict
    if torch.cuda.is_current_stream_capturing():
        return trusted_unseen(kernel, device)
    verdict = settle(kernel, device, asked)
    VERDICTS[kernel, device] = verdict
    return verdict


@torch.compiler.assume_constant_result
def trusted_unseen(kernel: str, device: torch.device) -> bool:
    known = VERDICTS.get((kernel, device))
    if known is None:
        known = chosen()
    if known is None:
        known = recall(place_of(kernel, device)) in (None, "")
    return known


def settle(kernel: str, device: torch.device, asked: Callable[[], object] | None) -> bool:
    choice = chosen()
    if choice is not None:
        return choice
    place = place_of(kernel, device)
    complaint = recall(place)
    if complaint is None:
        # in a thread of its own: the caller's autocast, no_grad, hooks and modes are not for us
        with ThreadPoolExecutor(1) as apart:
            complaint = apart.submit(tried, kernel, device, asked).result()
        remember(place, complaint)
    if complaint:
        warnings.warn(
            f"the fused {kernel} is not right on {place.gpu} with torch {place.torch} and Triton {place.triton} "
            f"({complaint}): the plain form is used; `palimpsest doctor` tries it again",
            stacklevel=3,
        )
    return not complaint


def chosen() -> bool | None:
    """What PALIMPSEST_TRUST says: "all" without a trial, or "none"."""
    choice = os.environ.get(CHOICE)
    if not choice:
        return None
    if choice not in CHOICES:
        known = " or ".join(CHOICES)
        raise UserError(f"{CHOICE} is {choice!r}, and may be {known}; unset it, and kernels are tried")
    return CHOICES[choice]


def trials(kernel: str, device: torch.device, asked: Callable[[], object] | None) -> Iterable[Any]:
    # by name, as the doors that are tried there ask us
    return import_module(".self_test", __package__).fused_trials(kernel, device, asked)


def tried(kernel: str, device: torch.device, asked: Callable[[], object] | None) -> str:
    try:
        return complaints(trials(kernel, device, asked))
    except Exception as error:  # whatever it is, nothing speaks for the kernel
        return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"


def complaints(trials: Iterable[Any]) -> str:
    return "; ".join(trial.complaint for trial in trials if not trial.passed)


def place_of(kernel: str, device: torch.device) -> Place:
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    about = properties.name, capability, torch.__version__, triton_version(), __version__
    return Place(kernel, *about, sources_of(FUSED))


def triton_version() -> str:
    import triton

    return triton.__version__


# ------------------------------------------------------------------------------------------------------ memory


def recall(place: Place) -> str | None:
    """What there was to complain of, "" where that was nothing; None where it is not known."""
    if place.file is None:
        return None
    try:
        complaint = json.loads(place.file.read_text())["complaint"]
    except (OSError, ValueError, KeyError, TypeError):  # never written, or broken: it is tried again
        return None
    return complaint if isinstance(complaint, str) else None


def remember(place: Place, complaint: str) -> None:
    if place.file is None:
        return
    try:
        place.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place.file, json.dumps(asdict(place) | {"complaint": complaint}, indent=2) + "\n")
    except OSError:  # then the next process tries again
        return


def remember_trials(device: torch.device, trials: Iterable[Any]) -> None:
    """What someone else has tried, for the processes to come."""
    fused = [trial for trial in trials if trial.backend == "fused" and trial.refused is None]
    for kernel in {trial.kernel for trial in fused}:
        found = complaints(trial for trial in fused if trial.kernel == kernel)
        remember(place_of(kernel, device), found)
