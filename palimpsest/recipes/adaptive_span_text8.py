"""Adaptive spans on text8 with 12 layers, whose heads may look back 8,192 letters: text8.sh of the original.

    palimpsest data prepare text8
    palimpsest train adaptive-span-text8
    palimpsest evaluate runs/adaptive-span-text8-001 --split test --checkpoint latest

38,357,116 parameters; published are 1.11 bits per letter, 0.769 nats, on the test split (1.05 on the validation split).
Without the original's quirks:

    --corpus Text8 --vocabulary Characters --order Contiguous --evaluation CarriedState
"""

from palimpsest.experiment import Data
from palimpsest.legacy import streams
from palimpsest.legacy.corpora import AdaptiveSpanText8
from palimpsest.legacy.vocabularies import AdaptiveSpanBytes
from palimpsest.recipes.adaptive_span_enwik8 import block, with_block

text8 = Data(AdaptiveSpanText8(), AdaptiveSpanBytes(), streams.AdaptiveSpanBlocks(), batch=64, segment=512)
recipe = with_block("adaptive-span-text8", text8, block, width=512, layers=12, steps=900_000)
