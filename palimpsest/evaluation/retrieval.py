"""How well a memory answered, and when it has been asked often enough."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    loss: float  # half the squared distance from the one-hot value, the mean of all answers
    accuracy: float  # the share of answers whose largest number is the value's


def squared_errors(reads: Tensor, targets: Tensor) -> Tensor:
    """reads `b q v`, targets `b q` -> `b q`"""
    right = targets[..., None] == torch.arange(reads.shape[-1], device=reads.device)
    return (right.to(reads.dtype) - reads).square().sum(-1) / 2


def score(reads: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Loss and accuracy, each answer counted by its weight."""
    losses, hits = squared_errors(reads, targets), reads.argmax(-1) == targets
    weights = weights.double()  # so that a perfect score is one
    # where nothing is asked, nothing counts, whatever is answered
    asked = weights > 0
    return torch.stack([(torch.where(asked, each.double(), 0) * weights).sum() for each in (losses, hits)])


def verdict(losses: Sequence[float], criterion: float, patience: int) -> str | None:
    """Why a run with these evaluations is over, if it is: solved, no better for too long, or not a number."""
    if not losses:
        return None
    if not math.isfinite(losses[-1]):
        return "not a number"
    if losses[-1] <= criterion:
        return "criterion"
    best = min(range(len(losses)), key=losses.__getitem__)
    return "patience" if len(losses) - 1 - best > patience else None
