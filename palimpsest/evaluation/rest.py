"""A model at rest: nothing of it is dropped, whoever looks at it in the middle of its training."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Afterwards every part is at work again that was, also where something went wrong."""
    at_work = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in at_work:
            part.training = True
