"""As tiny-shakespeare, with the Performer: random features of the softmax kernel.

    palimpsest train tiny-shakespeare-performer

About two minutes on two CPU cores; 2.07 nats per character on the whole validation split. Other directions every 100
steps; features that do not vanish, however long keys grow (docs/favor.md):

    --redraw 100
    --feature-map StabilisedFavor
"""

from palimpsest.memory.feature_maps import Favor
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers import FastWeight
from palimpsest.recipes.tiny_shakespeare import with_mixer

favor = Favor(directions=32, scale=32**-0.25)
recipe = with_mixer("tiny-shakespeare-performer", FastWeight(favor, Unscaled(), Sum(), Normalised(), heads=3))
