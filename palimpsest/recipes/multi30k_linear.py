"""As multi30k-softmax, with the Linear Transformer's attention, elu + 1, in all three places.

    palimpsest data prepare multi30k
    palimpsest train multi30k-linear
    palimpsest evaluate runs/multi30k-linear-001 --split test

A page written once from the source, a page for the translation: each token takes as long as the one before.
One seed on one H200: BLEU 36.87, chrF 62.05, 1.728 nats per sub-word. The other six: docs/translation.md.
"""

from palimpsest.experiment import TranslationRecipe
from palimpsest.memory.feature_maps import EluPlusOne, FeatureMap
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers import FastWeight, MemorySource
from palimpsest.recipes.multi30k_softmax import with_attentions


def summed(name: str, feature_map: FeatureMap) -> TranslationRecipe:
    """Linear attention with these features in all three places."""
    source = MemorySource(feature_map, Unscaled(), Normalised(), heads=4)
    return with_attentions(name, source, FastWeight(feature_map, Unscaled(), Sum(), Normalised(), heads=4))


recipe = summed("multi30k-linear", EluPlusOne())
