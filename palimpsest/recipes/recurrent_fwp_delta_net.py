"""recurrent-fwp's Delta Network on WikiText-103: small, with norms before its parts; the other models' baseline.

    palimpsest data prepare wikitext-103
    palimpsest train recurrent-fwp-delta-net
    palimpsest evaluate runs/recurrent-fwp-delta-net-001 --split test

44,034,778 parameters; what it is scored with are nats per word. The same memory, programmed by an
LSTM (type 324, 56,327,898 parameters):

    --mixer SlowLSTM

With all the words before as context, its state carried on and no positions:

    --block PostNorm --embedding.positions NoPositions --carry --evaluation CarriedState --evaluation.segment 256

Without the original's quirks:

    --block PreNorm
    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from dataclasses import replace

from palimpsest.experiment import Recipe
from palimpsest.legacy.lmtool_recurrent import Arranged, NormBefore, NormFirst
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.mixers import Mixer
from palimpsest.models.feed_forward import Relu
from palimpsest.recipes.lmtool_delta_elu_small import delta_memory
from palimpsest.recipes.lmtool_standard_small import fresh, small, with_mixer


def pre_normed(name: str, mixer: Mixer) -> Recipe:
    """lmtool's small model with norms first: what skips the mixer is normed, too."""
    block = Arranged(mixer, Relu(2048, 0.1), dropout=0.1, around_mixer=NormFirst(), around_feed_forward=NormBefore())
    return fresh(name, small, replace(with_mixer(small, mixer), block=block))


recipe = pre_normed("recurrent-fwp-delta-net", delta_memory(small, EluPlusOne()))
