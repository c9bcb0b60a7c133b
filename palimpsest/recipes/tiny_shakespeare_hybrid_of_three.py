"""As tiny-shakespeare, with blocks of three kinds: delta, sum, delta, softmax attention over the last 128 characters.

    palimpsest train tiny-shakespeare-hybrid-of-three

A hybrid within a hybrid: each counts all layers of the stack from the first. About two minutes on two CPU cores; 1.55
nats per character on the whole validation split.
"""

from palimpsest.models.block import Hybrid
from palimpsest.recipes.tiny_shakespeare import block_of, memory, with_block
from palimpsest.recipes.tiny_shakespeare_hybrid import attention
from palimpsest.recipes.tiny_shakespeare_linear import recipe as linear

memories = Hybrid(block_of(memory), linear.model.block, every=2)
recipe = with_block("tiny-shakespeare-hybrid-of-three", Hybrid(memories, block_of(attention), every=4))
