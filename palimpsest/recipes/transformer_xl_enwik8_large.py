"""Transformer-XL on enwik8 with 24 layers, as run_enwik8_large.sh of the original trains it.

    palimpsest data prepare enwik8
    palimpsest train transformer-xl-enwik8-large
    palimpsest evaluate runs/transformer-xl-enwik8-large-001 --split test

277,231,820 parameters; published are 0.99 bits per byte, 0.686 nats, on the test split; newlines are not read.
The number is from the TensorFlow half of the original.
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.legacy.protocols import TransformerXLColumns
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.transformer_xl_enwik8_base import enwik8, with_attention, with_model

attention = SoftmaxAttention(
    DroppedSinusoidalRelative(dropout=0.15), SegmentCache(768), heads=8, head_width=128, dropout=0.15
)
large = with_attention(1024, 24, attention, inner=3072, dropout=0.15)
large_evaluation = TransformerXLColumns(segment=128, memory=3800, same_length=True, clamp=1000, rows=10)
recipe = with_model(
    "transformer-xl-enwik8-large", enwik8(64, 768), large, steps=400_000, warmup=4000, evaluation=large_evaluation
)
