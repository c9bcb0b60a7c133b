"""As multi30k-softmax, with the Performer's attention in all three places: random features of the softmax kernel.

    palimpsest data prepare multi30k
    palimpsest train multi30k-favor
    palimpsest evaluate runs/multi30k-favor-001 --split test

The paper found that they must be many, and so it is here. There are twice as many features as directions; with more of
them, or others every 500 steps:

    --encoder.feature-map.directions 256 --cross.feature-map.directions 256 --mixer.feature-map.directions 256
    --encoder.feature-map.redraw 500 --cross.feature-map.redraw 500 --mixer.feature-map.redraw 500

One seed on one H200: BLEU 35.30, chrF 59.53, 1.804 nats per sub-word; with 512 features 36.75, 61.03 and 1.762. The
other six: docs/translation.md.
"""

from palimpsest.memory.feature_maps import StabilisedFavor
from palimpsest.recipes.multi30k_linear import summed

recipe = summed("multi30k-favor", StabilisedFavor(directions=64, scale=64**-0.25))
