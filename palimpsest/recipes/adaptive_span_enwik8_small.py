"""Adaptive spans on enwik8 with 8 layers, whose heads may look back 1,024 bytes: enwik8_small.sh, for one GPU.

    palimpsest data prepare enwik8
    palimpsest train adaptive-span-enwik8-small
    palimpsest evaluate runs/adaptive-span-enwik8-small-001 --checkpoint latest

6,480,621 parameters; published are about 1.3 bits per byte, 0.90 nats, on the validation split.
Without the original's quirks:

    --corpus Enwik8 --vocabulary Bytes --order Contiguous --evaluation CarriedState
"""

from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.models.block import PostNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.recipes.adaptive_span_enwik8 import enwik8, with_block

attention = AdaptivePastAttention(limit=1024, heads=4, penalty=2e-6)
block = PostNorm(mixer=attention, feed_forward=Relu(1024))
recipe = with_block("adaptive-span-enwik8-small", enwik8(256), block, width=256, layers=8, steps=150_000, warmup=8000)
