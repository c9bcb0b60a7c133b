"""As tiny-shakespeare, with the Linear Transformer: everything is added, nothing is erased.

    palimpsest train tiny-shakespeare-linear

About two minutes on two CPU cores; @NATS@ nats per character on the whole validation split.
"""

from dataclasses import replace

from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers import FastWeight
from palimpsest.recipes import tiny_shakespeare

base = tiny_shakespeare.recipe
mixer = FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised(), heads=3)
recipe = replace(
    base,
    name="tiny-shakespeare-linear",
    model=replace(base.model, block=replace(base.model.block, mixer=mixer)),
)
