"""Adagrad, with a clip that shortens the step and not what is remembered of the gradient."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class ClippedAdagrad(torch.optim.Optimizer):
    """Where a tensor's gradient is longer than `clip`, its rate is lowered in proportion."""

    def __init__(
        self,
        parameters: Iterable[Tensor] | list[dict[str, Any]],
        lr: float,
        clip: float | None = None,
        epsilon: float = 1e-10,
        rate_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial: float = 0.0,
    ):
        defaults = {"lr": lr, "clip": clip, "epsilon": epsilon, "rate_decay": rate_decay, "initial": initial}
        super().__init__(parameters, {**defaults, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.step_one(parameter, parameter.grad, group)

    def step_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, sum=torch.full_like(parameter, group["initial"]))
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state["sum"].addcmul_(gradient, gradient)
        rate = group["lr"] / (1 + state["step"] * group["rate_decay"])
        state["step"] += 1
        update = gradient / state["sum"].sqrt().add_(group["epsilon"])
        if group["clip"] is not None:
            update *= shortening(gradient, group["clip"])
        parameter.sub_(update, alpha=rate)


def shortening(gradient: Tensor, clip: float) -> Tensor:
    """A tensor, so that the step does not wait for the device."""
    norm = torch.linalg.vector_norm(gradient)
    return torch.where(norm > clip, clip / (norm + 1e-10), torch.ones_like(norm))
