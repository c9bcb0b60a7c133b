"""lmtool-fwms's Transformer-XL on WikiText-103, of the medium size: the last 384 words before a segment are remembered.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-transformer-xl-medium
    palimpsest evaluate runs/lmtool-transformer-xl-medium-001 --split test

90,882,522 parameters; published is a perplexity of 25.5, 3.239 nats per word, on the test split (24.6 on the validation
split).
Without the original's quirks:

    --vocabulary Words --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.legacy.protocols import TransformerXLColumns
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model
from palimpsest.recipes.transformer_xl_wt103_base import wikitext_103, words

attention = SoftmaxAttention(DroppedSinusoidalRelative(dropout=0.1), SegmentCache(384), heads=8, head_width=32)
recipe = with_model(
    "lmtool-transformer-xl-medium",
    wikitext_103(56, 384),
    with_attention(256, 16, attention, inner=2048, dropout=0.1, head=words),
    steps=200_000,
    warmup=1000,
    evaluation=TransformerXLColumns(segment=384, memory=384, clamp=384, rows=1),
)
