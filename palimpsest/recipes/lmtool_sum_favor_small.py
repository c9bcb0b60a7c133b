"""lmtool-fwms's Performer on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-sum-favor-small
    palimpsest evaluate runs/lmtool-sum-favor-small-001 --split test

44,018,394 parameters; published is a perplexity of 39.6, 3.679 nats per word, on the test split (39.0 on the validation
split). Random directions are drawn anew at every step, as in the original. Without the
original's quirks:

    --feature-map Favor
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.legacy.favor import TransposedFavor
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.lmtool_sum_elu_small import summed

recipe = summed("lmtool-sum-favor-small", small, TransposedFavor(directions=8, redraw=1))
