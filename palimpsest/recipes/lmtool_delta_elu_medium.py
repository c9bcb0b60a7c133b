"""lmtool-fwms's Delta Network on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-elu-medium
    palimpsest evaluate runs/lmtool-delta-elu-medium-001 --split test

89,866,202 parameters; published is a perplexity of 31.5, 3.450 nats per word, on the test split (29.7 on the validation
split). Published scores are without attention normalisation. As the original's script has it, which normalises what is
read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import medium

recipe = delta("lmtool-delta-elu-medium", medium, EluPlusOne())
