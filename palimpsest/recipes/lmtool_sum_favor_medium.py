"""lmtool-fwms's Performer on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-favor-medium
    palimpsest evaluate runs/lmtool-sum-favor-medium-001 --split test

89,833,434 parameters; published is a perplexity of 33.8, 3.520 nats per word, on the test split (32.2 on the validation
split). Random directions are drawn anew at every step, as in the original. Without the
original's quirks:

    --feature-map Favor
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.legacy.favor import TransposedFavor
from palimpsest.recipes.lmtool_standard_small import medium
from palimpsest.recipes.lmtool_sum_elu_small import summed

recipe = summed("lmtool-sum-favor-medium", medium, TransposedFavor(directions=16, redraw=1))
