"""What the doctor looks at. Everything is imported where it is needed: that it can be is part of the question."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..version import __version__

if TYPE_CHECKING:
    import torch

    from ..kernels.self_test import Trial

NEEDED = ("torch", "numpy", "safetensors", "einops", "tyro", "cattrs", "rich", "platformdirs")
OPTIONAL = {  # package: what it is for, and how to get it
    "matplotlib": ("figures", "pip install matplotlib"),
    "sentencepiece": ("sub-words", "pip install 'palimpsest[subwords]'"),
    "sacrebleu": ("BLEU and chrF of translations", "pip install 'palimpsest[translation]'"),
    "tensorboard": ("--tracking TensorBoard", "pip install 'palimpsest[tensorboard]'"),
    "wandb": ("--tracking WandB", "pip install 'palimpsest[wandb]'"),
    "trackio": ("--tracking Trackio", "pip install 'palimpsest[trackio]'"),
    "triton": ("fused kernels on a GPU", "pip install triton"),
    "ipykernel": ("notebooks", "pip install 'palimpsest[notebooks]'"),
    "mkdocs": ("the documentation's pages", "pip install 'palimpsest[docs]'"),
    "playwright": ("tests of pages in a browser", "pip install 'palimpsest[browser]'"),
}
COMPILERS = ("c++", "g++", "clang++", "cl")
TRY_COMPILE = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(8))"
PATIENCE = 180  # seconds for torch.compile
LITTLE = 2**30  # bytes: less than this may not be enough
INSTEAD = "the plain form is used, which is slower; report it with doctor --json"


class Verdict(StrEnum):
    FINE = "fine"
    ABSENT = "absent"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    name: str
    value: Any  # for programs
    said: str  # for people
    verdict: Verdict = Verdict.FINE
    remedy: str = ""


def examine(compile: bool) -> dict[str, list[Finding]]:
    """Everything that was looked at, by topic."""
    needed = [needed_package(name) for name in NEEDED]
    works = all(finding.verdict is Verdict.FINE for finding in needed)
    return {
        "versions": [*versions(), *needed],
        "devices": [*devices()] if works else [],
        "memory": [*memory()],
        "disk": [*disk()] if works else [],
        "compiler": [*compiler(compile)],
        "packages": [optional_package(name) for name in OPTIONAL],
        "self_test": [*self_tests()] if works else [],
    }


# ---------------------------------------------------------------------------------------------------- versions


def versions() -> Iterator[Finding]:
    system = platform.platform()
    yield Finding("system", system, system)
    yield Finding("python", platform.python_version(), platform.python_version())
    yield Finding("palimpsest", __version__, __version__)


def needed_package(name: str) -> Finding:
    failure = failure_to_import(name)
    if failure is not None:
        return Finding(name, None, failure, Verdict.FAILURE, f"pip install --force-reinstall {name}")
    return Finding(name, version_of(name), version_of(name))


def optional_package(name: str) -> Finding:
    use, command = OPTIONAL[name]
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, None, f"not installed; for {use}", Verdict.ABSENT, command)
    failure = failure_to_import(name)
    if failure is not None:
        return Finding(name, found, f"{failure}; for {use}", Verdict.WARNING, f"{command} --force-reinstall")
    return Finding(name, found, f"{found}; for {use}")


def failure_to_import(name: str) -> str | None:
    try:
        import_module(name)
    except Exception as error:  # a broken library raises what it likes
        return f"cannot be imported ({first_line(error)})"
    return None


def version_of(name: str) -> str:
    """As a package says itself, which tells torch's build; else as it was installed."""
    said = getattr(import_module(name), "__version__", None)
    if said is not None:
        return str(said)
    try:
        return version(name)
    except PackageNotFoundError:  # found on the path without having been installed
        return "unknown"


# ----------------------------------------------------------------------------------------------------- devices


def devices() -> Iterator[Finding]:
    import torch

    from ..experiment.sweep import cores
    from ..world import processor_name

    facts = {"processor": processor_name(), "cores": cores(), "threads": torch.get_num_threads()}
    said = f"{facts['processor']}; cores to use: {facts['cores']}, threads: {facts['threads']}"
    yield Finding("cpu", facts, said)
    for number in range(torch.cuda.device_count()):
        yield gpu(torch.device("cuda", number))
        yield from settings_on(torch.device("cuda", number))
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        said = f"there is an NVIDIA driver, but torch {torch.__version__} cannot use it"
        remedy = "install a torch that is made for this driver's CUDA: pytorch.org/get-started"
        yield Finding("cuda", None, said, Verdict.WARNING, remedy)
    if torch.backends.mps.is_available():
        yield Finding("mps", {}, "Apple's GPU; use it with --device mps")


def gpu(device: "torch.device") -> Finding:
    import torch

    try:
        found = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        said = f"cannot be used ({first_line(error)})"
        return Finding(str(device), None, said, Verdict.FAILURE, "train with --device cpu, or see what else uses it")
    facts = {"name": found.name, "capability": f"{found.major}.{found.minor}", "free": free, "total": total}
    said = f"{found.name}; capability {facts['capability']}; {share(free, total)}"
    return Finding(str(device), facts, said, *shortage(free, "other programs may be using it; a smaller --batch helps"))


def settings_on(device: "torch.device") -> Iterator[Finding]:
    """Of the fused kernels, where there are any: whether they are those that are shipped."""
    from ..kernels.fused.tuned import BROKEN, KERNELS, read
    from ..kernels.trust import HAS_TRITON

    if not HAS_TRITON:
        return
    name = f"{device}, settings"
    try:
        counts = {kernel: len(read(kernel, device)) for kernel in KERNELS}
    except (*BROKEN, RuntimeError) as error:
        said = f"those that were found by tuning cannot be read ({first_line(error)}); the shipped ones are used"
        yield Finding(name, None, said, Verdict.WARNING, "palimpsest tune --forget")
        return
    found = ", ".join(f"{count} of {kernel}" for kernel, count in counts.items() if count)
    said = f"found by tuning for {found}; else as shipped" if found else "as shipped; `palimpsest tune` may find faster"
    yield Finding(name, counts, said)


def here() -> "list[torch.device]":
    """Every device of this machine that training could run on."""
    import torch

    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [torch.device("cpu"), *gpus, *([torch.device("mps")] if torch.backends.mps.is_available() else [])]


# ------------------------------------------------------------------------------------------- memory and disk


def memory() -> Iterator[Finding]:
    free, total = memory_of_machine()
    limit = contained("memory.max")
    if limit is not None and total is not None and limit < total:  # a container may have less than the machine
        free, total = min(free or limit, limit - (contained("memory.current") or 0)), limit
    if total is None:
        yield Finding("memory", None, "cannot be told on this system", Verdict.ABSENT)
    elif free is None:
        yield Finding("memory", {"free": None, "total": total}, f"{size(total)} in all")
    else:
        remedy = "close other programs, or train with a smaller --batch"
        yield Finding("memory", {"free": free, "total": total}, share(free, total), *shortage(free, remedy))


def memory_of_machine() -> tuple[int | None, int | None]:
    """Bytes that programs could still have, and all there are."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return tuple(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))  # pyright: ignore
    except (OSError, KeyError, ValueError):
        pass
    try:
        return None, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None, None


def contained(name: str) -> int | None:
    """A number that Linux keeps for the container we are in; None where there is no limit."""
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):
        return None


def disk() -> Iterator[Finding]:
    from ..files import cache

    try:
        elsewhere = "set PALIMPSEST_CACHE to a folder that can be written; until then every run reads its text again"
        yield folder("cache", cache(), Verdict.WARNING, elsewhere)
    except UserError as error:
        yield Finding("cache", None, str(error), Verdict.WARNING, "pip install platformdirs")
    yield folder("runs", Path("runs"), Verdict.FAILURE, "go to a folder of yours, or train with --folder elsewhere")


def folder(name: str, path: Path, refused: Verdict, remedy: str) -> Finding:
    """Its room, and whether it could be written; nothing is left behind."""
    standing = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.exists(parent))
    room = shutil.disk_usage(standing)
    facts = {"folder": str(path), "free": room.free, "total": room.total}
    try:
        with tempfile.TemporaryFile(dir=standing) as file:
            file.write(b"palimpsest")
    except OSError as error:
        said = f"{path} cannot be written ({error.strerror})"
        return Finding(name, facts | {"writable": False}, said, refused, remedy)
    said = f"{path}; {share(room.free, room.total)}"
    return Finding(name, facts | {"writable": True}, said, *shortage(room.free, "make room before a long run"))


def shortage(free: int, remedy: str) -> tuple[Verdict, str]:
    return (Verdict.WARNING, remedy) if free < LITTLE else (Verdict.FINE, "")


# ---------------------------------------------------------------------------------------------------- compiler


def compiler(attempt: bool) -> Iterator[Finding]:
    asked = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [asked] if asked else COMPILERS)), None)
    if found is None:
        remedy = "xcode-select --install" if sys.platform == "darwin" else "install g++ with your system's packages"
        yield Finding("C++", None, f"no {asked or 'compiler'}; for torch.compile", Verdict.ABSENT, remedy)
    else:
        yield Finding("C++", found, f"{found}; for torch.compile")
    if attempt:
        yield compiled()


def compiled() -> Finding:
    """In a process of its own: it may hang, and it may bring us down."""
    try:
        subprocess.run(
            [sys.executable, "-c", TRY_COMPILE], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except subprocess.TimeoutExpired:
        reason = f"nothing came of it in {PATIENCE} seconds"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
    else:
        return Finding("torch.compile", True, "works")
    return Finding("torch.compile", False, reason, Verdict.WARNING, "nothing in palimpsest needs it")


# --------------------------------------------------------------------------------------------------- self-test


def self_tests() -> Iterator[Finding]:
    from ..kernels.self_test import self_test
    from ..kernels.trust import remember_trials

    for device in here():
        trials = sorted(self_test(device), key=form)
        if device.type == "cuda":
            remember_trials(device, trials)
        yield from (judge([*group]) for _, group in groupby(trials, key=form))


def form(trial: "Trial") -> tuple[str, ...]:
    named = (trial.kernel, trial.backend, trial.device)
    return named if trial.dtype == "float32" else (*named, trial.dtype)


def judge(trials: "list[Trial]") -> Finding:
    """One form on one device, whatever it was given."""
    from ..world import pick_device

    name, value = ", ".join(form(trials[0])), [asdict(trial) | {"passed": trial.passed} for trial in trials]
    failed = [trial for trial in trials if not trial.passed]
    if failed:
        fused, device = trials[0].backend == "fused", trials[0].device
        needed = not fused and (device == "cpu" or device.startswith(pick_device("auto").type))
        verdict = Verdict.FAILURE if needed else Verdict.WARNING
        said = "; ".join(trial.complaint for trial in failed)
        return Finding(name, value, said, verdict, INSTEAD if fused else remedy_for(device))
    done = [trial for trial in trials if trial.refused is None]
    if not done:
        return Finding(name, value, f"not for this device: {trials[0].refused}", Verdict.ABSENT)
    error = max(trial.error or 0.0 for trial in done)
    return Finding(name, value, f"off by at most {error:.0e}, {total_time(done)}{exceptions(trials)}")


def remedy_for(device: str) -> str:
    if device == "cpu":
        return "install torch anew (pip install --force-reinstall torch); if it stays, report it with doctor --json"
    return "train with --device cpu, and report it with doctor --json"


def total_time(trials: "Iterable[Trial]") -> str:
    return f"{sum(trial.milliseconds or 0.0 for trial in trials):.0f} ms"


def exceptions(trials: "Iterable[Trial]") -> str:
    names = ", ".join(trial.case for trial in trials if trial.refused is not None)
    return f"; not for {names}" if names else ""


# ------------------------------------------------------------------------------------------------------- words


def share(free: int, total: int) -> str:
    return f"{size(free)} free of {size(total)}"


def size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
