"""lmtool-fwms's standard Transformer on WikiText-103, of the medium size: 384 words of context and no memory.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-standard-medium
    palimpsest evaluate runs/lmtool-standard-medium-001 --split test

89,833,434 parameters; published is a perplexity of 29.6, 3.388 nats per word, on the test split (27.9 on the validation
split).
Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from palimpsest.recipes.lmtool_standard_small import medium, standard

recipe = standard("lmtool-standard-medium", medium)
