"""As tiny-shakespeare, with the whole Gated DeltaNet: short convolutions, SiLU of values too, a norm and a gate.

    palimpsest train tiny-shakespeare-gated-delta-net

About three minutes on two CPU cores; 1.58 nats per character on the whole validation split.
"""

from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import GatedNorm
from palimpsest.memory.update_rules import GatedDelta
from palimpsest.mixers import FastWeight
from palimpsest.recipes.tiny_shakespeare import with_mixer

memory = FastWeight(
    Silu(), UnitNorm(), GatedDelta(), GatedNorm(), heads=3, convolution=ShortConvolution(4), value_map=Silu()
)
recipe = with_mixer("tiny-shakespeare-gated-delta-net", memory)
