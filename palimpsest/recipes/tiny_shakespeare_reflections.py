"""As tiny-shakespeare, with the DeltaNet of negative eigenvalues: β up to two turns over what a key recalled.

    palimpsest train tiny-shakespeare-reflections

About two minutes on two CPU cores; 1.60 nats per character on the whole validation split.
"""

from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import Delta
from palimpsest.mixers import FastWeight
from palimpsest.recipes.tiny_shakespeare import with_mixer

rule = Delta(beta=1.0, limit=2.0)
memory = FastWeight(Silu(), UnitNorm(), rule, Plain(), heads=3, convolution=ShortConvolution(4), value_map=Silu())
recipe = with_mixer("tiny-shakespeare-reflections", memory)
