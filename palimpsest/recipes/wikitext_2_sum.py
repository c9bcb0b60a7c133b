"""The sum rule, linear attention, on WikiText-2, in a small model; all else as in wikitext-2-delta.

    palimpsest data prepare wikitext-2
    palimpsest train wikitext-2-sum
    palimpsest train wikitext-2-sum --feature-map DPFP
    palimpsest train wikitext-2-sum --carry --evaluation CarriedState --evaluation.segment 4096

What is read is normalised, as attention is: a sum without end would otherwise grow without end.
About two minutes on one H200; after 500 steps 5.31 nats per word on the validation split (docs/wikitext-2.md).
"""

from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.recipes.wikitext_2_delta import with_rule

recipe = with_rule("wikitext-2-sum", Unscaled(), Sum(), Normalised())
