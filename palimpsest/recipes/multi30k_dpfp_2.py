"""As multi30k-softmax, with linear attention over DPFP features, nu = 2, in all three places.

    palimpsest data prepare multi30k
    palimpsest train multi30k-dpfp-2
    palimpsest evaluate runs/multi30k-dpfp-2-001 --split test

4 features for each number of a head, 256 in all, none of them learned or drawn.
One seed on one H200: BLEU 37.33, chrF 62.07, 1.718 nats per sub-word. The other six: docs/translation.md.
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.multi30k_linear import summed

recipe = summed("multi30k-dpfp-2", DPFP(nu=2))
