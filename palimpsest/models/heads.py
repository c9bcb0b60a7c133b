"""Heads: hidden states become nats. A head owns its softmax, so that no one else ever sees all logits at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from ..errors import UserError
from ..spec import Spec
from .embeddings import Clusters, EmbeddingModule, check_clusters


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

    def charge(self, logits: Tensor, targets: Tensor, z_loss: float, smoothing: float = 0.0) -> Tensor:
        """The nats of each target; in training their gradient is that of nats + z_loss · log-partition².

        Of smoothed targets, nats are (1 − smoothing) · the target's + smoothing · the mean of all tokens'.
        """
        nats = cross_entropy(logits, targets, reduction="none")
        if not (self.training and (z_loss or smoothing)):
            return nats
        partition = logits.logsumexp(-1)
        unseen = z_loss * partition.square() + smoothing * (partition - logits.mean(-1) - nats)
        return nats + (unseen - unseen.detach())  # a zero, so that who masks, adds and divides nats does it to both


@dataclass(frozen=True)
class SoftmaxHead(Head):
    """A softmax over the whole vocabulary, from a matrix of its own or from the embedding's."""

    tied: bool = False  # share the matrix of the embedding
    bias: bool = False
    dropout: float = 0.0  # of the hidden states
    chunk: int = 2**22  # logits held at once; with more of them, they are made again in the backward pass
    z_loss: float = 0.0  # what the square of a log-partition adds to the loss; nats do not show it
    smoothing: float = 0.0  # share of each target that all tokens have in training; nats do not show it

    def __post_init__(self):
        if not 0 <= self.smoothing < 1:
            raise UserError(f"targets are smoothed by a share from 0 up to and without 1; found {self.smoothing}")

    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "SoftmaxLayer":
        return SoftmaxLayer(self, tokens, width, embedding)


class SoftmaxLayer(HeadModule):
    def __init__(self, spec: SoftmaxHead, tokens: int, width: int, embedding: EmbeddingModule):
        super().__init__()
        self.spec = spec
        self.dropout = nn.Dropout(spec.dropout)
        self.project = nn.Linear(width, tokens, bias=spec.bias)
        if spec.tied:
            (self.project.weight,) = shared("tables", embedding.shared_tables(), [(tokens, width)])

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        hidden, targets_in_line = self.dropout(hidden).flatten(0, 1), targets.flatten()
        rows = self.spec.chunk // self.project.out_features
        return in_pieces(self.nats, rows, hidden, targets_in_line).view_as(targets)

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.charge(self.logits(hidden), targets, self.spec.z_loss, self.spec.smoothing)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return self.logits(self.dropout(hidden)).log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        return at_least_single(self.project(hidden))


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
    dropout: float = 0.0  # of the hidden states
    chunk: int = 2**22  # logits held at once; with more of them, they are made again in the backward pass
    z_loss: float = 0.0  # what the square of a log-partition adds to the loss; nats do not show it

    def __post_init__(self):
        check_clusters(self.cutoffs, self.divisor, self.inner)
        if not set(self.tied_projections) <= set(range(len(self.cutoffs) + 1)):
            found = ", ".join(map(str, self.tied_projections))
            raise UserError(f"{len(self.cutoffs)} cutoffs make clusters 0 to {len(self.cutoffs)}; found {found} to tie")

    def build(self, tokens: int, width: int, embedding: EmbeddingModule) -> "AdaptiveSoftmaxLayer":
        return AdaptiveSoftmaxLayer(self, tokens, width, embedding)


class AdaptiveSoftmaxLayer(HeadModule):
    """`tables.i` is `size inner` with a bias `size`, or one table for all clusters where the divisor is one;
    `projections.i` is `width inner`, as in the embedding; row i of `clusters` scores cluster i + 1.
    """

    narrowest: ClassVar[int] = 1  # numbers that a vector must have
    tables: Sequence[nn.Linear]
    projections: Sequence[nn.Linear]

    def __init__(self, spec: AdaptiveSoftmax, tokens: int, width: int, embedding: EmbeddingModule):
        super().__init__()
        self.spec = spec
        self.vocabulary = Clusters(spec.cutoffs, spec.divisor, spec.inner, tokens, width, self.narrowest)
        self.dropout = nn.Dropout(spec.dropout)
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
        order, within = self.vocabulary.sort(targets.flatten())
        hidden = self.dropout(hidden).flatten(0, 1).index_select(0, order)
        parts, matrices, rarer = hidden.split([len(part) for part in within]), self.matrices(), range(1, len(within))
        columns = [within[0], *(torch.full_like(within[cluster], self.column(cluster)) for cluster in rarer)]
        nats = self.nats(0, matrices[0], hidden, torch.cat(columns))
        tails = [self.nats(cluster, matrices[cluster], parts[cluster], within[cluster]) for cluster in rarer]
        nats = nats + torch.cat([nats.new_zeros(len(within[0])), *tails])
        return torch.zeros_like(nats).index_copy(0, order, nats).view_as(targets)

    def nats(self, cluster: int, matrix: tuple[Tensor, Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
        def nats(hidden: Tensor, targets: Tensor) -> Tensor:
            return self.charge(self.logits(cluster, matrix, hidden), targets, self.spec.z_loss)

        return in_pieces(nats, self.spec.chunk // len(matrix[0]), hidden, targets)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        hidden, matrices = self.dropout(hidden), self.matrices()
        first, *tails = (self.logits(*each, hidden).log_softmax(-1) for each in enumerate(matrices))
        tails = [first[:, self.column(cluster), None] + tail for cluster, tail in enumerate(tails, start=1)]
        return torch.cat([first[:, : self.vocabulary.sizes[0]], *tails], dim=-1)

    def column(self, cluster: int) -> int:
        """Where the first softmax has the cluster: after all the tokens of cluster zero."""
        return self.vocabulary.sizes[0] + cluster - 1

    def matrices(self) -> list[tuple[Tensor, Tensor]]:
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

    def logits(self, cluster: int, matrix: tuple[Tensor, Tensor], hidden: Tensor) -> Tensor:
        if self.projections:
            hidden = hidden @ self.projections[cluster].weight  # backwards: from the width to the cluster's vectors
        return at_least_single(linear(hidden, *matrix))


def in_pieces(nats: Callable[[Tensor, Tensor], Tensor], rows: int, hidden: Tensor, targets: Tensor) -> Tensor:
    """The nats of all targets `n`, of no more than so many rows at once."""
    rows = max(1, rows)
    if len(targets) <= rows:
        return nats(hidden, targets)
    pieces = zip(hidden.split(rows), targets.split(rows), strict=True)
    return torch.cat([checkpoint(nats, *piece, use_reentrant=False) for piece in pieces])


def at_least_single(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


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
