"""A memory that is first written whole and then asked: what each query draws from the last page.

The page itself is not made where that can be helped. What it would answer is a sum over the values written, and the
weight of each value follows from the overlaps of keys and queries alone: after a delta rule, from a triangular system.
"""

from math import ceil

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import layer_norm, one_hot

from ..errors import UserError
from ..gates import Gates
from ..kernels import memory_scan
from ..memory.read_outs import Normalised, Plain
from ..memory.update_rules import GateProjection, Sum, logit
from .bounded_memory import BoundedMemory, last_bounded_page
from .fast_weight import FastWeight, KeySum, crowding_of
from .heights import weighed_by
from .mixer import Mixer
from .softmax_attention import SoftmaxAttention

BLOCK = 2**21  # overlaps and features taken at once on a CPU, so that what is made of them stays in its cache


class Recall(nn.Module):
    """One head. It is given what is written, `b t`, and what is asked, `b q`; values are numbers below `values`."""

    listens = True  # whether it makes anything of the tokens besides their keys, values and queries

    def __init__(self, values: int):
        super().__init__()
        self.values = values

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        """keys `b t d`, values `b t`, queries `b q d`, the tokens they are made of, `b t u` and `b q u` -> `b q v`."""
        raise NotImplementedError

    def gather(self, weights: Tensor, values: Tensor) -> Tensor:
        """The weights of each value together: weights `b q t` -> `b q v`"""
        together = weights.new_zeros(*weights.shape[:2], self.values)
        return together.scatter_add(2, values[:, None].expand_as(weights), weights)


def recall_of(memory: Mixer, width: int, key_width: int, values: int) -> Recall:
    """`width` is that of the tokens, from which gates are made."""
    if isinstance(memory, SoftmaxAttention):
        return SoftmaxRecall(values)
    if isinstance(memory, BoundedMemory):
        return BoundedRecall(memory, width, key_width, values)
    if isinstance(memory, FastWeight):
        return FastWeightRecall(memory, width, key_width, values)
    raise UserError(
        f"a {type(memory).__name__} cannot be handed its keys and values, as a FastWeight, a SoftmaxAttention or a "
        f"BoundedMemory can: show it pairs as tokens, with PairTokens"
    )


class SoftmaxRecall(Recall):
    listens = False

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        scores = queries @ keys.mT * keys.shape[-1] ** -0.5
        return self.gather(scores.softmax(-1), values)


class FastWeightRecall(Recall):
    def __init__(self, spec: FastWeight, width: int, key_width: int, values: int):
        super().__init__(values)
        if spec.update_rule.writes > 1:
            raise UserError(f"a pair is written once, and {type(spec.update_rule).__name__} writes more often")
        if spec.convolution is not None:
            raise UserError("keys and values that are handed to a memory are not convolved: use PairTokens for that")
        self.spec = spec
        self.feature_map = spec.feature_map.build(key_width)
        self.features = spec.feature_map.features(key_width)
        self.update_rule = spec.update_rule.build(width, 1, self.features)
        self.read_out = spec.read_out.build(width, 1, values)
        self.listens = not (isinstance(spec.update_rule, Sum) and isinstance(spec.read_out, Plain | Normalised))

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        rows = rows_at_once(keys, self.features)
        blocks = zip(*(z.split(rows) for z in (keys, values, queries, heard, asking)), strict=True)
        return torch.cat([self.answer(*block) for block in blocks])

    def answer(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        heights = self.feature_map.heights(keys) if self.spec.weighs_keys else None  # pyright: ignore[reportCallIssue]
        keys, queries = (self.spec.key_scale(self.feature_map(z)) for z in (keys, queries))
        gates = self.update_rule(heard, self.crowding(keys)).opened()
        if heights is not None:
            gates = weighed_by(gates, (heights - heights.amax(1, keepdim=True)).exp()[..., None])
        reads, mass = self.read(keys, values, queries, gates), None
        if self.spec.read_out.counts_keys:
            # values are one-hot: where nothing is erased, a read sums to the weight of all keys
            counted = reads if gates.erase is None else self.read(keys, values, queries, Gates(gates.log_keep))
            mass = counted.sum(-1, keepdim=True)
        return self.read_out(reads[:, :, None], asking, mass).squeeze(2)

    def crowding(self, keys: Tensor) -> Tensor | None:
        if not self.spec.update_rule.counts_keys:
            return None
        nothing = keys.new_zeros(len(keys), 1, keys.shape[-1], 1)
        return crowding_of(keys[:, :, None], KeySum(nothing, nothing[:, 0, 0, 0] == 0))

    def read(self, keys: Tensor, values: Tensor, queries: Tensor, gates: Gates) -> Tensor:
        if gates.log_keep is None:
            erase, write = (None if gate is None else gate.squeeze(-1) for gate in (gates.erase, gates.write))
            return self.gather(weigh(queries, keys, erase, write), values)
        shown = one_hot(values, self.values).to(keys.dtype)
        _, page = memory_scan(keys[:, :, None], keys[:, :, None], shown[:, :, None], gates)
        return queries @ page.squeeze(1).to(keys.dtype)


def rows_at_once(keys: Tensor, features: int) -> int:
    """All of them where nothing is kept for a gradient; otherwise blocks of one size."""
    rows, length = keys.shape[:2]
    if keys.device.type != "cpu" or not torch.is_grad_enabled():
        return rows
    blocks = ceil(rows * length * (length + features) / BLOCK)
    return ceil(rows / blocks)


def weigh(queries: Tensor, keys: Tensor, erase: Tensor | None, write: Tensor | None) -> Tensor:
    """How much of each value a query finds on a page that did not fade: `b q k` and `b t k` -> `b q t`.

    note = write · value − erase · Σ_{earlier} (key · key) note, so the weights are overlaps · (1 + system)⁻¹ · write.
    """
    weights = queries @ keys.mT
    if erase is not None:
        weights = LeftAfterErasing.apply(weights, keys, erase)
    return weights if write is None else weights * write[:, None]  # pyright: ignore[reportOptionalOperand]


class LeftAfterErasing(torch.autograd.Function):
    """overlaps · (1 + system)⁻¹, written out: a system is large, and is touched no more often than it must be."""

    @staticmethod
    def forward(ctx, overlaps: Tensor, keys: Tensor, erase: Tensor) -> Tensor:  # pyright: ignore
        system = (keys @ keys.mT).mul_(erase[..., None])  # only what lies below the diagonal is read
        left = solve_triangular(system, overlaps, upper=False, left=False, unitriangular=True)
        ctx.save_for_backward(keys, erase, system, left)
        return left

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # pyright: ignore
        keys, erase, system, left = ctx.saved_tensors
        grad = solve_triangular(system.mT, grad, upper=True, left=False, unitriangular=True)
        grad_overlaps = (-left.mT @ grad).tril_(-1)  # of keys with keys, before they are erased
        through = grad_overlaps @ keys
        grad_erase = (through * keys).sum(-1)
        erase = erase[..., None]
        return grad, torch.baddbmm(through.mul_(erase), grad_overlaps.mT, erase * keys), grad_erase


class BoundedRecall(Recall):
    def __init__(self, spec: BoundedMemory, width: int, key_width: int, values: int):
        super().__init__(values)
        self.spec = spec
        self.feature_map = spec.feature_map.build(key_width)
        self.beta = GateProjection(width, 1, logit(spec.beta))

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        return self.read(self.feature_map(keys), values, self.feature_map(queries), self.beta(heard).squeeze(-1))

    def read(self, keys: Tensor, values: Tensor, queries: Tensor, logits: Tensor) -> Tensor:
        page = self.page(keys, one_hot(values, self.values).to(keys.dtype), logits.sigmoid())
        return layer_norm(queries @ page.mT, (self.values,), eps=self.spec.epsilon)

    def page(self, keys: Tensor, shown: Tensor, beta: Tensor) -> Tensor:
        return last_bounded_page(keys, shown, beta, keys.new_zeros(len(keys), self.values, keys.shape[-1]))
