"""lmtool-fwms's Delta Network with DPFP features on WikiText-103, of the medium size: 384 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-dpfp-medium
    palimpsest evaluate runs/lmtool-delta-dpfp-medium-001 --split test

89,866,202 parameters; no score was published, neither a perplexity nor nats. There are 2 · nu features for each number:

    --nu 1
    --nu 3

As the original's script has it, which normalises what is read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow --context 384
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import medium

recipe = delta("lmtool-delta-dpfp-medium", medium, DPFP(nu=2))
