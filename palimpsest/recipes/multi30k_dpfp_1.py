"""As multi30k-softmax, with linear attention over DPFP features, nu = 1, in all three places.

    palimpsest data prepare multi30k
    palimpsest train multi30k-dpfp-1
    palimpsest evaluate runs/multi30k-dpfp-1-001 --split test

2 features for each number of a head, 128 in all, none of them learned or drawn.
One seed on one H200: BLEU 36.55, chrF 61.69, 1.729 nats per sub-word. The other six: docs/translation.md.
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.multi30k_linear import summed

recipe = summed("multi30k-dpfp-1", DPFP(nu=1))
