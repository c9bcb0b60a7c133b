"""Averages of the weights: smoother than the newest ones, and what a run validates, saves and hands on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..shards import local
from ..spec import Fraction, Spec


class Average(Spec):
    def share(self, step: int) -> float:
        """Of the newest weights in the average; the first ones, of step 1, are all there is."""
        raise NotImplementedError

    def build(self, model: nn.Module) -> "AveragedWeights":
        return AveragedWeights(self, model)


@dataclass(frozen=True)
class ExponentialAverage(Average):
    """Weights fade by the same share at each step; those before the first do not count."""

    decay: Fraction = 0.999  # what a step leaves of the average so far

    def share(self, step: int) -> float:
        return (1 - self.decay) / (1 - self.decay**step)  # corrected as Adam corrects its means


class AveragedWeights:
    """Of parameters only: buffers are the model's own, as they are."""

    def __init__(self, spec: Average, model: nn.Module):
        self.spec = spec
        self.parameters: list[Tensor] = list(model.parameters())
        self.restart()

    def newest(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]

    def restart(self) -> None:
        """Forget all weights but those that the model has now."""
        self.means = self.newest()

    def resume(self, newest: Sequence[Tensor]) -> None:
        """The model has the average, as it was saved, and becomes what it was in training."""
        self.restart()
        self.put(newest)

    @torch.no_grad()
    def update(self, step: int) -> None:
        means, newest = (list(map(local, weights)) for weights in (self.means, self.parameters))
        torch._foreach_lerp_(means, newest, self.spec.share(step))  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """For as long as it lasts, the model's weights are the average."""
        newest = self.newest()
        self.put(self.means)
        try:
            yield
        finally:
            self.put(newest)

    @torch.no_grad()
    def put(self, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(self.parameters, weights, strict=True):
            parameter.copy_(weight)
