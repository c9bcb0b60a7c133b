"""lmtool-fwms's Delta Network on WikiText-103, of the medium size, that carries its memory on from segment to segment.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-delta-elu-medium-carried
    palimpsest evaluate runs/lmtool-delta-elu-medium-carried-001 --split test

89,866,202 parameters, and no positions; published is a perplexity of 29.4, 3.381 nats per word, on the test split (27.8
on the validation split), without attention normalisation. As the original's script has it, which normalises what is
read; and the Linear Transformer, which by the paper does not learn so (its perplexity is above 1,000):

    --read-out Normalised --read-out.epsilon 1e-5
    --update-rule Sum --key-scale Unscaled --read-out Normalised --read-out.epsilon 1e-5

Without the original's quirks:

    --vocabulary Words --order Contiguous --schedule Cosine
"""

from palimpsest.attention.positions import NoPositions
from palimpsest.evaluation.perplexity import CarriedState
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.recipes.lmtool_delta_elu_small import delta_memory
from palimpsest.recipes.lmtool_standard_small import medium, with_mixer
from palimpsest.recipes.transformer_xl_enwik8_base import with_model
from palimpsest.recipes.transformer_xl_wt103_base import wikitext_103

recipe = with_model(
    "lmtool-delta-elu-medium-carried",
    wikitext_103(medium.batch, medium.segment),
    with_mixer(medium, delta_memory(medium, EluPlusOne()), NoPositions()),
    medium.steps,
    warmup=2000,
    evaluation=CarriedState(medium.segment),
)
