"""lmtool-fwms's Delta Network with the Performer's features on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-favor-medium
    palimpsest evaluate runs/lmtool-delta-favor-medium-001 --split test

89,866,202 parameters; published is a perplexity of 31.8, 3.459 nats per word, on the test split (30.0 on the validation
split). Random directions are drawn anew at every step, as in the original. Published scores are without attention
normalisation. As the original's script has it, which normalises what is read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --feature-map Favor
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.legacy.favor import TransposedFavor
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import medium

recipe = delta("lmtool-delta-favor-medium", medium, TransposedFavor(directions=16, redraw=1))
