"""lmtool-fwms's Delta Network with DPFP features on WikiText-103, of the small size: 256 words of context.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-dpfp-small
    palimpsest evaluate runs/lmtool-delta-dpfp-small-001 --split test

44,034,778 parameters; no score was published, neither a perplexity nor nats. There are 2 · nu features for each number:

    --nu 1
    --nu 3

As the original's script has it, which normalises what is read, and with what is written normalised too:

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule NormalisedDelta --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.lmtool_delta_elu_small import delta
from palimpsest.recipes.lmtool_standard_small import small

recipe = delta("lmtool-delta-dpfp-small", small, DPFP(nu=2))
