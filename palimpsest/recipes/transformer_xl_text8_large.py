"""Transformer-XL on text8 with 24 layers, as run_text8_large.sh of the original trains it, without a warm-up.

    palimpsest data prepare text8
    palimpsest train transformer-xl-text8-large
    palimpsest evaluate runs/transformer-xl-text8-large-001 --split test

277,050,395 parameters; published are 1.08 bits per letter, 0.749 nats, on the test split; the number is from the
TensorFlow half of the original, which warms up for 4,000 steps.
Without the original's quirks:

    --corpus Text8 --vocabulary Characters --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.recipes.transformer_xl_enwik8_base import with_model
from palimpsest.recipes.transformer_xl_enwik8_large import large, large_evaluation
from palimpsest.recipes.transformer_xl_text8_base import text8

recipe = with_model(
    "transformer-xl-text8-large", text8(64, 768), large, steps=400_000, warmup=0, evaluation=large_evaluation
)
