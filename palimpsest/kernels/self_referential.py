"""A weight matrix that rewrites itself: it says what is read, under which key it changes, and by how much.

output, query', key', β' = inputᵀ page
page ← page + key ⊗ β · (queryᵀ page − keyᵀ page)        key, query = softmax(key', query'), β = sigmoid(β')

The columns of the page are those of outputs, of queries, of keys and of β: how fast the columns of each of the four
kinds change. Every token needs the page that the one before left behind, so they are taken in order; backward walks
back from the last page, taking away what was added, and so keeps no other.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .precision import full_precision

KINDS = 4  # of columns: outputs, queries, keys, β


def self_referential_scan(inputs: Tensor, page: Tensor) -> tuple[Tensor, Tensor]:
    """inputs `b t h k`, page `b h k (3k + 4)` -> outputs `b t h k`, the page after the last token."""
    batch, _, heads, width = inputs.shape
    if page.shape != (batch, heads, width, 3 * width + KINDS):
        raise ValueError(f"page: expected the axes b h k (3k + 4) for inputs {tuple(inputs.shape)}, found {page.shape}")
    with full_precision(inputs.device.type):
        rows = inputs.to(page.dtype).transpose(1, 2).flatten(0, 1)
        outputs, after = SelfReferentialScan.apply(rows, page.flatten(0, 1))  # pyright: ignore[reportGeneralTypeIssues]
    return outputs.unflatten(0, (batch, heads)).transpose(1, 2).to(inputs.dtype), after.view_as(page)


class SelfReferentialScan(torch.autograd.Function):
    """inputs `(b h) t k`, page `(b h) k (3k + 4)`"""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, page: Tensor) -> tuple[Tensor, Tensor]:
        page, width = page.clone(), inputs.shape[-1]
        outputs, features, paces, changes = [], [], [], []
        for x in inputs.unbind(1):
            said = torch.bmm(x[:, None], page)[:, 0]
            feature = said[:, width : 3 * width].unflatten(-1, (2, width)).softmax(-1)
            query, key = feature.unbind(1)
            pace = said[:, 3 * width :].sigmoid()
            change = torch.bmm((query - key)[:, None], page)[:, 0]
            page.baddbmm_(key[:, :, None], (spread(pace, width) * change)[:, None])
            for kept, one in ((outputs, said[:, :width]), (features, feature), (paces, pace), (changes, change)):
                kept.append(one)
        features, paces, changes = (torch.stack(each, dim=1) for each in (features, paces, changes))
        ctx.save_for_backward(inputs, page, features, paces, changes)
        return torch.stack(outputs, dim=1), page.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        to_outputs, to_page = gradients
        inputs, page, features, paces, changes = ctx.saved_tensors
        page, to_page, width, to_inputs = page.clone(), to_page.clone(), inputs.shape[-1], []
        speeds = spread(paces, width)
        read = torch.stack([features[:, :, 0] - features[:, :, 1], inputs], dim=-1)  # by what the page was read
        slopes = paces * (1 - paces)
        tokens = (features, speeds, changes, speeds * changes, slopes, read, to_outputs)
        for feature, speed, change, note, slope, seen, to_output in zip(
            *(reversed(each.unbind(1)) for each in tokens), strict=True
        ):
            key = feature[:, 1]
            to_note = torch.bmm(key[:, None], to_page)[:, 0]
            to_key = torch.bmm(to_page, note[:, :, None])[..., 0]
            page.baddbmm_(key[:, :, None], note[:, None], alpha=-1)
            to_change = speed * to_note
            to_query = torch.bmm(page, to_change[:, :, None])[..., 0]
            to_feature = torch.stack([to_query, to_key - to_query], dim=1)
            to_logits = feature * (to_feature - (feature * to_feature).sum(-1, keepdim=True))
            to_paces = slope * gather(to_note * change, width)
            to_said = torch.cat([to_output, to_logits.flatten(1), to_paces], dim=-1)
            to_inputs.append(torch.bmm(page, to_said[:, :, None])[..., 0])
            to_page.baddbmm_(seen, torch.stack([to_change, to_said], dim=1))
        return torch.stack(to_inputs[::-1], dim=1), to_page


def spread(paces: Tensor, width: int) -> Tensor:
    """The pace of each kind of column for every column of that kind."""
    own = paces[..., :3, None].expand(*paces.shape[:-1], 3, width).flatten(-2)
    return torch.cat([own, paces[..., 3:].expand(*paces.shape[:-1], KINDS)], dim=-1)


def gather(columns: Tensor, width: int) -> Tensor:
    """The sum over the columns of each kind."""
    own = columns[..., : 3 * width].unflatten(-1, (3, width)).sum(-1)
    return torch.cat([own, columns[..., 3 * width :].sum(-1, keepdim=True)], dim=-1)
