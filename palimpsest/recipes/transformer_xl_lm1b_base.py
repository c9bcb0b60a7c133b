"""Transformer-XL on One Billion Word with 18 layers, as run_lm1b_base.sh of the original trains it.

    palimpsest data prepare one-billion-word
    palimpsest train transformer-xl-lm1b-base
    palimpsest evaluate runs/transformer-xl-lm1b-base-001 --split test

Its list of words, 1b_word_vocab.txt, is put beside the prepared corpus. 357,812,082 parameters with its 793,471 words.
Published is a perplexity of 23.5, 3.157 nats per word, on the test split, of a larger model (0.46 billion).
Without the original's quirks:

    --corpus OneBillionWord --vocabulary Words --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.experiment import Data
from palimpsest.legacy.corpora import TransformerXLOneBillionWord
from palimpsest.legacy.protocols import TransformerXLSentenceRows
from palimpsest.legacy.streams import TransformerXLShuffledSentences
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.legacy.vocabularies import TransformerXLWordList
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model


def one_billion_word(batch: int) -> Data:
    return Data(TransformerXLOneBillionWord(), TransformerXLWordList(), TransformerXLShuffledSentences(), batch, 32)


attention = SoftmaxAttention(DroppedSinusoidalRelative(), SegmentCache(32), heads=8, head_width=128)
words = AdaptiveSoftmax(cutoffs=(60_000, 100_000, 640_000), divisor=4, tied=True)
recipe = with_model(
    "transformer-xl-lm1b-base",
    one_billion_word(224),
    with_attention(1024, 18, attention, inner=4096, dropout=0.0, head=words),
    steps=500_000,
    warmup=20_000,
    evaluation=TransformerXLSentenceRows(segment=32, memory=128, same_length=True, rows=64),
)
