"""As enwik8-softmax, with the gated delta rule instead of attention."""

from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import GatedNorm
from palimpsest.memory.update_rules import GatedDelta
from palimpsest.mixers import FastWeight
from palimpsest.recipes.enwik8_softmax import with_block, with_mixer

memory = FastWeight(
    Silu(), UnitNorm(), GatedDelta(), GatedNorm(), heads=8, convolution=ShortConvolution(4), value_map=Silu()
)
recipe = with_block("enwik8-delta", with_mixer(memory), steps=6000)
