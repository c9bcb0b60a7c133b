"""Adagrad, with a clip that shortens the step and not what is remembered of the gradient."""

# pyright: reportPrivateImportUsage=false

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError


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
            alike: dict[int, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(step=0, sum=torch.full_like(parameter, group["initial"]))
                alike[state["step"]].append(parameter)
                state["step"] += 1
            for age, parameters in alike.items():
                self.step_together(parameters, age, group)

    def step_together(self, parameters: list[Tensor], age: int, group: dict[str, Any]) -> None:
        """Parameters that have made as many steps, so many."""
        gradients: list[Tensor] = [p.grad for p in parameters]  # pyright: ignore[reportAssignmentType]
        sums = [self.state[p]["sum"] for p in parameters]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        torch._foreach_addcmul_(sums, gradients, gradients)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, group["epsilon"])
        updates = torch._foreach_div(gradients, roots)
        if group["clip"] is not None:
            torch._foreach_mul_(updates, shortenings(gradients, group["clip"]))
        rate = group["lr"]
        if isinstance(rate, Tensor):
            if group["rate_decay"]:
                raise UserError("a rate that Adagrad lowers by itself cannot be recorded: add --no-replay")
            torch._foreach_mul_(updates, rate)
            rate = 1.0
        torch._foreach_sub_(parameters, updates, alpha=rate / (1 + age * group["rate_decay"]))


def shortenings(gradients: list[Tensor], clip: float) -> list[Tensor]:
    """Tensors, so that the step does not wait for the device."""
    norms = torch.stack(torch._foreach_norm(gradients))
    return list(torch.where(norms > clip, clip / (norms + 1e-10), torch.ones_like(norms)).unbind())
