"""A language model: embedding, blocks, head. Text goes in as tokens, nats come out."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import UserError
from ..spec import Spec
from ..state import State
from .block import Block, BlockModule, PreNorm
from .embeddings import Embedding, TokenEmbedding
from .heads import Head, SoftmaxHead
from .initialisations import Initialisation, Normal


@dataclass(frozen=True)
class LanguageModel(Spec):
    """Predicts each token from all the tokens before it."""

    width: int = 128
    layers: int = 4
    block: Block = PreNorm()
    embedding: Embedding = TokenEmbedding()
    head: Head = SoftmaxHead()
    initialisation: Initialisation = Normal()

    def __post_init__(self):
        if self.layers < 1:
            raise UserError(f"a model has at least one layer; found {self.layers}")

    def build(self, tokens: int, generator: torch.Generator | None = None) -> "LanguageNetwork":
        """`tokens` is the size of the vocabulary."""
        with torch.random.fork_rng(devices=[]):  # modules draw when they are made: nobody else should notice
            model = LanguageNetwork(self, tokens)
        if generator is not None:
            self.initialisation.apply(model, generator)
        return model


class LanguageState(NamedTuple):
    seen: Tensor  # b, tokens read so far
    blocks: tuple[State, ...]


class LanguageNetwork(nn.Module):
    def __init__(self, spec: LanguageModel, tokens: int):
        super().__init__()
        self.spec = spec
        self.embedding = spec.embedding.build(tokens, spec.width)
        stack = [spec.block.at(layer) for layer in range(spec.layers)]
        self.blocks = nn.ModuleList(block.build(spec.width) for block in stack)
        self.norm = stack[-1].closing_norm(spec.width)
        self.head = spec.head.build(tokens, spec.width, self.embedding.table)

    def initial_state(self, batch: int) -> LanguageState:
        seen = torch.zeros(batch, dtype=torch.long, device=self.embedding.table.weight.device)
        return LanguageState(seen, tuple(block.mixer.initial_state(batch) for block in self.stack()))

    def stack(self) -> list[BlockModule]:
        return list(self.blocks)  # pyright: ignore[reportReturnType]

    def hidden_matrices(self) -> list[nn.Parameter]:
        """The matrices between embedding and head, for optimisers that treat matrices as such."""
        return [parameter for parameter in self.blocks.parameters() if parameter.ndim == 2]

    def forward(self, batch: Batch, state: LanguageState | None = None) -> tuple[Tensor, LanguageState]:
        """The nats of every target, `b t`, and the state after the last input."""
        hidden, state = self.read(batch.inputs, state)
        return self.head(hidden, batch.targets), state

    def predict(self, inputs: Tensor, state: LanguageState | None = None) -> tuple[Tensor, LanguageState]:
        """The log-probabilities of the token after the last input, `b tokens`."""
        hidden, state = self.read(inputs, state)
        return self.head.log_probabilities(hidden[:, -1]), state

    def read(self, inputs: Tensor, state: LanguageState | None) -> tuple[Tensor, LanguageState]:
        seen, states = (None, (None,) * len(self.blocks)) if state is None else state
        start = inputs.new_zeros(len(inputs)) if seen is None else seen
        places = start[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        x = self.embedding(inputs, places)
        after = []
        for block, before in zip(self.stack(), states, strict=True):
            x, now = block(x, before)
            after.append(now)
        return self.norm(x), LanguageState(start + inputs.shape[1], tuple(after))
