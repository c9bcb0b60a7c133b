"""An all-attention network on WikiText-103, 36 layers with 2,048 persistent vectors: wiki103_pers.sh of adaptive-span.

    palimpsest data prepare wikitext-103
    palimpsest train adaptive-span-wt103-pers
    palimpsest train --from RUN --keep-optimiser --rate 2.5e-5 --warmup 0 --steps 50000
    palimpsest evaluate runs/adaptive-span-wt103-pers-002 --split test --checkpoint latest

132,493,746 parameters; published is a perplexity of 19.7, 2.981 nats per word, on the test split (18.8 on the
validation split), the ends of lines being words.
Without the original's quirks:

    --vocabulary Words --order Contiguous --evaluation CarriedState
"""

from dataclasses import replace

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.data.standard import WikiText103
from palimpsest.experiment import Data
from palimpsest.legacy import streams
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.legacy.vocabularies import AdaptiveSpanWords
from palimpsest.models.block import PostNorm
from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.heads import AdaptiveSoftmax
from palimpsest.recipes.adaptive_span_enwik8 import with_block
from palimpsest.training.optimisers import Adam

cutoffs = (20_000, 40_000, 200_000)
attention = AdaptivePastAttention(2048, PersistentVectors(2048), heads=8, dropout=0.3, penalty=5e-7)
on_bytes = with_block(
    "adaptive-span-wt103-pers",
    Data(WikiText103(), AdaptiveSpanWords("count"), streams.AdaptiveSpanBlocks(), batch=64, segment=256),
    PostNorm(mixer=attention, feed_forward=None),
    width=512,
    layers=36,
    steps=800_000,
    warmup=8000,
    accumulation=2,
)
recipe = replace(
    on_bytes,
    model=replace(
        on_bytes.model,
        embedding=AdaptiveEmbedding(cutoffs, divisor=4, dropout=0.1),
        head=AdaptiveSoftmax(cutoffs, divisor=4, tied=True, tied_projections=(0, 1, 2, 3), dropout=0.1),
    ),
    optimiser=Adam(rate=2.5e-4),
    run=replace(on_bytes.run, clip=1.0),
)
