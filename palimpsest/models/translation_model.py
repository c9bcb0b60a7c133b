"""A translation model: an encoder that reads the source as a whole, and a decoder that writes, looking back at it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention.positions import NoPositions, Sinusoidal
from ..batch import Batch, Source, places_of
from ..errors import UserError
from ..mixers.softmax_attention import SoftmaxAttention
from ..mixers.source_attention import SoftmaxSource, SourceAttention
from ..spec import Size, Spec
from ..state import State
from .block import Block, BlockModule, PreNorm
from .embeddings import Embedding, TokenEmbedding
from .heads import Head, SoftmaxHead
from .initialisations import Initialisation, Scaled
from .language_model import share_between_layers
from .norms import LayerNorm


@dataclass(frozen=True)
class TranslationModel(Spec):
    """Predicts each token of a translation from the source and all the tokens before it."""

    width: Size = 128
    encoder_layers: Size = 3
    layers: Size = 3  # of the decoder
    encoder: SourceAttention = SoftmaxSource()  # how the source reads itself
    cross: SourceAttention = SoftmaxSource()  # how the translation reads the source
    block: Block = PreNorm(SoftmaxAttention(NoPositions()), norm=LayerNorm())  # its mixer is the decoder's alone
    embedding: Embedding = TokenEmbedding(scale=128**0.5, positions=Sinusoidal())  # of both languages
    head: Head = SoftmaxHead(tied=True, smoothing=0.1)
    initialisation: Initialisation = Scaled()

    def __post_init__(self):
        super().__post_init__()
        if not (self.block.segment_invariant and self.block.remembers and self.embedding.positions.segment_invariant):
            raise UserError(
                "a translation is learned in one piece and written token by token: choose a mixer and positions to "
                "which that is the same"
            )

    def build(self, tokens: int, generator: torch.Generator | None = None) -> "TranslationNetwork":
        """`tokens` is the size of the vocabulary that both languages share."""
        with torch.random.fork_rng(devices=[]):  # modules draw when they are made: nobody else should notice
            model = TranslationNetwork(self, tokens)
        if generator is not None:
            self.initialisation.apply(model, generator)
        return model


class TranslationState(NamedTuple):
    seen: Tensor  # b, tokens of the translation so far
    blocks: tuple[State, ...]
    pages: tuple[State, ...]  # what each layer keeps of the source


class EncoderLayer(nn.Module):
    def __init__(self, spec: TranslationModel, block: Block):
        super().__init__()
        self.attention = spec.encoder.build(spec.width)
        self.around_attention = block.skip(spec.width)
        feed_forward = getattr(block, "feed_forward", None)
        self.feed_forward = None if feed_forward is None else feed_forward.build(spec.width)
        self.around_feed_forward = None if feed_forward is None else block.skip(spec.width)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        x = self.around_attention(x, lambda heard: self.attention(heard, present))
        return x if self.around_feed_forward is None else self.around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """The block, with a look at the source between its mixer and its feed-forward part."""

    block: BlockModule

    def __init__(self, spec: TranslationModel, block: Block):
        super().__init__()
        self.around_attention = block.skip(spec.width)
        self.block = block.build(spec.width)
        self.attention = spec.cross.build(spec.width)

    def forward(self, x: Tensor, state: State | None, page: State) -> tuple[Tensor, State]:
        x, state = self.block.mixed(x, state)
        x = self.around_attention(x, lambda heard: self.attention.read(heard, page))
        return self.block.fed(x), state


class TranslationNetwork(nn.Module):
    def __init__(self, spec: TranslationModel, tokens: int):
        super().__init__()
        self.spec, self.tokens = spec, tokens
        self.embedding = spec.embedding.build(tokens, spec.width)
        encoder, decoder = ([spec.block.at(i) for i in range(n)] for n in (spec.encoder_layers, spec.layers))
        self.encoder = nn.ModuleList(EncoderLayer(spec, block) for block in encoder)
        self.decoder = nn.ModuleList(DecoderLayer(spec, block) for block in decoder)
        share_between_layers(self.decoder)
        self.told_of_passes = [module for module in self.decoder.modules() if hasattr(module, "begin_pass")]
        self.encoder_norm = encoder[-1].closing_norm(spec.width)
        self.norm = decoder[-1].closing_norm(spec.width)
        self.head = spec.head.build(tokens, spec.width, self.embedding)

    def layers(self) -> list[DecoderLayer]:
        return list(self.decoder)  # pyright: ignore[reportReturnType]

    def multiplied(self) -> int:
        """How many numbers a token and one of its source are multiplied by, in products of weights."""
        return sum(matrix.numel() for matrix in self.hidden_matrices()) + self.head.multiplied()

    def hidden_matrices(self) -> list[Tensor]:
        """The matrices between embedding and head, for optimisers that treat matrices as such."""
        stacks = (self.encoder, self.decoder)
        return [module.weight for stack in stacks for module in stack.modules() if isinstance(module, nn.Linear)]

    def begin(self, source: Source) -> TranslationState:
        """All that is ever read of the source, and no token of its translation yet."""
        rows, length = source.tokens.shape
        fresh = torch.zeros(rows, dtype=torch.long, device=source.tokens.device)
        x = self.embedding(source.tokens, places_of(fresh, length))
        for layer in self.encoder:
            x = layer(x, source.present)
        x = self.encoder_norm(x)
        pages = tuple(layer.attention.write(x, source.present) for layer in self.layers())
        return TranslationState(fresh, (None,) * len(pages), pages)

    def forward(self, batch: Batch, state: TranslationState | None = None) -> tuple[Tensor, TranslationState]:
        """The nats of every target, `b t`, and the state after the last input."""
        if state is None and batch.source is None:
            raise UserError("there is nothing to translate in this batch: it has no source")
        hidden, state = self.read(batch.inputs, self.begin(batch.source) if state is None else state)  # pyright: ignore[reportArgumentType]
        return self.head(hidden, batch.targets), state

    def predict(self, inputs: Tensor, state: TranslationState) -> tuple[Tensor, TranslationState]:
        """The log-probabilities of the token after the last input, `b tokens`."""
        hidden, state = self.read(inputs, state)
        return self.head.log_probabilities(hidden[:, -1]), state

    def read(self, inputs: Tensor, state: TranslationState) -> tuple[Tensor, TranslationState]:
        for module in self.told_of_passes:
            module.begin_pass()  # pyright: ignore[reportCallIssue]
        places = places_of(state.seen, inputs.shape[1])
        x, after = self.embedding(inputs, places), []
        for layer, before, page in zip(self.layers(), state.blocks, state.pages, strict=True):
            x, now = layer(x, before, page)
            after.append(now)
        return self.norm(x), TranslationState(places[:, -1] + 1, tuple(after), state.pages)
