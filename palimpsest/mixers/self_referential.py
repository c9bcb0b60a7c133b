"""The self-referential weight matrix as a mixer: a page that is its own programmer."""

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..kernels import memory_dtype
from ..kernels.self_referential import KINDS, self_referential_scan
from ..memory.feature_maps import FeatureMap, Identity
from ..spec import Size
from .mixer import Mixer, MixerModule, split_width


@dataclass(frozen=True)
class SelfReferential(Mixer):
    """A weight matrix that reads each token, and rewrites itself with keys, queries and β of its own making."""

    input_map: FeatureMap = Identity()
    heads: Size = 4
    beta: float = 0.5  # before training
    sharpness: float = 4.0  # of keys and queries before training; at one all are nearly alike and little is changed

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.beta < 1:
            raise UserError(f"β starts between 0 and 1; found {self.beta}")
        if self.input_map.features(2) != 2:
            raise UserError(f"the page reads as many numbers as it makes: {self.input_map} would change their number")

    def build(self, width: int, norm: nn.Module | None = None) -> "SelfReferentialMixer":
        return SelfReferentialMixer(self, width, norm)


class SelfReferentialState(NamedTuple):
    change: Tensor  # b h k (3k + 4), what the page has gained on the learned one


class SelfReferentialMixer(MixerModule):
    def __init__(self, spec: SelfReferential, width: int, norm: nn.Module | None):
        super().__init__()
        self.spec = spec
        self.head_width = split_width(width, spec.heads)
        self.norm = norm
        self.input_map = spec.input_map.build(self.head_width)
        self.page = nn.Parameter(torch.empty(spec.heads, self.head_width, 3 * self.head_width + KINDS))
        self.out = nn.Linear(width, width, bias=False)
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """The columns of β lie around where it starts, as features that sum to one would have it."""
        nn.init.normal_(self.page, std=self.head_width**-0.5, generator=generator)
        with torch.no_grad():
            self.page[..., self.head_width : -KINDS] *= self.spec.sharpness
            self.page[..., -KINDS:] += log(self.spec.beta / (1 - self.spec.beta))

    def initial_state(self, batch: int) -> SelfReferentialState:
        return SelfReferentialState(self.page.new_zeros(batch, *self.page.shape, dtype=memory_dtype(self.page.dtype)))

    def forward(self, x: Tensor, state: SelfReferentialState | None = None) -> tuple[Tensor, SelfReferentialState]:
        (change,) = self.initial_state(len(x)) if state is None else state
        x = x if self.norm is None else self.norm(x)
        inputs = self.input_map(x.unflatten(-1, (self.spec.heads, self.head_width)))
        reads, page = self_referential_scan(inputs, self.page + change)
        return self.out(reads.flatten(-2)), SelfReferentialState(page - self.page)
