"""The memory scan a chunk at a time, in plain PyTorch: parallel inside all chunks at once, carried between them.

Inside a chunk that starts from the page S, what each token adds (its note) depends on the notes before it:

    note_i = write_i v_i − erase_i (kept_i k_iᵀ S + Σ_{j<i} kept_ij (k_i·k_j) note_j)

a unit lower triangular system. Its solution is affine in S, so it is solved once for every chunk of the
sequence in one batch (`fresh` and `recall`), and only `note = fresh − recall S` and the page itself run in order.
Without erasing there is nothing to solve, and without keeping either, the pages are a running sum.
"""

from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..gates import Gates

CHUNK = 64
FEATURE_CHUNK = 16  # keeping each feature by itself costs chunk × features numbers a token
BLOCK = 2**20  # numbers of keys and values taken at once on a CPU, so that what is made of them stays in its cache


def scan(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    if chunk is None:
        per_feature = gates.log_keep is not None and gates.log_keep.ndim == 4
        chunk = min(queries.shape[1], FEATURE_CHUNK if per_feature else CHUNK)
    if queries.device.type != "cpu":
        return scan_block(queries, keys, values, gates, memory, chunk)
    numbers = keys[:, :chunk].numel() + values[:, :chunk].numel()
    length = max(1, BLOCK // numbers) * chunk
    # split, not sliced: the gradient of a slice is as long as the whole sequence
    blocks = zip(*(x.split(length, dim=1) for x in (queries, keys, values)), split_gates(gates, length), strict=False)
    reads = []
    for q, k, v, gate in blocks:
        read, memory = scan_block(q, k, v, gate, memory, chunk)
        reads.append(read)
    return (reads[0] if len(reads) == 1 else torch.cat(reads, dim=1)), memory


def split_gates(gates: Gates, length: int) -> Iterator[Gates]:
    split = (repeat(None) if gate is None else gate.split(length, dim=1) for gate in gates[:3])
    return (Gates(*part) for part in zip(*split, strict=False))


def scan_block(
    queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, memory: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    batch, length, heads, _ = queries.shape
    q, k, v = (fold(x, chunk) for x in (queries, keys, values))
    log_keep, erase, write = (None if gate is None else fold(gate, chunk) for gate in gates[:3])
    kept = None if log_keep is None else Kept(log_keep)

    fresh = v if write is None else write * v
    recall = None
    if erase is not None:
        erased = erase * k
        system = overlap(erased, k, kept)  # only what lies below the diagonal is read
        unsolved = torch.cat([fresh, erased if kept is None else erased * kept.since_start], dim=-1)
        # from the right: row by row, as the numbers lie in memory, and not copied into columns first
        solved = torch.linalg.solve_triangular(system.mT, unsolved.mT, upper=True, left=False, unitriangular=True).mT
        fresh, recall = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    pages, notes, memory = carry(fresh, recall, k, kept, memory.flatten(0, 1))
    reads = (q if kept is None else q * kept.since_start) @ pages + overlap(q, k, kept).tril() @ notes
    reads = reads.view(batch, heads, -1, v.shape[-1])[:, :, :length]
    return reads.transpose(1, 2), memory.view(batch, heads, *memory.shape[1:])


class Kept:
    """What is left of the past inside each chunk, from the logarithms of keep, `(b h) n c 1|k`.

    Logarithms, as the product of many gates underflows; each sum by itself, never as the difference of two
    larger ones, in which whatever came after a great forgetting would be lost.
    """

    def __init__(self, log_keep: Tensor):
        chunk = log_keep.shape[-2]
        later = torch.ones(chunk, chunk, dtype=torch.bool, device=log_keep.device).tril(-1)[..., None]
        sums = torch.where(later, log_keep[..., :, None, :], 0).cumsum(-3)
        self.since_start = log_keep.cumsum(-2).exp()  # c 1|k
        self.between = sums.exp()  # c c 1|k, from the second to the first; one where that is not earlier
        self.until_end = self.between[..., -1, :, :]  # c 1|k


def fold(x: Tensor, chunk: int) -> Tensor:
    """`b t h x` or `b t h` -> `(b h) n c x`, with tokens that change nothing after the last."""
    x = x if x.ndim == 4 else x[..., None]
    x = x.transpose(1, 2).flatten(0, 1)
    return pad(x, (0, 0, 0, -x.shape[1] % chunk)).unflatten(1, (-1, chunk))


def overlap(left: Tensor, right: Tensor, kept: Kept | None) -> Tensor:
    """left_i · right_j, dimmed by all that was forgotten between j and i; right for j ≤ i only."""
    if kept is None:
        return left @ right.mT
    if kept.between.shape[-1] == 1:
        return kept.between.squeeze(-1) * (left @ right.mT)
    return (left[..., :, None, :] * kept.between * right[..., None, :, :]).sum(-1)


def carry(
    fresh: Tensor, recall: Tensor | None, keys: Tensor, kept: Kept | None, memory: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The page at the start of every chunk, the notes of every token, and the last page."""
    if recall is None and kept is None:
        added = (keys.mT @ fresh).cumsum(1) + memory[:, None]
        pages = torch.cat([memory[:, None], added[:, :-1]], dim=1)
        return pages, fresh, added[:, -1]
    # unbound, not indexed, for the same reason as above
    chunks = fresh.shape[1]
    recalls = [None] * chunks if recall is None else recall.unbind(1)
    keeps = [None] * chunks if kept is None else kept.since_start[..., -1, :, None].unbind(1)  # 1|k 1
    keys = keys if kept is None else keys * kept.until_end
    pages, notes = [], []
    for note, known, key, keep in zip(fresh.unbind(1), recalls, keys.unbind(1), keeps, strict=True):
        pages.append(memory)
        notes.append(note if known is None else torch.baddbmm(note, known, memory, alpha=-1))
        memory = torch.baddbmm(memory if keep is None else keep * memory, key.mT, notes[-1])
    return torch.stack(pages, dim=1), torch.stack(notes, dim=1), memory
