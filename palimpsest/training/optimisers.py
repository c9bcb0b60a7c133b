"""Optimisers: how gradients become steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..shards import by_kind, gathered, is_share, shared_like
from ..spec import Fraction, NotNegative, Positive, Spec
from .adagrad import ClippedAdagrad
from .muon import OrthogonalMomentum


class Optimiser(Spec):
    rate: float
    weight_decay: float

    def build(self, model: nn.Module) -> "Stepper":
        return Stepper(self.over(decayed_and_not(model.parameters(), self.weight_decay)))

    def refuse(self, model: nn.Module) -> None:
        """Say, before anything is written, what torch does not take."""
        try:
            self.build(model)
        except ValueError as error:
            raise UserError(f"there is no such {type(self).__name__} ({error}): choose another value") from error

    def goes_on_from(self, other: "Optimiser") -> bool:
        """Whether it can do with what another remembers of the gradients."""
        return type(other) is type(self)

    def over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """torch's own optimiser over groups of parameters, each with its weight decay."""
        raise NotImplementedError


class Stepper:
    """One or several torch optimisers that step together, at a share of their rates."""

    def __init__(self, *optimisers: torch.optim.Optimizer):
        self.optimisers = optimisers
        for group in self.groups():
            group["whole_rate"] = group["lr"]

    def groups(self) -> Iterable[dict[str, Any]]:
        return (group for optimiser in self.optimisers for group in optimiser.param_groups)

    def set_share(self, share: float) -> None:
        """Of the rates, from the next step on."""
        for group in self.groups():
            rate = group["whole_rate"] * share
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def hold_rates(self, device: torch.device) -> None:
        """On the device, where a recorded step finds the one that holds now."""
        for group in self.groups():
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
            if "capturable" in group:
                group["capturable"] = True

    def step(self) -> None:
        for optimiser in self.optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimiser.state_dict() for optimiser in self.optimisers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """What was remembered of the gradients; rates and the like stay what this run asks for."""
        settings = [{name: group[name] for name in group if name != "params"} for group in self.groups()]
        try:
            for optimiser, state in zip(self.optimisers, states, strict=True):
                optimiser.load_state_dict(state)
        except ValueError as error:
            raise UserError(f"what another optimiser remembers does not fit this one ({error})") from error
        for group, asked in zip(self.groups(), settings, strict=True):
            group.update(asked)
        for optimiser in self.optimisers:
            for parameter, memory in optimiser.state.items():
                optimiser.state[parameter] = {name: placed(part, parameter) for name, part in memory.items()}


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam; weight decay, if any, is added to the gradient."""

    rate: NotNegative = 1e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0

    def goes_on_from(self, other: Optimiser) -> bool:
        return isinstance(other, Adam | AdamW)

    def over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, self.rate, (self.beta1, self.beta2), self.epsilon, fused=on_gpu(groups))


@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam whose weight decay acts on the matrices themselves."""

    rate: NotNegative = 1e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: NotNegative = 1e-8
    weight_decay: NotNegative = 0.1

    goes_on_from = Adam.goes_on_from

    def over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, self.rate, (self.beta1, self.beta2), self.epsilon, fused=on_gpu(groups))


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    rate: NotNegative = 0.1
    momentum: Fraction = 0.0
    weight_decay: NotNegative = 0.0

    def over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, self.rate, self.momentum, fused=on_gpu(groups))


@dataclass(frozen=True)
class Adagrad(Optimiser):
    """Adagrad; a clip shortens the step of each tensor on its own, and Run.clip is then better None."""

    rate: NotNegative = 0.01
    clip: Positive | None = None  # largest norm of a tensor's gradient that is stepped along at the whole rate
    epsilon: NotNegative = 1e-10
    rate_decay: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    initial: NotNegative = 0.0  # what the sums of squares begin with

    def over(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return ClippedAdagrad(groups, self.rate, self.clip, self.epsilon, self.rate_decay, initial=self.initial)


@dataclass(frozen=True)
class Muon(Optimiser):
    """Orthogonalised momentum for the hidden matrices, AdamW for everything else."""

    rate: NotNegative = 0.02  # of the hidden matrices
    momentum: Fraction = 0.95
    adam_rate: NotNegative = 3e-3  # of embeddings, head, norms, biases
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0

    def build(self, model: nn.Module) -> Stepper:
        matrices = list(model.hidden_matrices())  # pyright: ignore[reportCallIssue]
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        groups, betas = [{"params": kind} for kind in by_kind(others)], (self.beta1, self.beta2)
        return Stepper(
            OrthogonalMomentum(matrices, self.rate, self.momentum, self.weight_decay),
            torch.optim.AdamW(groups, self.adam_rate, betas, self.epsilon, weight_decay=0.0, fused=on_gpu(groups)),
        )


def on_gpu(groups: list[dict[str, Any]]) -> bool:
    """Where one launch for all parameters is many times faster than one for each."""
    return all(parameter.is_cuda for group in groups for parameter in group["params"])


def placed(memory: Any, parameter: Tensor) -> Any:
    """What is remembered of each number of a parameter is whole or a share, as the parameter is."""
    if not isinstance(memory, Tensor) or memory.shape != parameter.shape or is_share(memory) == is_share(parameter):
        return memory
    return shared_like(gathered(memory).to(parameter.device), parameter)


def decayed_and_not(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and other single numbers do not. Whole parameters and shares are apart."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    decays = ((matrices, weight_decay), (others, 0.0))
    return [{"params": kind, "weight_decay": decay} for some, decay in decays for kind in by_kind(some)]
