"""The machine a run is on. The only place that picks devices, threads and, later, other processes."""

import os
import platform
from dataclasses import dataclass

import torch

from .errors import UserError
from .version import __version__


@dataclass(frozen=True)
class World:
    device: torch.device

    @classmethod
    def enter(cls, device: str = "auto", threads: int | None = None) -> "World":
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(pick_device(device))

    def describe(self) -> dict[str, str | int]:
        """What a reader of the numbers wants to know about the machine they came from."""
        return {
            "palimpsest": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device),
            "processor": processor_name(),
            "cores": os.cpu_count() or 0,
            "threads": torch.get_num_threads(),
        }


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the device {name!r} cannot be used ({reason}); --device auto takes what is there") from error
    return device


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
