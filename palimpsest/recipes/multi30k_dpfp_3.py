"""As multi30k-softmax, with linear attention over DPFP features, nu = 3, in all three places.

    palimpsest data prepare multi30k
    palimpsest train multi30k-dpfp-3
    palimpsest evaluate runs/multi30k-dpfp-3-001 --split test

6 features for each number of a head, 384 in all, none of them learned or drawn.
One seed on one H200: BLEU 36.70, chrF 61.78, 1.711 nats per sub-word. The other six: docs/translation.md.
"""

from palimpsest.memory.feature_maps import DPFP
from palimpsest.recipes.multi30k_linear import summed

recipe = summed("multi30k-dpfp-3", DPFP(nu=3))
