"""The gated delta rule in three layers of four, attention in the fourth; all else as in enwik8-softmax.

    palimpsest data prepare enwik8
    palimpsest train enwik8-hybrid
    palimpsest evaluate runs/enwik8-hybrid-001 --split test --protocol sliding-window --context 2048 --stride 256

On an H200 it takes seven minutes with everything, and gets 0.776 nats per byte on the validation split and 1.053 bits
per byte on the test split, where Transformer-XL of the same size has a published 1.06 (docs/enwik8.md).
"""

from palimpsest.models.block import Hybrid
from palimpsest.recipes.enwik8_delta import memory
from palimpsest.recipes.enwik8_softmax import attention, with_block, with_mixer

recipe = with_block("enwik8-hybrid", Hybrid(with_mixer(memory), with_mixer(attention), every=4), steps=5000)
