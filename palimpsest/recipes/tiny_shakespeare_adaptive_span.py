"""As tiny-shakespeare, with attention whose heads learn how far to look back, up to 512 characters.

    palimpsest train tiny-shakespeare-adaptive-span

About three minutes on two CPU cores; 1.61 nats per character on the whole validation split.
"""

from dataclasses import replace

from palimpsest.attention.positions import SharedRelative
from palimpsest.attention.spans import Adaptive
from palimpsest.evaluation.perplexity import CarriedState
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.tiny_shakespeare import with_mixer
from palimpsest.recipes.tiny_shakespeare_transformer_xl import carried

attention = SoftmaxAttention(SharedRelative(512), Adaptive(limit=512, ramp=32, initial=0.05, penalty=2e-5), heads=3)
recipe = replace(carried(with_mixer("tiny-shakespeare-adaptive-span", attention)), evaluation=CarriedState(128))
