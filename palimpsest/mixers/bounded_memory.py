"""The fast weight memory of 2021, whose page never grows longer than one: Schlag, Munkhdalai and Schmidhuber.

memory ← memory + β (value − memory key) ⊗ key
memory ← memory / max(1, ‖memory‖)
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm

from ..memory.feature_maps import FeatureMap, Tanh
from ..memory.update_rules import GateProjection, logit
from ..spec import Between, NotNegative, Size
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class BoundedMemory(Mixer):
    """The delta rule on a page that is shrunk to length one whenever it is longer; what is read is normed."""

    feature_map: FeatureMap = Tanh()
    heads: Size = 4
    beta: Between = 0.5  # before training
    epsilon: NotNegative = 1e-5  # of the norm of what is read
    token_by_token = True  # how long the page is must be known before the next token is written

    def build(self, width: int, norm: nn.Module | None = None) -> "BoundedMemoryMixer":
        return BoundedMemoryMixer(self, width, norm)


class BoundedState(NamedTuple):
    memory: Tensor  # b h v k


class BoundedMemoryMixer(MixerModule):
    def __init__(self, spec: BoundedMemory, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.feature_map = spec.feature_map.build(self.head_width)
        self.beta = GateProjection(width, spec.heads, logit(spec.beta))
        self.out = nn.Linear(width, width, bias=False)

    def initial_state(self, batch: int) -> BoundedState:
        features = self.spec.feature_map.features(self.head_width)
        dtype = torch.promote_types(self.out.weight.dtype, torch.float32)
        return BoundedState(self.out.weight.new_zeros(batch, self.spec.heads, self.head_width, features, dtype=dtype))

    def forward(self, x: Tensor, state: BoundedState | None = None) -> tuple[Tensor, BoundedState]:
        (memory,) = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        projected = self.project(x).unflatten(-1, (3, self.spec.heads, self.head_width))
        queries, keys, values = (z.transpose(1, 2).flatten(0, 1).to(memory.dtype) for z in projected.unbind(-3))
        beta = self.beta(x).sigmoid().transpose(1, 2).flatten(0, 1).to(memory.dtype)
        pages = bounded_pages(self.feature_map(keys), values, beta, memory.flatten(0, 1))
        reads = (pages @ self.feature_map(queries).transpose(0, 1)[..., None]).squeeze(-1)  # t (b h) v
        reads = layer_norm(reads, reads.shape[-1:], eps=self.spec.epsilon).to(x.dtype)
        reads = reads.unflatten(1, (-1, self.spec.heads)).transpose(0, 1).flatten(-2)
        return self.out(reads), BoundedState(pages[-1].view_as(memory))


def bounded_pages(keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor) -> Tensor:
    """keys `b t k`, values `b t v`, beta `b t`, memory `b v k` -> the page after every token, `t b v k`."""
    return BoundedPages.apply(keys, values, beta, memory)  # pyright: ignore[reportReturnType]


def last_bounded_page(keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor) -> Tensor:
    """The page after the last token alone, `b v k`."""
    return LastBoundedPage.apply(keys, values, beta, memory)  # pyright: ignore[reportReturnType]


class BoundedPages(torch.autograd.Function):
    """Written out, for a token is one turn of a loop: as few operations in each as there can be."""

    @staticmethod
    def forward(ctx, keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor) -> Tensor:  # pyright: ignore
        return write_pages(ctx, keys, values, beta, memory)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_pages: Tensor):  # pyright: ignore
        return gradients(ctx, torch.zeros_like(grad_pages[-1]), grad_pages)


class LastBoundedPage(torch.autograd.Function):
    """The same, where nobody asks for the pages before the last."""

    @staticmethod
    def forward(ctx, keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor) -> Tensor:  # pyright: ignore
        return write_pages(ctx, keys, values, beta, memory)[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_page: Tensor):  # pyright: ignore
        return gradients(ctx, grad_page, None)


def write_pages(ctx, keys: Tensor, values: Tensor, beta: Tensor, memory: Tensor) -> Tensor:
    keys = keys.transpose(0, 1).contiguous()  # t b k
    erased = -beta.T[..., None] * keys
    notes = (beta[..., None] * values).transpose(0, 1)[..., None].contiguous()  # t b v 1: what is offered, at first
    pages = keys.new_empty(*notes.shape[:3], keys.shape[-1])  # t b v k
    sizes = keys.new_empty(*keys.shape[:2], 1, 1)
    page = memory
    for t in range(len(keys)):
        notes[t].baddbmm_(page, erased[t][..., None])
        torch.addcmul(page, notes[t], keys[t][:, None], out=pages[t])
        torch.linalg.vector_norm(pages[t], dim=(1, 2), keepdim=True, out=sizes[t])
        page = pages[t].div_(sizes[t].clamp_(min=1))
    ctx.save_for_backward(keys, values, beta, memory, erased, pages, notes, sizes)
    return pages


def gradients(ctx, grad: Tensor, grad_pages: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`grad` is that of the last page by itself, and becomes in turn that of each page before it.

    A page that was shrunk has no gradient along itself. Its overlap with its gradient need not be summed up anew: from
    page to page it changes by what the note's gradient has in common with what was offered.
    """
    keys, values, beta, memory, erased, pages, notes, sizes = ctx.saved_tensors
    offered = (beta[..., None] * values).transpose(0, 1)[:, :, None].contiguous()  # t b 1 v
    shrunk = (sizes > 1).to(sizes)
    kept, taken = 1 - shrunk, -shrunk
    grad_notes, grad_keys = torch.empty_like(notes), torch.empty_like(keys)
    overlap = inner(grad, pages[-1])
    for t in reversed(range(len(keys))):
        if grad_pages is not None:
            grad = grad + grad_pages[t]
            overlap = overlap + inner(grad_pages[t], pages[t])
        grad = torch.addcmul(grad, pages[t], overlap * taken[t]).div_(sizes[t])
        torch.bmm(grad, keys[t][..., None], out=grad_notes[t])
        torch.bmm(notes[t].mT, grad, out=grad_keys[t][:, None])
        overlap = (overlap * kept[t]).baddbmm_(offered[t], grad_notes[t], alpha=-1)
        grad.addcmul_(grad_notes[t], erased[t][:, None])
    earlier = torch.cat([(memory @ keys[0][..., None])[None], pages[:-1] @ keys[1:, ..., None]])  # t b v 1, recalled
    grad_beta = (grad_notes.squeeze(-1) * (values.transpose(0, 1) - earlier.squeeze(-1))).sum(-1).T
    grad_recalls = -beta.T[..., None, None] * grad_notes
    grad_keys[0] += (memory.mT @ grad_recalls[0]).squeeze(-1)
    grad_keys[1:] += (pages[:-1].mT @ grad_recalls[1:]).squeeze(-1)
    return grad_keys.transpose(0, 1), beta[..., None] * grad_notes.squeeze(-1).transpose(0, 1), grad_beta, grad


def inner(one: Tensor, other: Tensor) -> Tensor:
    """`b v k` twice -> `b 1 1`"""
    return torch.linalg.vecdot(one.flatten(1), other.flatten(1))[:, None, None]
