"""As enwik8-softmax, with the gated delta rule in three layers of four."""

from palimpsest.models.block import Hybrid
from palimpsest.recipes.enwik8_delta import memory
from palimpsest.recipes.enwik8_softmax import attention, with_block, with_mixer

recipe = with_block("enwik8-hybrid", Hybrid(with_mixer(memory), with_mixer(attention), every=4), steps=6000)
