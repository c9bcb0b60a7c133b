"""Functions of torch with gradients of their own, called without what torch does around them at every call."""

from collections.abc import Callable
from typing import Any

import torch


def direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Its apply, without what that does before: it is for transforms of functions, of which there are none then."""
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def transformed() -> bool:
    """Whether functions are transformed: torch then has to see whatever is done."""
    return torch._C._are_functorch_transforms_active()
