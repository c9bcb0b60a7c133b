"""recurrent-fwp's Delta RNN (type 134) on WikiText-103: small, a recurrent net whose matrices are delta memories.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-delta-rnn
    palimpsest evaluate runs/recurrent-fwp-delta-rnn-001 --split test

44,575,450 parameters; published is a perplexity of 35.0, 3.555 nats per word, on the test split (33.8 on the validation
split). The other one, in the paper's appendix (type 124):

    --feature-map Softmax --key-scale Unscaled --feedback SoftmaxState --feedback.epsilon 0
    --read-out.scale 1 --out.dropout 0.1

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --feedback.epsilon 0 --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.memory.read_outs import Plain
from palimpsest.mixers import DeltaRNN
from palimpsest.mixers.feedback import SoftmaxFeedback
from palimpsest.recipes.lmtool_standard_small import small
from palimpsest.recipes.recurrent_fwp_delta_net import pre_normed

feedback = SoftmaxFeedback(epsilon=1e-6)  # as the original's kernels have it
mixer = DeltaRNN(feedback=feedback, read_out=Plain(small.scale), heads=8, head_width=small.head_width)
recipe = pre_normed("recurrent-fwp-delta-rnn", mixer)
