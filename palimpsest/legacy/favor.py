"""FAVOR+ as lmtool-fwms and fast-weight-transformers draw it."""

from dataclasses import dataclass

import torch

from ..memory.feature_maps import Favor, FavorFeatures


@dataclass(frozen=True)
class TransposedFavor(Favor):
    """Favor with directions orthogonal in blocks of the input's numbers, instead of among themselves."""

    def build(self, head_width: int) -> "TransposedFavorFeatures":
        return TransposedFavorFeatures(self, head_width)


class TransposedFavorFeatures(FavorFeatures):
    def initialise(self, generator: torch.Generator) -> None:
        """Rows from orthogonal squares as wide as there are directions, each as long as a Gaussian vector is."""
        width, directions = self.matrix.shape
        blocks = []
        for _ in range(0, width, directions):
            square = torch.randn(directions, directions, generator=generator, dtype=torch.float64)
            blocks.append(torch.linalg.qr(square).Q.T)
        lengths = torch.randn(width, directions, generator=generator, dtype=torch.float64).norm(dim=1)
        with torch.no_grad():
            self.matrix.copy_(torch.cat(blocks)[:width] * lengths[:, None])
