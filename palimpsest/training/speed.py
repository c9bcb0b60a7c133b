"""How much of the device a run uses: share of the operations it could do, and memory."""

import re
import sys

import torch
from torch import nn

# dense products of half precision in a second, as the makers say; the first that a device's name begins with counts
FASTEST = {
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA A10G": 70e12,
    "NVIDIA A10": 125e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L4": 121e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
}
PASSES = 3  # forward, and back to what was read and to the weights
GIBI = 2**30


class Gauge:
    def __init__(self, model: nn.Module, device: torch.device):
        self.device = device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        fastest = next((speed for known, speed in FASTEST.items() if re.match(rf"{known}\b", name)), None)
        self.share = fastest and 2 * PASSES * model.multiplied() / fastest  # pyright: ignore (of a token in a second)

    def read(self, tokens_per_second: float) -> dict[str, float]:
        """`mfu`, where the device's speed is known, and `memory`, the largest so far, in GiB."""
        used = {} if self.share is None else {"mfu": self.share * tokens_per_second}
        memory = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else of_process()
        return used if memory is None else used | {"memory": memory / GIBI}


def of_process() -> int | None:
    """Bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
