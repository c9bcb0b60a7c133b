"""The definition of the memory scan, one token at a time, as the equations read. Slow and obviously right."""

import torch
from einops import einsum
from torch import Tensor

from ..gates import Gates


def scan(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor) -> tuple[Tensor, Tensor]:
    reads = []
    for t in range(queries.shape[1]):
        q, k, v = queries[:, t], keys[:, t], values[:, t]
        log_keep, erase, write = (None if gate is None else gate[:, t] for gate in gates[:3])
        if log_keep is not None:
            memory = as_feature_column(log_keep, memory).exp() * memory
        note = v if write is None else write[..., None] * v
        if erase is not None:
            note = note - erase[..., None] * einsum(k, memory, "b h k, b h k v -> b h v")
        memory = memory + einsum(k, note, "b h k, b h v -> b h k v")
        reads.append(einsum(q, memory, "b h k, b h k v -> b h v"))
    return torch.stack(reads, dim=1), memory


def as_feature_column(gate: Tensor, memory: Tensor) -> Tensor:
    """`b h` or `b h k` -> something that multiplies `b h k v`"""
    return gate[..., None] if gate.ndim == memory.ndim - 1 else gate[..., None, None]
