"""lmtool-fwms's Linear Transformer on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-elu-medium
    palimpsest evaluate runs/lmtool-sum-elu-medium-001 --split test

89,833,434 parameters; published is a perplexity of 33.0, 3.497 nats per word, on the test split (31.1 on the validation
split).
Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.recipes.lmtool_standard_small import medium
from palimpsest.recipes.lmtool_sum_elu_small import summed

recipe = summed("lmtool-sum-elu-medium", medium, EluPlusOne())
