"""In which numbers the plain forms compute, whatever the inputs are."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: str) -> AbstractContextManager:
    """Autocast would round the page at every product."""
    return torch.autocast(device, enabled=False) if rounds(device) else nullcontext()


@torch.compiler.assume_constant_result  # torch 2.11 cannot follow the question
def rounds(device: str) -> bool:
    """Whether there is an autocast for such devices."""
    return torch.amp.is_autocast_available(device)


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """A page is written thousands of times: half precision would lose what is added."""
    return torch.promote_types(dtype, torch.float32)
