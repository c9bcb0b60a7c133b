"""Transformer-XL on text8 with 12 layers, as run_text8_base.sh of the original trains it.

    palimpsest data prepare text8
    palimpsest train transformer-xl-text8-base
    palimpsest evaluate runs/transformer-xl-text8-base-001 --split test

40,964,635 parameters; no score was published, neither in bits nor in nats.
Without the original's quirks:

    --corpus Text8 --vocabulary Characters --order Contiguous --schedule Cosine --evaluation CachedMemory
"""

from palimpsest.experiment import Data
from palimpsest.legacy.corpora import TransformerXLText8
from palimpsest.legacy.streams import TransformerXLSegments
from palimpsest.legacy.vocabularies import TransformerXLBytes
from palimpsest.recipes.transformer_xl_enwik8_base import base, base_evaluation, with_model


def text8(batch: int, segment: int) -> Data:
    return Data(TransformerXLText8(), TransformerXLBytes(), TransformerXLSegments(), batch, segment)


recipe = with_model(
    "transformer-xl-text8-base", text8(22, 512), base, steps=400_000, warmup=0, evaluation=base_evaluation
)
