"""As tiny-shakespeare, with softmax attention over the last 128 characters in every fourth layer.

    palimpsest train tiny-shakespeare-hybrid

About two minutes on two CPU cores; 1.54 nats per character on the whole validation split.
"""

from palimpsest.attention.positions import Rotary
from palimpsest.attention.spans import Fixed
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.block import Hybrid
from palimpsest.recipes.tiny_shakespeare import block_of, memory, with_block

attention = SoftmaxAttention(Rotary(), Fixed(128), heads=3)
recipe = with_block("tiny-shakespeare-hybrid", Hybrid(block_of(memory), block_of(attention), every=4))
