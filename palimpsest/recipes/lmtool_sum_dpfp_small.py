"""lmtool-fwms's Linear Transformer with DPFP features on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-dpfp-small
    palimpsest evaluate runs/lmtool-sum-dpfp-small-001 --split test

44,018,394 parameters; no score was published, neither a perplexity nor nats. The original's scripts speak of this
model, as type 36, which it does not have. There are 2 · nu features for each number:

    --nu 1
    --nu 3

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.lmtool_sum_elu_small import summed

recipe = summed("lmtool-sum-dpfp-small", small, DPFP(nu=2))
