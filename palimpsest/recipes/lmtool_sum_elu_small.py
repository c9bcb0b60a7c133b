"""lmtool-fwms's Linear Transformer on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-elu-small
    palimpsest evaluate runs/lmtool-sum-elu-small-001 --split test

44,018,394 parameters; published is a perplexity of 38.3, 3.645 nats per word, on the test split (37.1 on the validation
split).
Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.experiment import Recipe
from palimpsest.memory.feature_maps import EluPlusOne, FeatureMap
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers import FastWeight
from palimpsest.recipes.lmtool_standard_small import Size, fresh, small, with_mixer


def summed(name: str, size: Size, feature_map: FeatureMap) -> Recipe:
    """Reads are normalised and, beside that, scaled."""
    read_out = Normalised(size.scale, epsilon=1e-5)
    memory = FastWeight(feature_map, Unscaled(), Sum(), read_out, heads=8, head_width=size.head_width)
    return fresh(name, size, with_mixer(size, memory))


recipe = summed("lmtool-sum-elu-small", small, EluPlusOne())
