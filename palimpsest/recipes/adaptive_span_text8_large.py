"""Adaptive spans on text8 with 24 layers, whose heads may look back 8,192 letters: text8_large.sh of the original.

    palimpsest data prepare text8
    palimpsest train adaptive-span-text8-large
    palimpsest train --from RUN --keep-optimiser --rate 0.007 --warmup 0 --steps 20000
    palimpsest evaluate runs/adaptive-span-text8-large-002 --split test --checkpoint latest

208,638,172 parameters; published are 1.07 bits per letter, 0.742 nats, on the test split (1.01 on the validation
split).
Without the original's quirks:

    --corpus Text8 --vocabulary Characters --order Contiguous --evaluation CarriedState
"""

from palimpsest.recipes.adaptive_span_enwik8 import with_block
from palimpsest.recipes.adaptive_span_enwik8_large import block
from palimpsest.recipes.adaptive_span_text8 import text8

recipe = with_block("adaptive-span-text8-large", text8, block, width=768, layers=24, steps=250_000, accumulation=2)
