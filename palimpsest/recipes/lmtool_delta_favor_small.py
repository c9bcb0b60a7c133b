"""lmtool-fwms's Delta Network with the Performer's features on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-favor-small
    palimpsest evaluate runs/lmtool-delta-favor-small-001 --split test

44,034,778 parameters; published is a perplexity of 37.2, 3.616 nats per word, on the test split (36.1 on the validation
split). Random directions are drawn anew at every step, as in the original. Published scores are without attention
normalisation. As the original's script has it, which normalises what is read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --feature-map Favor
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.legacy.favor import TransposedFavor
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import small

recipe = delta("lmtool-delta-favor-small", small, TransposedFavor(directions=8, redraw=1))
