"""State is a tree of NamedTuples and tuples with tensors (or None) at its leaves.

The first axis of every leaf is the row of the batch: rows of a state belong to rows of the data,
so a state can be cut, joined, saved and handed to other machines row by row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

State = Any  # nested tuples of tensors; each part knows its own


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply `function` to the leaves of one tree, or to the matching leaves of several."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state, *others)
    branches = [map_state(function, *parts) for parts in zip(state, *others, strict=True)]
    return type(state)(*branches) if hasattr(state, "_fields") else tuple(branches)


def detach(state: State) -> State:
    """Keep what is remembered, forget how it came about: gradients stop here."""
    return map_state(Tensor.detach, state)


def rows_of(state: State, rows: slice | Tensor) -> State:
    return map_state(lambda leaf: leaf[rows], state)


def join_rows(states: Sequence[State]) -> State:
    return states[0] if len(states) == 1 else map_state(lambda *leaves: torch.cat(leaves), *states)


def move(state: State, device: torch.device) -> State:
    return map_state(lambda leaf: leaf.to(device), state)


def leaves(state: State) -> list[Tensor]:
    """The tensors of a state in order: what a checkpoint stores."""
    found: list[Tensor] = []
    map_state(lambda leaf: (found.append(leaf), leaf)[1], state)
    return found


def refill(like: State, tensors: Sequence[Tensor]) -> State:
    """The tree of `like` with other leaves: what a checkpoint gives back."""
    supply = iter(tensors)
    return map_state(lambda _: next(supply), like)
