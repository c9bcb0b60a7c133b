"""Transformer-XL on One Billion Word with 24 layers, as run_lm1b_large.sh of the original trains it.

    palimpsest data prepare one-billion-word
    palimpsest train transformer-xl-lm1b-large
    palimpsest evaluate runs/transformer-xl-lm1b-large-001 --split test

Its list of words, 1b_word_vocab.txt, is put beside the prepared corpus. 841,295,982 parameters with its 793,471 words.
Published is a perplexity of 21.8, 3.082 nats per word, on the test split, of the TensorFlow half of the original.
Without the original's quirks:

    --corpus OneBillionWord --vocabulary Words --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.attention.spans import SegmentCache
from palimpsest.legacy.protocols import TransformerXLSentenceRows
from palimpsest.legacy.transformer_xl import DroppedSinusoidalRelative
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model
from palimpsest.recipes.transformer_xl_lm1b_base import one_billion_word, words

attention = SoftmaxAttention(
    DroppedSinusoidalRelative(dropout=0.05), SegmentCache(32), heads=16, head_width=80, dropout=0.05
)
recipe = with_model(
    "transformer-xl-lm1b-large",
    one_billion_word(512),
    with_attention(1280, 24, attention, inner=8192, dropout=0.05, head=words),
    steps=1_200_000,
    warmup=30_000,
    evaluation=TransformerXLSentenceRows(segment=32, memory=128, same_length=True, rows=8),
)
