"""A language model: embedding, blocks, head. Text goes in as tokens, nats come out."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..batch import Batch, places_of
from ..errors import UserError
from ..spec import Size, Spec
from ..state import State
from .block import Block, BlockModule, PreNorm
from .embeddings import Embedding, TokenEmbedding
from .heads import Head, SoftmaxHead
from .initialisations import Initialisation, Normal


@dataclass(frozen=True)
class LanguageModel(Spec):
    """Predicts each token from all the tokens before it."""

    width: Size = 128
    layers: Size = 4
    block: Block = PreNorm()
    embedding: Embedding = TokenEmbedding()
    head: Head = SoftmaxHead()
    initialisation: Initialisation = Normal()
    recompute: bool = False  # of a block keep only its input for the backward pass, and make the rest again

    @property
    def segment_invariant(self) -> bool:
        """Whether it does not matter how a text is cut into segments."""
        return self.block.segment_invariant and self.embedding.positions.segment_invariant

    @property
    def packs(self) -> bool:
        """Whether a segment may hold several documents."""
        return self.block.packs and self.embedding.positions.segment_invariant

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> "LanguageModel":
        """The same model, to be used with so long a memory of hidden states."""
        block = self.block.remembering(memory, same_length, clamp, extra)
        if memory and block == self.block.remembering(memory + 1, same_length, clamp, extra):
            raise UserError("no part of this model keeps a memory of hidden states whose length could be chosen")
        return replace(self, block=block, embedding=self.embedding if clamp is None else self.embedding.clamping(clamp))

    def build(self, tokens: int, generator: torch.Generator | None = None) -> "LanguageNetwork":
        """`tokens` is the size of the vocabulary."""
        with torch.random.fork_rng(devices=[]):  # modules draw when they are made: nobody else should notice
            model = LanguageNetwork(self, tokens)
        if generator is not None:
            self.initialisation.apply(model, generator)
        return model


class LanguageState(NamedTuple):
    seen: Tensor  # b, tokens of the present document read so far
    blocks: tuple[State, ...]


class LanguageNetwork(nn.Module):
    def __init__(self, spec: LanguageModel, tokens: int):
        super().__init__()
        self.spec, self.tokens = spec, tokens
        self.embedding = spec.embedding.build(tokens, spec.width)
        stack = [spec.block.at(layer) for layer in range(spec.layers)]
        self.blocks = nn.ModuleList(block.build(spec.width) for block in stack)
        share_between_layers(self.blocks)
        self.told_of_passes = [module for module in self.blocks.modules() if hasattr(module, "begin_pass")]
        self.norm = stack[-1].closing_norm(spec.width)
        self.head = spec.head.build(tokens, spec.width, self.embedding)

    def initial_state(self, batch: int) -> LanguageState:
        seen = torch.zeros(batch, dtype=torch.long, device=next(self.parameters()).device)
        return LanguageState(seen, tuple(block.mixer.initial_state(batch) for block in self.stack()))

    def stack(self) -> list[BlockModule]:
        return list(self.blocks)  # pyright: ignore[reportReturnType]

    def multiplied(self) -> int:
        """How many numbers every token is multiplied by, in products of weights."""
        return sum(matrix.numel() for matrix in self.hidden_matrices()) + self.head.multiplied()

    def hidden_matrices(self) -> list[Tensor]:
        """The matrices between embedding and head, for optimisers that treat matrices as such."""
        return [module.weight for module in self.blocks.modules() if isinstance(module, nn.Linear)]

    def twin(self) -> "LanguageNetwork":
        """The same model with weights of its own, all of them."""
        return self.spec.build(self.tokens)

    def remembering(
        self, memory: int, same_length: bool = False, clamp: int | None = None, extra: int = 0
    ) -> "LanguageNetwork":
        """This model, these very weights, with another memory of hidden states."""
        with torch.device("meta"):
            other = LanguageNetwork(self.spec.remembering(memory, same_length, clamp, extra), self.tokens)
        other.load_state_dict(self.state_dict(), assign=True)
        return other.train(self.training)

    def forward(self, batch: Batch, state: LanguageState | None = None) -> tuple[Tensor, LanguageState]:
        """The nats of every target, as `batch.targets`, and the state after the last input."""
        hidden, state = self.read(batch.inputs, state, batch.starts)
        unasked = batch.inputs.shape[1] - batch.targets.shape[1]
        return self.head(hidden[:, unasked:], batch.targets), state

    def predict(self, inputs: Tensor, state: LanguageState | None = None) -> tuple[Tensor, LanguageState]:
        """The log-probabilities of the token after the last input, `b tokens`."""
        hidden, state = self.read(inputs, state)
        return self.head.log_probabilities(hidden[:, -1]), state

    def read(
        self, inputs: Tensor, state: LanguageState | None, starts: Tensor | None = None
    ) -> tuple[Tensor, LanguageState]:
        seen, states = (None, (None,) * len(self.blocks)) if state is None else state
        start = inputs.new_zeros(len(inputs)) if seen is None else seen
        places = places_of(start, inputs.shape[1], starts)
        for module in self.told_of_passes:
            module.begin_pass()  # pyright: ignore[reportCallIssue]
        x = self.embedding(inputs, places)
        after = []
        for block, before in zip(self.stack(), states, strict=True):
            x, now = self.through(block, x, before, starts)
            after.append(now)
        return self.norm(x), LanguageState(places[:, -1] + 1, tuple(after))

    def through(
        self, block: BlockModule, x: Tensor, state: State | None, starts: Tensor | None
    ) -> tuple[Tensor, State]:
        if self.spec.recompute and self.training:
            return checkpoint(block, x, state, starts, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return block(x, state, starts)


def share_between_layers(blocks: nn.ModuleList) -> None:
    """Modules that ask for it, by `shared_by_layers`, are one and the same in all layers: the first of their kind."""
    first: dict[tuple, nn.Module] = {}
    for parent in list(blocks.modules()):
        for name, child in parent.named_children():
            if getattr(child, "shared_by_layers", False):
                kind = (type(child), *(parameter.shape for parameter in child.parameters()))
                setattr(parent, name, first.setdefault(kind, child))
