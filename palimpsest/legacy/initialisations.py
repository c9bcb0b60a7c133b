"""The numbers the originals start from."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention.positions import DistanceVectors, QueryBiases
from ..models.embeddings import AdaptiveTables
from ..models.heads import AdaptiveSoftmaxLayer
from ..models.initialisations import Initialisation
from ..spec import NotNegative


@dataclass(frozen=True)
class TransformerXLStart(Initialisation):
    """Transformer-XL's and lmtool's: all matrices, embeddings and query biases alike, norms near one."""

    std: NotNegative = 0.02
    projection_std: NotNegative = 0.01  # of the projections beside an adaptive embedding or softmax

    def apply(self, model: nn.Module, generator: torch.Generator) -> None:
        super().apply(model, generator)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.normal_(module.weight, 1.0, self.std, generator=generator)
            elif isinstance(module, QueryBiases | DistanceVectors):
                for name, parameter in module.named_parameters():
                    if name != "bias":
                        self.fill(parameter, generator)
            elif isinstance(module, AdaptiveTables | AdaptiveSoftmaxLayer):
                for projection in module.projections:
                    nn.init.normal_(projection.weight, std=self.projection_std, generator=generator)

    def fill_linear(self, module: nn.Linear, generator: torch.Generator) -> None:
        self.fill(module.weight, generator)

    def fill_embedding(self, module: nn.Embedding, generator: torch.Generator) -> None:
        self.fill(module.weight, generator)

    def fill(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=self.std, generator=generator)


@dataclass(frozen=True)
class TransformerXLUniformStart(TransformerXLStart):
    """As TransformerXLStart, but evenly between −reach and reach."""

    reach: float = 0.1

    def fill(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.uniform_(weight, -self.reach, self.reach, generator=generator)


@dataclass(frozen=True)
class PyTorchStart(Initialisation):
    """adaptive-span's: what PyTorch gives a module when it is made."""

    def apply(self, model: nn.Module, generator: torch.Generator) -> None:
        super().apply(model, generator)
        for module in model.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                self.fill(module.bias, module.in_features, generator)
            elif isinstance(module, nn.Embedding):  # again: a tied head has filled its table as a matrix
                self.fill_embedding(module, generator)

    def fill_linear(self, module: nn.Linear, generator: torch.Generator) -> None:
        self.fill(module.weight, module.in_features, generator)

    def fill_embedding(self, module: nn.Embedding, generator: torch.Generator) -> None:
        nn.init.normal_(module.weight, generator=generator)

    def fill(self, weight: Tensor, inputs: int, generator: torch.Generator) -> None:
        nn.init.uniform_(weight, -(inputs**-0.5), inputs**-0.5, generator=generator)
