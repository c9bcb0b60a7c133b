"""Adaptive spans on enwik8 with 24 layers, whose heads may look back 8,192 bytes: enwik8_large.sh of the original.

    palimpsest data prepare enwik8
    palimpsest train adaptive-span-enwik8-large
    palimpsest train --from RUN --keep-optimiser --rate 0.007 --warmup 0 --steps 20000
    palimpsest evaluate runs/adaptive-span-enwik8-large-002 --split test --checkpoint latest

208,910,221 parameters; published are 0.98 bits per byte, 0.679 nats, on the test split (1.00 on the validation split).
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --evaluation CarriedState
"""

from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.models.block import PostNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.recipes.adaptive_span_enwik8 import enwik8, with_block

attention = AdaptivePastAttention(limit=8192, heads=8, dropout=0.4, penalty=5e-7)
block = PostNorm(mixer=attention, feed_forward=Relu(4096, dropout=0.4))
recipe = with_block(
    "adaptive-span-enwik8-large", enwik8(512), block, width=768, layers=24, steps=150_000, accumulation=2
)
