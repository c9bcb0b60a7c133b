"""lmtool-fwms's Linear Transformer with DPFP features on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-dpfp-medium
    palimpsest evaluate runs/lmtool-sum-dpfp-medium-001 --split test

89,833,434 parameters; no score was published, neither a perplexity nor nats. The original's scripts speak of this
model, as type 36, which it does not have. There are 2 · nu features for each number:

    --nu 1
    --nu 3

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.lmtool_standard_small import medium
from palimpsest.recipes.lmtool_sum_elu_small import summed

recipe = summed("lmtool-sum-dpfp-medium", medium, DPFP(nu=2))
