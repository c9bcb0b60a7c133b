"""recurrent-fwp's Delta MLP (type 54) on WikiText-103: small, fast nets of two layers written by the delta rule.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-delta-mlp
    palimpsest evaluate runs/recurrent-fwp-delta-mlp-001 --split test

46,148,826 parameters; published is a perplexity of 36.8, 3.605 nats per word, on the test split (35.8 on the validation
split). The original has 48,770,266: the others make keys and values that it never uses. It starts every segment afresh,
even when it is told to carry its memory on. Deeper:

    --depth 2

Without the original's quirks:

    --mixer DeltaMLP --key-scale SumToOne --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.legacy.lmtool_recurrent import ForgetfulDeltaMLP, SumToAlmostOne
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed

mixer = ForgetfulDeltaMLP(EluPlusOne(), SumToAlmostOne(), depth=1, inner=64, heads=8, head_width=small.head_width)
recipe = pre_normed("recurrent-fwp-delta-mlp", mixer)
