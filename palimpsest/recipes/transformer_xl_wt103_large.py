"""Transformer-XL on WikiText-103 with 18 layers, as run_wt103_large.sh of the original trains it.

    palimpsest data prepare wikitext-103
    palimpsest train transformer-xl-wt103-large
    palimpsest evaluate runs/transformer-xl-wt103-large-001 --split test

285,170,506 parameters; published is a perplexity of 18.3, 2.907 nats per word, on the test split, of the TensorFlow
half of the original, whose model is a little smaller (257 million).
Without the original's quirks:

    --vocabulary Words --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.legacy.protocols import TransformerXLColumns
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model
from palimpsest.recipes.transformer_xl_wt103_base import wikitext_103

attention = SoftmaxAttention(
    DroppedSinusoidalRelative(dropout=0.2), SegmentCache(384), heads=16, head_width=64, dropout=0.2
)
words = AdaptiveSoftmax(cutoffs=(20_000, 40_000, 200_000), divisor=4, tied=True, tied_projections=(1, 2, 3))
recipe = with_model(
    "transformer-xl-wt103-large",
    wikitext_103(128, 384),
    with_attention(1024, 18, attention, inner=4096, dropout=0.2, head=words),
    steps=4_000_000,
    warmup=16_000,
    evaluation=TransformerXLColumns(segment=128, memory=1600, same_length=True, clamp=1000, rows=10),
)
