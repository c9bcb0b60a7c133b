"""Embeddings: tokens become hidden states."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..attention.positions import AddedPositions, NoPositions
from ..errors import UserError
from ..spec import Fraction, Spec
from .dropout import Dropout


class Embedding(Spec):
    positions: AddedPositions
    dropout: float

    def clamping(self, clamp: int) -> "Embedding":
        """The same, with positions beyond `clamp` looking like it."""
        return replace(self, positions=self.positions.clamping(clamp))  # pyright: ignore[reportArgumentType]

    def build(self, tokens: int, width: int) -> "EmbeddingModule":
        raise NotImplementedError


class EmbeddingModule(nn.Module):
    """From tokens `b t` at the places `b t` to `b t d`; a tied head shares tables and projections."""

    def __init__(self, spec: Embedding, width: int, scale: float):
        super().__init__()
        self.spec = spec
        self.scale = scale
        self.positions = spec.positions.build(width, heads=1, head_width=width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        return self.dropout(self.positions.add(self.look_up(tokens) * self.scale, places))

    def look_up(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def shared_tables(self) -> list[nn.Embedding]:
        raise NotImplementedError

    def shared_projections(self) -> list[nn.Linear]:
        return []


@dataclass(frozen=True)
class TokenEmbedding(Embedding):
    """One learned vector for each token, multiplied by `scale`; positions may be added once, here."""

    scale: float = 1.0
    positions: AddedPositions = NoPositions()
    dropout: Fraction = 0.0

    def build(self, tokens: int, width: int) -> "TokenTable":
        return TokenTable(self, tokens, width)


class TokenTable(EmbeddingModule):
    def __init__(self, spec: TokenEmbedding, tokens: int, width: int):
        super().__init__(spec, width, spec.scale)
        self.table = nn.Embedding(tokens, width)

    def look_up(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)

    def shared_tables(self) -> list[nn.Embedding]:
        return [self.table]


@dataclass(frozen=True)
class AdaptiveEmbedding(Embedding):
    """Shorter vectors for rarer tokens: the vocabulary, frequent tokens first, is cut into clusters.

    The vectors of cluster i have inner // divisor**i numbers and are projected to the model's width. With a divisor of
    one there is one table, whatever the cut-offs, and a projection only where `inner` is not the width.
    """

    cutoffs: tuple[int, ...] = ()  # tokens at which a new cluster begins; those beyond the vocabulary are dropped
    divisor: int = 1
    inner: int | None = None  # numbers in a vector of the first cluster; by default the width
    scale: float | None = None  # by default √width
    positions: AddedPositions = NoPositions()
    dropout: Fraction = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_clusters(self.cutoffs, self.divisor, self.inner)

    def build(self, tokens: int, width: int) -> "AdaptiveTables":
        return AdaptiveTables(self, tokens, width)


class AdaptiveTables(EmbeddingModule):
    """`tables.i` is `size inner`, `projections.i` is `width inner`."""

    narrowest: ClassVar[int] = 1  # numbers that a vector must have
    tables: Sequence[nn.Embedding]
    projections: Sequence[nn.Linear]

    def __init__(self, spec: AdaptiveEmbedding, tokens: int, width: int):
        super().__init__(spec, width, width**0.5 if spec.scale is None else spec.scale)
        cutoffs = spec.cutoffs if spec.divisor > 1 else ()
        self.vocabulary = Clusters(cutoffs, spec.divisor, spec.inner, tokens, width, self.narrowest)
        tables = (nn.Embedding(size, inner) for size, inner in self.vocabulary.shapes)
        projections = (nn.Linear(inner, width, bias=False) for inner in self.vocabulary.projected)
        self.tables = nn.ModuleList(tables)  # pyright: ignore[reportAttributeAccessIssue]
        self.projections = nn.ModuleList(projections)  # pyright: ignore[reportAttributeAccessIssue]

    def look_up(self, tokens: Tensor) -> Tensor:
        if len(self.tables) == 1:  # nothing to choose from
            return self.vectors(0, tokens)
        cluster, found = self.vocabulary.of(tokens), torch.zeros((), device=tokens.device)
        for number in self.looked_into(cluster):
            vectors = self.vectors(number, self.vocabulary.within(number, tokens))
            found = vectors.where((cluster == number)[..., None], found)
        return found

    def looked_into(self, cluster: Tensor) -> Iterable[int]:
        """All tables for every token, whichever it is in: to look for less is to wait for the device."""
        return range(len(self.tables))

    def vectors(self, cluster: int, within: Tensor) -> Tensor:
        vectors = self.tables[cluster](within)
        return self.projections[cluster](vectors) if self.projections else vectors

    def shared_tables(self) -> list[nn.Embedding]:
        return list(self.tables)

    def shared_projections(self) -> list[nn.Linear]:
        return list(self.projections)


class Clusters:
    """A vocabulary in runs of tokens whose vectors become shorter: what adaptive embeddings and heads agree on."""

    def __init__(
        self, cutoffs: tuple[int, ...], divisor: int, inner: int | None, tokens: int, width: int, narrowest: int
    ):
        inner = width if inner is None else inner
        self.starts = [0, *(start for start in cutoffs if start < tokens)]
        self.sizes = [end - start for start, end in pairwise([*self.starts, tokens])]
        self.widths = [inner // divisor**cluster for cluster in range(len(self.sizes))]
        self.projected = self.widths if divisor > 1 or inner != width else []  # those of clusters with a projection
        if min(self.widths) < narrowest:
            raise UserError(
                f"vectors of {inner} numbers, divided by {divisor} from cluster to cluster, are used up before the "
                f"last of {len(self.sizes)} clusters: use fewer cutoffs, a smaller divisor or a larger inner width"
            )

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Tokens and numbers of each cluster's vectors."""
        return list(zip(self.sizes, self.widths, strict=True))

    def of(self, tokens: Tensor) -> Tensor:
        """The number of the cluster each token is in."""
        return sum(((tokens >= start).long() for start in self.starts[1:]), torch.zeros_like(tokens))

    def within(self, cluster: int, tokens: Tensor) -> Tensor:
        """Tokens counted from the start of a cluster; those of others become one of its own."""
        return (tokens - self.starts[cluster]).clamp(0, self.sizes[cluster] - 1)


def check_clusters(cutoffs: tuple[int, ...], divisor: int, inner: int | None) -> None:
    if any(start >= end for start, end in pairwise((0, *cutoffs))):
        raise UserError(f"cutoffs ascend from above zero; found {', '.join(map(str, cutoffs))}")
    if divisor < 1:
        raise UserError(f"the divisor of an adaptive vocabulary is at least one; found {divisor}")
    if inner is not None and inner < 1:
        raise UserError(f"the vectors of an adaptive vocabulary have at least one number; found inner {inner}")
