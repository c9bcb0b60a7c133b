"""recurrent-fwp's Delta LSTM (type 254) on WikiText-103: small, an LSTM whose matrices are delta memories.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-delta-lstm
    palimpsest evaluate runs/recurrent-fwp-delta-lstm-001 --split test

47,262,426 parameters; published is a perplexity of 33.8, 3.520 nats per word, on the test split (32.6 on the validation
split). The three others, in the paper's appendix (types 224, 234 and 244):

    --feedback SoftmaxState --feedback.epsilon 0 --candidate SigmoidCandidate --mixer.scale 1 --out.dropout 0.1
    --candidate SigmoidCandidate
    --candidate SkippingCandidate

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --feedback.epsilon 0 --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.mixers import DeltaLSTM
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed
from palimpsest.recipes.recurrent_fwp_delta_rnn import feedback

mixer = DeltaLSTM(feedback=feedback, scale=small.scale, heads=8, head_width=small.head_width)
recipe = pre_normed("recurrent-fwp-delta-lstm", mixer)
