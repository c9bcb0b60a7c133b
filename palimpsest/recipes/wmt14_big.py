"""The big Transformer on WMT14, English to German, as in the paper that introduced it: three times the steps of base.

    palimpsest data prepare wmt14
    palimpsest train wmt14-big
    palimpsest evaluate runs/wmt14-big-001 --split test --checkpoint last-20

Prepared as wmt14-base is. Several days of eight GPUs; it was not trained here, so that there are no nats to expect. The
paper's tokenised BLEU of newstest2014 is 28.4, with the mean of the last twenty checkpoints:

    --run.keep 20
"""

from palimpsest.recipes.wmt14_base import of_size

recipe = of_size("wmt14-big", width=1024, heads=16, dropout=0.3, rate=5e-4, steps=300_000)
