"""Transformer-XL on enwik8 with 12 layers, as run_enwik8_base.sh of the original trains it.

    palimpsest data prepare enwik8
    palimpsest train transformer-xl-enwik8-base
    palimpsest evaluate runs/transformer-xl-enwik8-base-001 --split test

41,055,436 parameters; published are 1.06 bits per byte, 0.735 nats, on the test split; newlines are not
read.
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from dataclasses import replace

from palimpsest.attention.positions import AddedPositions, NoPositions
from palimpsest.attention.spans import SegmentCache
from palimpsest.evaluation.perplexity import Protocol
from palimpsest.experiment import Data, Recipe
from palimpsest.legacy.corpora import TransformerXLEnwik8
from palimpsest.legacy.initialisations import TransformerXLStart
from palimpsest.legacy.protocols import TransformerXLColumns
from palimpsest.legacy.schedules import TransformerXLCosine
from palimpsest.legacy.streams import TransformerXLSegments
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.legacy.vocabularies import TransformerXLBytes
from palimpsest.mixers import Mixer, SoftmaxAttention
from palimpsest.models.block import PostNorm
from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.models.language_model import LanguageModel
from palimpsest.training.optimisers import Adam
from palimpsest.training.trainer import Run


def with_attention(
    width: int,
    layers: int,
    attention: Mixer,
    inner: int,
    dropout: float,
    head: AdaptiveSoftmax = AdaptiveSoftmax(tied=True),  # noqa: B008 (immutable)
    positions: AddedPositions = NoPositions(),  # noqa: B008 (immutable)
) -> LanguageModel:
    """The original's model around an attention, with one dropout in all places but the attention's weights."""
    return LanguageModel(
        width=width,
        layers=layers,
        block=PostNorm(mixer=attention, feed_forward=Relu(inner, dropout), dropout=dropout),
        embedding=AdaptiveEmbedding(head.cutoffs, head.divisor, positions=positions, dropout=dropout),
        head=replace(head, dropout=dropout),
        initialisation=TransformerXLStart(),
    )


def with_model(
    name: str, data: Data, model: LanguageModel, steps: int, warmup: int, evaluation: Protocol, carry: bool = True
) -> Recipe:
    """The original's training, of any of its models."""
    return Recipe(
        name=name,
        data=data,
        model=model,
        optimiser=Adam(rate=2.5e-4),
        schedule=TransformerXLCosine(warmup),
        run=Run(steps=steps, seed=1111, carry=carry, clip=0.25, log_every=200, validate_every=4000, save_every=4000),
        evaluation=evaluation,
    )


def enwik8(batch: int, segment: int) -> Data:
    return Data(TransformerXLEnwik8(), TransformerXLBytes(), TransformerXLSegments(), batch, segment)


attention = SoftmaxAttention(DroppedSinusoidalRelative(dropout=0.1), SegmentCache(512), heads=8, head_width=64)
base = with_attention(512, 12, attention, inner=2048, dropout=0.1)
base_evaluation = TransformerXLColumns(segment=80, memory=2100, same_length=True, clamp=820, rows=10)
recipe = with_model(
    "transformer-xl-enwik8-base", enwik8(22, 512), base, steps=400_000, warmup=0, evaluation=base_evaluation
)
