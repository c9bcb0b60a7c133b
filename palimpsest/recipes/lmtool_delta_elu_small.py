"""lmtool-fwms's Delta Network on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-elu-small
    palimpsest evaluate runs/lmtool-delta-elu-small-001 --split test

44,034,778 parameters; published is a perplexity of 35.2, 3.561 nats per word, on the test split (34.1 on the validation
split). Published scores are without attention normalisation. As the original's script has it, which normalises what is
read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.experiment import Recipe
from palimpsest.memory.feature_maps import EluPlusOne, FeatureMap
from palimpsest.memory.key_scales import SumToOne
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import Delta
from palimpsest.mixers import FastWeight
from palimpsest.recipes.lmtool_standard_small import Size, fresh, small, with_mixer


def delta(name: str, size: Size, feature_map: FeatureMap) -> Recipe:
    return fresh(name, size, with_mixer(size, delta_memory(size, feature_map)))


def delta_memory(size: Size, feature_map: FeatureMap) -> FastWeight:
    """Features that sum to one, a β without a bias, and reads that are scaled but not normalised."""
    return FastWeight(feature_map, SumToOne(), Delta(beta=None), Plain(size.scale), heads=8, head_width=size.head_width)


recipe = delta("lmtool-delta-elu-small", small, EluPlusOne())
