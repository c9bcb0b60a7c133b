"""The delta rule on WikiText-2, in a small model; its twin, wikitext-2-sum, only adds.

    palimpsest data prepare wikitext-2
    palimpsest train wikitext-2-delta
    palimpsest train wikitext-2-delta --feature-map DPFP
    palimpsest train wikitext-2-delta --carry --evaluation CarriedState --evaluation.segment 4096

Each segment is read from a fresh page, or, carried, from the page that the row's segment before has left; nothing else
changes. There are no positions, which a carried page could not have; a short convolution tells neighbours apart.
About two minutes on one H200; after 500 steps 5.15 nats per word on the validation split (docs/wikitext-2.md). All
eight models, with three seeds each, and a table:

    python scripts/wikitext_2_table.py
"""

from palimpsest.data.standard import WikiText2
from palimpsest.data.streams import Contiguous
from palimpsest.data.vocabulary import Words
from palimpsest.evaluation.perplexity import SlidingWindow
from palimpsest.experiment import Data, Recipe
from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.memory.key_scales import KeyScale, SumToOne
from palimpsest.memory.read_outs import Plain, ReadOut
from palimpsest.memory.update_rules import Delta, UpdateRule
from palimpsest.mixers import FastWeight
from palimpsest.models.block import PreNorm
from palimpsest.models.embeddings import TokenEmbedding
from palimpsest.models.feed_forward import GatedSilu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.initialisations import SilentStart
from palimpsest.models.language_model import LanguageModel
from palimpsest.training.optimisers import Muon
from palimpsest.training.schedules import LinearCooldown
from palimpsest.training.trainer import Run


def with_rule(name: str, key_scale: KeyScale, update_rule: UpdateRule, read_out: ReadOut) -> Recipe:
    """The recipe with another rule, and what belongs to it."""
    memory = FastWeight(EluPlusOne(), key_scale, update_rule, read_out, heads=8, convolution=ShortConvolution(4))
    return Recipe(
        name=name,
        data=Data(WikiText2(), Words(), Contiguous(), batch=32, segment=256),
        model=LanguageModel(
            width=256,
            layers=4,
            block=PreNorm(mixer=memory, feed_forward=GatedSilu(inner=512), dropout=0.2),
            embedding=TokenEmbedding(scale=16.0, dropout=0.2),
            head=SoftmaxHead(tied=True, bias=True, dropout=0.2, chunk=2**29),
            initialisation=SilentStart(gain=0.3),  # a tied head of full size would begin with repeating its input
        ),
        optimiser=Muon(rate=0.01, adam_rate=2e-3),
        schedule=LinearCooldown(warmup=100, cooldown=0.7),
        run=Run(steps=1500, validate_every=500, save_every=1500, log_every=50, keep=1),
        evaluation=SlidingWindow(context=256, stride=128),
    )


recipe = with_rule("wikitext-2-delta", SumToOne(), Delta(), Plain())
