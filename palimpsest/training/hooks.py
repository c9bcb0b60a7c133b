"""Methods that a module of a model may have for whoever trains it; they are called wherever they are found.

penalty() -> Tensor                    what is added to the loss of a batch, and not to the nats that are reported
after_step() -> None                   called after each step of the optimiser
gauges() -> dict[str, list[float]]     what is to be seen of it in the log
shape() -> tuple[int, ...]             whole numbers, other than those of the batch, that shapes in a step depend on
"""

from collections.abc import Callable
from typing import Any

from torch import nn


def hooks(model: nn.Module, name: str) -> list[Callable[[], Any]]:
    """The methods of this name among the model's modules; one that has several parents counts once."""
    found = (getattr(module, name, None) for module in model.modules())
    return [method for method in found if callable(method)]
