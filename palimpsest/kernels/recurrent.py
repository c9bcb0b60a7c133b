"""The memory scan for very short segments, such as the single token of generation: the fewest operations."""

import torch
from torch import Tensor

from ..gates import Gates
from .reference import as_feature_column


def scan(queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor) -> tuple[Tensor, Tensor]:
    batch, length, heads, _ = queries.shape
    page = memory.flatten(0, 1)  # (b h) k v
    reads = []
    for t in range(length):
        log_keep, erase, write = (None if gate is None else gate[:, t] for gate in gates[:3])
        q, k, note = (x[:, t].reshape(batch * heads, 1, -1) for x in (queries, keys, values))
        if log_keep is not None:
            page = as_feature_column(log_keep.flatten(0, 1), page).exp() * page
        if write is not None:
            note = write.reshape(-1, 1, 1) * note
        if erase is not None:
            note = torch.baddbmm(note, erase.reshape(-1, 1, 1) * k, page, alpha=-1)
        page = torch.baddbmm(page, k.mT, note)
        reads.append(torch.bmm(q, page).view(batch, heads, -1))
    return torch.stack(reads, dim=1), page.view_as(memory)
