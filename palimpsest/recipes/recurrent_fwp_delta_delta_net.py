"""recurrent-fwp's Delta Delta Net (type 64) on WikiText-103: small, a delta memory programmed by another one.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-delta-delta-net
    palimpsest evaluate runs/recurrent-fwp-delta-delta-net-001 --split test

44,575,450 parameters; published is a perplexity of 35.2, 3.561 nats per word, on the test split (34.0 on the validation
split). The original cannot carry its memory on, and this can.

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --key-scale SumToOne --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.legacy.lmtool_recurrent import SumToAlmostOne
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.mixers import DeltaDeltaNet
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed

mixer = DeltaDeltaNet(EluPlusOne(), SumToAlmostOne(), heads=8, head_width=small.head_width)
recipe = pre_normed("recurrent-fwp-delta-delta-net", mixer)
