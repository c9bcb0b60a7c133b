"""recurrent-fwp's LSTM (type 90) on WikiText-103: small, in the place of the memory.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-lstm
    palimpsest evaluate runs/recurrent-fwp-lstm-001 --split test

45,345,498 parameters; what it is scored with are nats per word. The net of tanh alone (type 80,
43,760,346 parameters):

    --mixer RNN

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.mixers import LSTM
from palimpsest.mixers.out_projection import OutProjection
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed

recipe = pre_normed("recurrent-fwp-lstm", LSTM(inner=128, out=OutProjection(dropout=0.1)))
