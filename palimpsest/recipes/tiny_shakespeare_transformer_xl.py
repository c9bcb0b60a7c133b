"""As tiny-shakespeare, with a Transformer-XL that remembers the 128 characters before those it reads.

    palimpsest train tiny-shakespeare-transformer-xl

About three minutes on two CPU cores; 1.63 nats per character on the whole validation split.
"""

from dataclasses import replace

from palimpsest.attention.positions import SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.data.streams import Contiguous
from palimpsest.evaluation.perplexity import CachedMemory
from palimpsest.experiment import Recipe
from palimpsest.mixers import SoftmaxAttention
from palimpsest.recipes.tiny_shakespeare import with_mixer


def carried(recipe: Recipe) -> Recipe:
    """Rows that go on where they ended, and hand on what they remember."""
    return replace(recipe, data=replace(recipe.data, order=Contiguous()), run=replace(recipe.run, carry=True))


attention = SoftmaxAttention(SinusoidalRelative(), SegmentCache(128), heads=3)
recipe = replace(
    carried(with_mixer("tiny-shakespeare-transformer-xl", attention)), evaluation=CachedMemory(segment=128, memory=128)
)
