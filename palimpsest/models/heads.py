"""Heads: hidden states become nats. A head owns its softmax, so that no one else ever sees all logits at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..kernels.cross_entropy import linear_cross_entropy, logits_of
from ..spec import Fraction, Size, Spec
from .dropout import Dropout
from .embeddings import Clusters, EmbeddingModule, check_clusters

Matrix = tuple[Tensor, Tensor]  # a weight and its bias


class Head(Spec):
    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "HeadModule":
        raise NotImplementedError


class HeadModule(nn.Module):
    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `b t d`, targets `b t` -> nats `b t`"""
        raise NotImplementedError

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """hidden `b d` -> `b tokens`"""
        raise NotImplementedError

    def multiplied(self) -> int:
        """How many numbers every hidden state is multiplied by."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.ndim == 2)

    def in_training(self, share: float) -> float:
        """What is added to the loss is nothing where nobody learns."""
        return share if self.training else 0.0


@dataclass(frozen=True)
class SoftmaxHead(Head):
    """A softmax over the whole vocabulary, from a matrix of its own or from the embedding's."""

    tied: bool = False  # share the matrix of the embedding
    bias: bool = False
    dropout: Fraction = 0.0  # of the hidden states
    chunk: Size | None = None  # logits held at once, where any are; by default 2**22, on a GPU 2**28
    z_loss: float = 0.0  # what the square of a log-partition adds to the loss; nats do not show it
    smoothing: float = 0.0  # share of each target that all tokens have in training; nats do not show it

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.smoothing < 1:
            raise UserError(f"targets are smoothed by a share from 0 up to and without 1; found {self.smoothing}")

    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "SoftmaxLayer":
        return SoftmaxLayer(self, tokens, width, embedding)


class SoftmaxLayer(HeadModule):
    def __init__(self, spec: SoftmaxHead, tokens: int, width: int, embedding: EmbeddingModule):
        super().__init__()
        self.spec = spec
        self.dropout = Dropout(spec.dropout)
        self.project = nn.Linear(width, tokens, bias=spec.bias)
        if spec.tied:
            (self.project.weight,) = shared("tables", embedding.shared_tables(), [(tokens, width)])

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        nats = linear_cross_entropy(
            self.dropout(hidden).flatten(0, 1),
            self.project.weight,
            self.project.bias,
            targets.flatten(),
            z_loss=self.in_training(self.spec.z_loss),
            smoothing=self.in_training(self.spec.smoothing),
            chunk=self.spec.chunk,
        )
        return nats.view_as(targets)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return self.logits(self.dropout(hidden)).log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        return logits_of(hidden, self.project.weight, self.project.bias)


@dataclass(frozen=True)
class AdaptiveSoftmax(Head):
    """A softmax over the frequent tokens and the clusters of rarer ones, then one within the cluster.

    The vocabulary is cut as by an AdaptiveEmbedding. Hidden states are projected to the width of a cluster's vectors;
    with a divisor of one and no other `inner` than the model's width there are no projections, tied or not.
    """

    cutoffs: tuple[int, ...] = ()  # tokens at which a new cluster begins; those beyond the vocabulary are dropped
    divisor: int = 1
    inner: int | None = None  # numbers in a vector of the first cluster; by default the width
    tied: bool = False  # share the tables of the embedding; biases are never shared
    tied_projections: tuple[int, ...] = ()  # clusters, counted from zero, that share the embedding's projection
    dropout: Fraction = 0.0  # of the hidden states
    chunk: Size | None = None  # logits held at once, where any are; by default 2**22, on a GPU 2**28
    z_loss: float = 0.0  # what the square of a log-partition adds to the loss; nats do not show it

    def __post_init__(self):
        super().__post_init__()
        check_clusters(self.cutoffs, self.divisor, self.inner)
        if not set(self.tied_projections) <= set(range(len(self.cutoffs) + 1)):
            found = ", ".join(map(str, self.tied_projections))
            raise UserError(f"{len(self.cutoffs)} cutoffs make clusters 0 to {len(self.cutoffs)}; found {found} to tie")

    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "AdaptiveSoftmaxLayer":
        return AdaptiveSoftmaxLayer(self, tokens, width, embedding)


class AdaptiveSoftmaxLayer(HeadModule):
    """`tables.i` is `size inner` with a bias `size`, or one table for all clusters where the divisor is one;
    `projections.i` is `width inner`, as in the embedding; row i of `clusters` scores cluster i + 1, after the tokens of
    cluster zero in the first softmax.
    """

    narrowest: ClassVar[int] = 1  # numbers that a vector must have
    tables: Sequence[nn.Linear]
    projections: Sequence[nn.Linear]

    def __init__(self, spec: AdaptiveSoftmax, tokens: int, width: int, embedding: EmbeddingModule):
        super().__init__()
        self.spec = spec
        self.vocabulary = Clusters(spec.cutoffs, spec.divisor, spec.inner, tokens, width, self.narrowest)
        self.dropout = Dropout(spec.dropout)
        first, *rarer = self.vocabulary.widths
        shapes = self.vocabulary.shapes if spec.divisor > 1 else [(tokens, first)]
        tables = [nn.Linear(inner, size) for size, inner in shapes]
        projections = [nn.Linear(inner, width, bias=False) for inner in self.vocabulary.projected]
        if spec.tied:
            for table, weight in zip(tables, shared("tables", embedding.shared_tables(), shapes), strict=True):
                table.weight = weight
        if tied := [cluster for cluster in spec.tied_projections if cluster < len(projections)]:
            wanted = [(width, inner) for _, inner in shapes]
            theirs = shared("projections", embedding.shared_projections(), wanted)
            for cluster in tied:
                projections[cluster].weight = theirs[cluster if spec.divisor > 1 else 0]
        self.tables = nn.ModuleList(tables)  # pyright: ignore[reportAttributeAccessIssue]
        self.projections = nn.ModuleList(projections)  # pyright: ignore[reportAttributeAccessIssue]
        self.clusters = nn.Linear(first, len(rarer)) if rarer else None

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        hidden, line = self.dropout(hidden).flatten(0, 1), targets.flatten()
        first, *tails = self.matrices()
        cluster = self.vocabulary.of(line)
        nats = self.nats(0, first, hidden, line.where(cluster == 0, self.vocabulary.sizes[0] + cluster - 1))
        for number, matrix in enumerate(tails, start=1):
            within = line - self.vocabulary.starts[number]
            nats = nats + self.nats(number, matrix, hidden, within, counted=cluster == number)
        return nats.view_as(targets)

    def nats(
        self, cluster: int, matrix: Matrix, hidden: Tensor, targets: Tensor, counted: Tensor | None = None
    ) -> Tensor:
        return linear_cross_entropy(
            self.projected(cluster, hidden),
            *matrix,
            targets,
            counted=counted,
            z_loss=self.in_training(self.spec.z_loss),
            chunk=self.spec.chunk,
        )

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        hidden = self.dropout(hidden)
        logits = (logits_of(self.projected(cluster, hidden), *matrix) for cluster, matrix in enumerate(self.matrices()))
        first, *tails = (each.log_softmax(-1) for each in logits)
        frequent, *clusters = first.split([self.vocabulary.sizes[0], *(1 for _ in tails)], dim=-1)
        return torch.cat([frequent, *(one + tail for one, tail in zip(clusters, tails, strict=True))], dim=-1)

    def multiplied(self) -> int:
        """By the first softmax, and what comes before it: rarer tokens are for few."""
        weight, _ = self.matrices()[0]
        return weight.numel() + sum(projection.weight.numel() for projection in self.projections[:1])

    def matrices(self) -> list[Matrix]:
        """Weight and bias of each softmax."""
        weights = [weight for table in self.tables for weight in self.cut(table.weight)]
        biases = [bias for table in self.tables for bias in self.cut(table.bias)]
        if self.clusters is not None:
            weights[0] = torch.cat([weights[0], self.clusters.weight])
            biases[0] = torch.cat([biases[0], self.clusters.bias])
        return list(zip(weights, biases, strict=True))

    def cut(self, numbers: Tensor) -> Sequence[Tensor]:
        """A table of all clusters cut into theirs."""
        return numbers.split(self.vocabulary.sizes) if len(self.tables) == 1 else (numbers,)

    def projected(self, cluster: int, hidden: Tensor) -> Tensor:
        """Backwards: from the width to the cluster's vectors."""
        return hidden @ self.projections[cluster].weight if self.projections else hidden


def shared(what: str, offered: Sequence[nn.Embedding | nn.Linear], shapes: list[tuple[int, int]]) -> list[Tensor]:
    """The weights of the embedding, if they are of these shapes."""
    weights = [module.weight for module in offered]
    found = [tuple(weight.shape) for weight in weights]
    if found != shapes:
        raise UserError(
            f"the head is to share {what} of {listed(shapes)}, but those of the embedding are {listed(found)}: "
            f"give both the same cutoffs, divisor and inner width, or do not tie them"
        )
    return weights


def listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(" × ".join(map(str, shape)) for shape in shapes) or "none"
