"""Embeddings: tokens become hidden states."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..attention.positions import AddedPositions, NoPositions
from ..spec import Spec


class Embedding(Spec):
    def build(self, tokens: int, width: int) -> "EmbeddingModule":
        raise NotImplementedError


class EmbeddingModule(nn.Module):
    """From tokens `b t` at the places `b t` to `b t d`; a tied head shares `table`."""

    table: nn.Embedding


@dataclass(frozen=True)
class TokenEmbedding(Embedding):
    """One learned vector for each token, multiplied by `scale`; positions may be added once, here."""

    scale: float = 1.0
    positions: AddedPositions = NoPositions()
    dropout: float = 0.0

    def build(self, tokens: int, width: int) -> "TokenTable":
        return TokenTable(self, tokens, width)


class TokenTable(EmbeddingModule):
    def __init__(self, spec: TokenEmbedding, tokens: int, width: int):
        super().__init__()
        self.spec = spec
        spec.positions.check(width, width)
        self.table = nn.Embedding(tokens, width)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        return self.dropout(self.spec.positions.add(self.table(tokens) * self.spec.scale, places))
