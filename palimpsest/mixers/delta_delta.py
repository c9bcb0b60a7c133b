"""Delta Delta Net: a delta memory whose programmer is a delta memory."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..gates import Gates
from ..kernels import memory_dtype, memory_scan
from ..memory.feature_maps import EluPlusOne, FeatureMap
from ..memory.key_scales import KeyScale, SumToOne
from ..spec import Size, Spec
from .mixer import Mixer, MixerModule, split_width
from .sums import refuse_signed


class FirstPage(Spec):
    """What the programmer knows before the first token; builds a module that returns `h k v`."""

    def build(self, heads: int, features: int, values: int) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True)
class EmptyPage(FirstPage):
    """Nothing."""

    def build(self, heads: int, features: int, values: int) -> nn.Module:
        return Zeros(heads, features, values)


class Zeros(nn.Module):
    def __init__(self, *shape: int):
        super().__init__()
        self.shape = shape

    def forward(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.shape)


@dataclass(frozen=True)
class LearnedPage(FirstPage):
    """A learned page, before training somewhere between `lowest` and `highest`."""

    lowest: float = 0.0
    highest: float = 0.0

    def build(self, heads: int, features: int, values: int) -> nn.Module:
        return Learned(self, heads, features, values)


class Learned(nn.Module):
    def __init__(self, spec: LearnedPage, *shape: int):
        super().__init__()
        self.spec = spec
        self.page = nn.Parameter(torch.empty(shape))
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        nn.init.uniform_(self.page, self.spec.lowest, self.spec.highest, generator=generator)

    def forward(self, like: Tensor) -> Tensor:
        return self.page


@dataclass(frozen=True)
class DeltaDeltaNet(Mixer):
    """One delta memory is read for the queries, keys, values and β of another."""

    feature_map: FeatureMap = EluPlusOne()
    key_scale: KeyScale = SumToOne()
    first_page: FirstPage = EmptyPage()
    heads: Size = 4
    head_width: Size | None = None  # None: an equal share of the model's width

    def __post_init__(self):
        super().__post_init__()
        refuse_signed(self.feature_map, self.key_scale)

    def build(self, width: int, norm: nn.Module | None = None) -> "DeltaDeltaNetMixer":
        return DeltaDeltaNetMixer(self, width, norm)


class DeltaDeltaNetState(NamedTuple):
    programmer: Tensor  # b h k (3 v + 1)
    memory: Tensor  # b h k v


class DeltaDeltaNetMixer(MixerModule):
    """Each head's part of `project` is the programmer's query, key, value and β; its value, and what is read from
    it, is query, key, value and β side by side."""

    def __init__(self, spec: DeltaDeltaNet, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = spec.head_width or split_width(width, spec.heads)
        self.norm = norm
        self.project = nn.Linear(width, spec.heads * (5 * self.head_width + 2), bias=False)
        self.feature_map = spec.feature_map.build(self.head_width)
        self.features = spec.feature_map.features(self.head_width)
        self.first_page = spec.first_page.build(spec.heads, self.features, 3 * self.head_width + 1)
        self.out = nn.Linear(spec.heads * self.head_width, width, bias=False)

    def initial_state(self, batch: int) -> DeltaDeltaNetState:
        weight = self.project.weight
        dtype = memory_dtype(weight.dtype)
        programmer = self.first_page(weight).to(dtype).expand(batch, -1, -1, -1)
        memory = weight.new_zeros(batch, self.spec.heads, self.features, self.head_width, dtype=dtype)
        return DeltaDeltaNetState(programmer, memory)

    def forward(self, x: Tensor, state: DeltaDeltaNetState | None = None) -> tuple[Tensor, DeltaDeltaNetState]:
        programmer, memory = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        width = self.head_width
        made = self.project(x).unflatten(-1, (self.spec.heads, -1))
        program, programmer = self.layer(made, [width, width, 3 * width + 1, 1], programmer)
        reads, memory = self.layer(program, [width, width, width, 1], memory)
        return self.out(reads.flatten(-2)), DeltaDeltaNetState(programmer, memory)

    def layer(self, program: Tensor, sizes: list[int], memory: Tensor) -> tuple[Tensor, Tensor]:
        """`program` is query, key, value and the logit of β side by side, of these sizes."""
        queries, keys, values, logits = program.split(sizes, dim=-1)
        queries, keys = (self.spec.key_scale(self.feature_map(z)) for z in (queries, keys))
        beta = logits.squeeze(-1).sigmoid()
        return memory_scan(queries, keys, values, Gates(erase=beta, write=beta), memory)
