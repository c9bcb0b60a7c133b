"""recurrent-fwp's Recurrent Delta Net (type 934) on WikiText-103: small, a delta memory that hears its last read.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-recurrent-delta-net
    palimpsest evaluate runs/recurrent-fwp-recurrent-delta-net-001 --split test

44,135,130 parameters; published is a perplexity of 35.2, 3.561 nats per word, on the test split (34.1 on the validation
split).

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.mixers import RecurrentDeltaNet
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed

mixer = RecurrentDeltaNet(small.scale, heads=8, head_width=small.head_width)
recipe = pre_normed("recurrent-fwp-recurrent-delta-net", mixer)
