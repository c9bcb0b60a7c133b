"""Heads: hidden states become nats. A head owns its softmax, so that no one else ever sees all logits at once."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from ..spec import Spec


class Head(Spec):
    def build(self, tokens: int, width: int, table: nn.Embedding) -> "HeadModule":
        raise NotImplementedError


class HeadModule(nn.Module):
    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """hidden `b t d`, targets `b t` -> nats `b t`"""
        raise NotImplementedError

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """hidden `b d` -> `b tokens`"""
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxHead(Head):
    """A softmax over the whole vocabulary, from a matrix of its own or from the embedding's."""

    tied: bool = False  # share the matrix of the embedding
    chunk: int = 2**22  # logits held at once; with more of them, they are made again in the backward pass

    def build(self, tokens: int, width: int, table: nn.Embedding) -> "SoftmaxLayer":
        return SoftmaxLayer(self, tokens, width, table)


class SoftmaxLayer(HeadModule):
    def __init__(self, spec: SoftmaxHead, tokens: int, width: int, table: nn.Embedding):
        super().__init__()
        self.spec = spec
        self.project = nn.Linear(width, tokens, bias=False)
        if spec.tied:
            self.project.weight = table.weight

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        rows = max(1, self.spec.chunk // self.project.out_features)
        if targets.numel() <= rows:
            return self.nats(hidden.flatten(0, 1), targets.flatten()).view_as(targets)
        pieces = zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        nats = [checkpoint(self.nats, *piece, use_reentrant=False) for piece in pieces]
        return torch.cat(nats).view_as(targets)

    def nats(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(self.logits(hidden), targets, reduction="none")

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.project(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
