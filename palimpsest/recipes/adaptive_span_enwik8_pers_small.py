"""An all-attention network on enwik8, 18 layers with 1,024 persistent vectors: enwik8_pers_small.sh of adaptive-span.

    palimpsest data prepare enwik8
    palimpsest train adaptive-span-enwik8-pers-small
    palimpsest train --from RUN --keep-optimiser --rate 0.007 --warmup 0 --steps 30000
    palimpsest evaluate runs/adaptive-span-enwik8-pers-small-002 --split test --checkpoint latest

38,501,725 parameters; published are 1.01 bits per byte, 0.700 nats, on the test split (1.03 on the validation split).
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --evaluation CarriedState
"""

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.models.block import PostNorm
from palimpsest.recipes.adaptive_span_enwik8 import enwik8, with_block

attention = AdaptivePastAttention(8192, PersistentVectors(1024), heads=8, dropout=0.3, penalty=1e-7)
block = PostNorm(mixer=attention, feed_forward=None)
recipe = with_block(
    "adaptive-span-enwik8-pers-small", enwik8(512), block, width=512, layers=18, steps=450_000, accumulation=2
)
