"""Three memories with the delta rule, one softmax attention over 256 words; all else as in wikitext-2-delta.

    palimpsest data prepare wikitext-2
    palimpsest train wikitext-2-hybrid
    palimpsest train wikitext-2-hybrid --every 2
    palimpsest train wikitext-2-hybrid --carry --evaluation CarriedState --evaluation.segment 4096

The attention has rotary positions and reaches as far back as a segment is long, also into the segment before where
state is carried. The memories alone get 5.15 nats per word on the validation split after 500 steps
(docs/wikitext-2.md); this recipe has not been run to its end.
"""

from dataclasses import replace

from palimpsest.attention.positions import Rotary
from palimpsest.attention.spans import Fixed
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.block import Hybrid, PreNorm
from palimpsest.models.feed_forward import GatedSilu
from palimpsest.recipes.wikitext_2_delta import recipe as delta

attention = SoftmaxAttention(Rotary(), Fixed(256), heads=8)
block = PreNorm(mixer=attention, feed_forward=GatedSilu(inner=512), dropout=0.2)  # but for the mixer as the others
blocks = Hybrid(delta.model.block, block, every=4)
recipe = replace(delta, name="wikitext-2-hybrid", model=replace(delta.model, block=blocks))
