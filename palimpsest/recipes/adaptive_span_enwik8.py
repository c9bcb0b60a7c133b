"""Adaptive spans on enwik8 with 12 layers, whose heads may look back 8,192 bytes: enwik8.sh of the original.

    palimpsest data prepare enwik8
    palimpsest train adaptive-span-enwik8
    palimpsest evaluate runs/adaptive-span-enwik8-001 --split test --checkpoint latest

38,538,541 parameters; published are 1.02 bits per byte, 0.707 nats, on the test split (1.04 on the validation split).
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --evaluation CarriedState
"""

from palimpsest.experiment import Data, Recipe
from palimpsest.legacy import protocols, streams
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.legacy.corpora import AdaptiveSpanEnwik8
from palimpsest.legacy.initialisations import PyTorchStart
from palimpsest.legacy.schedules import AdaptiveSpanWarmup
from palimpsest.legacy.vocabularies import AdaptiveSpanBytes
from palimpsest.models.block import PostNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.language_model import LanguageModel
from palimpsest.training.optimisers import Adagrad
from palimpsest.training.trainer import Run


def with_block(
    name: str,
    data: Data,
    block: PostNorm,
    width: int,
    layers: int,
    steps: int,
    warmup: int = 32_000,
    accumulation: int = 1,
) -> Recipe:
    """The original's training of any of its models on bytes; clipped is what Adagrad steps along, tensor by tensor."""
    return Recipe(
        name=name,
        data=data,
        model=LanguageModel(
            width=width, layers=layers, block=block, head=SoftmaxHead(bias=True), initialisation=PyTorchStart()
        ),
        optimiser=Adagrad(rate=0.07, clip=0.03),
        schedule=AdaptiveSpanWarmup(warmup),
        run=Run(
            steps=steps,
            carry=True,
            accumulation=accumulation,
            clip=None,
            log_every=1000,
            validate_every=1000,
            save_every=1000,
        ),
        evaluation=protocols.AdaptiveSpanBlocks(data.segment, rows=8),
    )


def enwik8(segment: int) -> Data:
    return Data(AdaptiveSpanEnwik8(), AdaptiveSpanBytes(), streams.AdaptiveSpanBlocks(), 64, segment)


attention = AdaptivePastAttention(limit=8192, heads=8, dropout=0.3, penalty=5e-7)
block = PostNorm(mixer=attention, feed_forward=Relu(2048, dropout=0.3))
recipe = with_block("adaptive-span-enwik8", enwik8(512), block, width=512, layers=12, steps=600_000)
