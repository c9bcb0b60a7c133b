"""A mixer taken apart: what a paper says of one head of one row, done for all of them with the mixer's own weights."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from palimpsest.mixers.mixer import Mixer, MixerModule

WIDTH, LENGTH = 16, 7


def with_large_weights(spec: Mixer) -> MixerModule:
    """Far from zero, where maps and gates bend."""
    mixer = spec.build(WIDTH)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def text() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH)


def by_hand(mixer: MixerModule, x: Tensor, paper: Callable[..., Iterator[Tensor]]) -> Tensor:
    """`paper(queries, keys, values, row, head)` says what one head reads from `t d`, token by token."""
    rows = []
    for row in x:
        queries, keys, values = (row @ matrix.T for matrix in mixer.project.weight.chunk(3))
        heads = []
        for head in range(mixer.spec.heads):
            mine = slice(head * mixer.head_width, (head + 1) * mixer.head_width)
            heads.append(torch.stack(list(paper(queries[:, mine], keys[:, mine], values[:, mine], row, head))))
        rows.append(torch.cat(heads, dim=-1) @ mixer.out.weight.T)
    return torch.stack(rows)
