"""In which numbers the plain forms compute, whatever the inputs are."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: str) -> AbstractContextManager:
    """Autocast would round the page at every product."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """A page is written thousands of times: half precision would lose what is added."""
    return torch.promote_types(dtype, torch.float32)
