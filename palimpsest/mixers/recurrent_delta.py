"""Recurrent Delta Net: a delta memory that hears what it last said."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..kernels import memory_dtype
from ..kernels.activations import Softmax
from ..kernels.recurrent_delta import recurrent_delta
from ..spec import Size
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class RecurrentDeltaNet(Mixer):
    """A delta memory whose queries, keys, values and β also depend on its last read."""

    scale: float = 1.0  # of what is said
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def build(self, width: int, norm: nn.Module | None = None) -> "RecurrentDeltaNetMixer":
        return RecurrentDeltaNetMixer(self, width, norm)


class RecurrentDeltaNetState(NamedTuple):
    memory: Tensor  # b h v v
    read: Tensor  # b h v


class RecurrentDeltaNetMixer(MixerModule):
    """Each head's part of `project`, and of what it hears, is query, key, value and the logit of β."""

    def __init__(self, spec: RecurrentDeltaNet, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, spec.heads * (3 * self.head_width + 1), bias=False)
        self.hear = nn.Parameter(torch.empty(spec.heads, self.head_width, 3 * self.head_width + 1))
        self.out = nn.Linear(spec.heads * self.head_width, width, bias=False)
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.hear, std=self.head_width**-0.5, generator=generator)

    def initial_state(self, batch: int) -> RecurrentDeltaNetState:
        weight, width = self.project.weight, self.head_width
        page = weight.new_zeros(batch, self.spec.heads, width, width, dtype=memory_dtype(weight.dtype))
        return RecurrentDeltaNetState(page, torch.zeros_like(page[:, :, 0]))

    def forward(self, x: Tensor, state: RecurrentDeltaNetState | None = None) -> tuple[Tensor, RecurrentDeltaNetState]:
        reads, state = self.recur(self.inputs(x), self.initial_state(len(x)) if state is None else state)
        return self.out((self.spec.scale * reads).flatten(-2)), state

    def inputs(self, x: Tensor) -> Tensor:
        return self.project(x if self.norm is None else self.norm(x)).unflatten(-1, (self.spec.heads, -1))

    def recur(self, inputs: Tensor, state: RecurrentDeltaNetState) -> tuple[Tensor, RecurrentDeltaNetState]:
        reads, memory = recurrent_delta(inputs, self.hear, state.memory, state.read, Softmax())
        return reads, RecurrentDeltaNetState(memory, reads[:, -1].to(memory.dtype, copy=True))
