"""As tiny-shakespeare, with self-referential weight matrices, which make their own keys, queries and β.

    palimpsest train tiny-shakespeare-self-referential

About four minutes on two CPU cores, as every character waits for the one before; 1.76 nats per character on the whole
validation split.
"""

from palimpsest.mixers import SelfReferential
from palimpsest.recipes.tiny_shakespeare import with_mixer

recipe = with_mixer("tiny-shakespeare-self-referential", SelfReferential(heads=3))
