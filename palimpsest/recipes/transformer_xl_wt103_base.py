"""Transformer-XL on WikiText-103 with 16 layers, as run_wt103_base.sh of the original trains it.

    palimpsest data prepare wikitext-103
    palimpsest train transformer-xl-wt103-base
    palimpsest evaluate runs/transformer-xl-wt103-base-001 --split test

151,107,538 parameters; published is a perplexity of 24.03, 3.179 nats per word, on the test split.
Without the original's quirks:

    --vocabulary Words --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.data.standard import WikiText103
from palimpsest.experiment import Data
from palimpsest.legacy.protocols import TransformerXLColumns
from palimpsest.legacy.streams import TransformerXLSegments
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.legacy.vocabularies import TransformerXLWords
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model


def wikitext_103(batch: int, segment: int) -> Data:
    return Data(WikiText103(), TransformerXLWords(), TransformerXLSegments(), batch, segment)


attention = SoftmaxAttention(DroppedSinusoidalRelative(dropout=0.1), SegmentCache(150), heads=10, head_width=41)
words = AdaptiveSoftmax(cutoffs=(20_000, 40_000, 200_000), tied=True)
recipe = with_model(
    "transformer-xl-wt103-base",
    wikitext_103(60, 150),
    with_attention(410, 16, attention, inner=2100, dropout=0.1, head=words),
    steps=200_000,
    warmup=0,
    evaluation=TransformerXLColumns(segment=64, memory=640, same_length=True, clamp=400, rows=10),
)
