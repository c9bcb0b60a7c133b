"""lmtool-fwms's standard Transformer on WikiText-103, of the small size: 256 words of context and no memory.

    palimpsest data prepare wikitext-103
    palimpsest train lmtool-standard-small
    palimpsest evaluate runs/lmtool-standard-small-001 --split test

44,018,394 parameters; published is a perplexity of 34.1, 3.529 nats per word, on the test split (33.0 on the validation
split).
Without the original's quirks:

    --vocabulary Words --schedule Cosine --embedding.positions Sinusoidal --evaluation SlidingWindow
"""

from dataclasses import replace

from palimpsest.attention.positions import NoPositions
from palimpsest.attention.spans import SegmentCache
from palimpsest.experiment import Recipe
from palimpsest.legacy.protocols import LmtoolSlidingWindow
from palimpsest.legacy.transformer_xl import CountdownSinusoidal
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model
from palimpsest.recipes.transformer_xl_wt103_base import wikitext_103, words


def standard(name: str, width: int, batch: int, segment: int, steps: int) -> Recipe:
    """A Transformer that reads each segment afresh, its positions added to the embedding."""
    attention = SoftmaxAttention(NoPositions(), SegmentCache(0), heads=8, head_width=width // 8)
    model = with_attention(width, 16, attention, inner=2048, dropout=0.1, head=words, positions=CountdownSinusoidal())
    recipe = with_model(
        name,
        wikitext_103(batch, segment),
        model,
        steps,
        warmup=2000,
        evaluation=LmtoolSlidingWindow(context=segment, clamp=segment, rows=1),
    )
    # seldom: a window for each word reads every word as often as the window is long
    return replace(recipe, run=replace(recipe.run, carry=False, validate_every=20_000))


recipe = standard("lmtool-standard-small", width=128, batch=96, segment=256, steps=500_000)
