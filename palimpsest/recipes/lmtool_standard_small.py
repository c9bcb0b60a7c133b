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
from typing import NamedTuple

from palimpsest.attention.positions import AddedPositions, NoPositions
from palimpsest.attention.spans import SegmentCache
from palimpsest.experiment import Recipe
from palimpsest.legacy.protocols import LmtoolSlidingWindow
from palimpsest.legacy.transformer_xl import CountdownSinusoidal
from palimpsest.mixers import Mixer, SoftmaxAttention
from palimpsest.models.language_model import LanguageModel
from palimpsest.recipes.transformer_xl_enwik8_base import with_attention, with_model
from palimpsest.recipes.transformer_xl_wt103_base import wikitext_103, words


class Size(NamedTuple):
    """What lmtool-fwms calls small or medium."""

    width: int
    batch: int
    segment: int
    steps: int

    @property
    def head_width(self) -> int:
        return self.width // 8

    @property
    def scale(self) -> float:
        """Of scores, or of what is read from a memory."""
        return self.head_width**-0.5


small = Size(width=128, batch=96, segment=256, steps=500_000)
medium = Size(width=256, batch=56, segment=384, steps=400_000)


def standard(name: str, size: Size) -> Recipe:
    attention = SoftmaxAttention(NoPositions(), SegmentCache(0), heads=8, head_width=size.head_width)
    return fresh(name, size, with_mixer(size, attention))


def with_mixer(
    size: Size,
    mixer: Mixer,
    positions: AddedPositions = CountdownSinusoidal(),  # noqa: B008 (immutable)
) -> LanguageModel:
    """A Transformer with this mixer, its positions added to the embedding."""
    return with_attention(size.width, 16, mixer, inner=2048, dropout=0.1, head=words, positions=positions)


def fresh(name: str, size: Size, model: LanguageModel) -> Recipe:
    """Each segment is read from a fresh state."""
    recipe = with_model(
        name,
        wikitext_103(size.batch, size.segment),
        model,
        size.steps,
        warmup=2000,
        evaluation=LmtoolSlidingWindow(context=size.segment, clamp=size.segment, rows=1),
        carry=False,
    )
    # seldom: a window for each word reads every word as often as the window is long
    return replace(recipe, run=replace(recipe.run, validate_every=20_000))


recipe = standard("lmtool-standard-small", small)
