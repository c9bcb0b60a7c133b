"""Initialisations: the numbers a model starts from.

A module that knows better what its own parameters should be says so in `initialise(generator)`.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ..spec import NotNegative, Spec


class Initialisation(Spec):
    def apply(self, model: nn.Module, generator: torch.Generator) -> None:
        """Fill every parameter; chance comes from the generator alone."""
        for module in model.modules():
            if hasattr(module, "initialise"):
                module.initialise(generator)  # pyright: ignore[reportCallIssue]
            elif isinstance(module, nn.Linear):
                self.fill_linear(module, generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                self.fill_embedding(module, generator)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()

    def fill_linear(self, module: nn.Linear, generator: torch.Generator) -> None:
        raise NotImplementedError

    def fill_embedding(self, module: nn.Embedding, generator: torch.Generator) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Normal(Initialisation):
    """Every matrix and embedding from one normal distribution, as in Transformer-XL and GPT-2."""

    std: NotNegative = 0.02

    def fill_linear(self, module: nn.Linear, generator: torch.Generator) -> None:
        nn.init.normal_(module.weight, std=self.std, generator=generator)

    def fill_embedding(self, module: nn.Embedding, generator: torch.Generator) -> None:
        nn.init.normal_(module.weight, std=self.std, generator=generator)


@dataclass(frozen=True)
class Scaled(Initialisation):
    """Matrices by their fan-in, so that numbers keep their size at any width; embeddings, unless tied, of unit size."""

    gain: float = 1.0

    def fill_linear(self, module: nn.Linear, generator: torch.Generator) -> None:
        nn.init.normal_(module.weight, std=self.gain * module.in_features**-0.5, generator=generator)

    def fill_embedding(self, module: nn.Embedding, generator: torch.Generator) -> None:
        nn.init.normal_(module.weight, generator=generator)


@dataclass(frozen=True)
class SilentStart(Scaled):
    """As Scaled, but whatever a block adds starts at zero: the first step is taken by embedding and head alone."""

    def apply(self, model: nn.Module, generator: torch.Generator) -> None:
        super().apply(model, generator)
        for name, parameter in model.named_parameters():
            if name.endswith(("mixer.out.weight", "attention.out.weight", "feed_forward.down.weight")):
                nn.init.zeros_(parameter)
