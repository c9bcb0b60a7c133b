"""An all-attention network on enwik8, 36 layers with 2,048 persistent vectors: enwik8_pers.sh of adaptive-span.

    palimpsest data prepare enwik8
    palimpsest train adaptive-span-enwik8-pers
    palimpsest train --from RUN --keep-optimiser --rate 0.007 --warmup 0 --steps 10000
    palimpsest evaluate runs/adaptive-span-enwik8-pers-002 --split test --checkpoint latest

114,017,773 parameters; published are 0.98 bits per byte, 0.679 nats, on the test split (1.00 on the validation split).
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --evaluation CarriedState
"""

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.models.block import PostNorm
from palimpsest.recipes.adaptive_span_enwik8 import enwik8, with_block

attention = AdaptivePastAttention(8192, PersistentVectors(2048), heads=8, dropout=0.4, penalty=1e-7)
block = PostNorm(mixer=attention, feed_forward=None)
recipe = with_block(
    "adaptive-span-enwik8-pers", enwik8(512), block, width=512, layers=36, steps=200_000, accumulation=2
)
