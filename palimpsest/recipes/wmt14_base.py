"""The base Transformer on WMT14, English to German, as in the paper that introduced it.

    palimpsest data prepare wmt14
    palimpsest train wmt14-base
    palimpsest evaluate runs/wmt14-base-001 --split test --checkpoint last-5
    palimpsest evaluate runs/wmt14-base-001 --split test --length-penalty 0.6 --beam 4

The corpus is 1.7 GB in five archives at statmt.org; where they cannot be downloaded, get them elsewhere and prepare
them from the folder that has them, with --from. Days of a GPU, or a day of eight; it was not trained here, so that
there are no nats to expect. The paper's 27.3 on newstest2014 is of tokenised text, and no BLEU of sacrebleu's. Any
other attention, such as the paper on fast weight programmers had, in all three places:

    --encoder MemorySource --cross MemorySource --mixer FastWeight --update-rule Sum --mixer.read-out Normalised
"""

from palimpsest.attention.positions import NoPositions, Sinusoidal
from palimpsest.data.standard_pairs import WMT14
from palimpsest.data.vocabulary import SubWords
from palimpsest.evaluation.decoding import BeamSearch
from palimpsest.experiment import ParallelData, TranslationRecipe
from palimpsest.mixers import SoftmaxAttention, SoftmaxSource
from palimpsest.models.block import PostNorm
from palimpsest.models.embeddings import TokenEmbedding
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.translation_model import TranslationModel
from palimpsest.training.optimisers import Adam
from palimpsest.training.schedules import InverseSquareRoot
from palimpsest.training.trainer import Run


def of_size(name: str, width: int, heads: int, dropout: float, rate: float, steps: int) -> TranslationRecipe:
    return TranslationRecipe(
        name=name,
        data=ParallelData(WMT14(), SubWords(37000), tokens=25_000),
        model=TranslationModel(
            width=width,
            encoder_layers=6,
            layers=6,
            encoder=SoftmaxSource(heads),
            cross=SoftmaxSource(heads),
            block=PostNorm(SoftmaxAttention(NoPositions(), heads=heads), Relu(inner=4 * width), dropout=dropout),
            embedding=TokenEmbedding(scale=width**0.5, positions=Sinusoidal(), dropout=dropout),
            head=SoftmaxHead(tied=True, smoothing=0.1, chunk=2**28),
        ),
        optimiser=Adam(rate=rate, beta2=0.98, epsilon=1e-9),
        schedule=InverseSquareRoot(warmup=4000),
        run=Run(steps=steps, log_every=100, validate_every=2000, save_every=1500, keep=5, clip=None),
        evaluation=BeamSearch(beam=4, length_penalty=0.6),
        translated=500,
    )


recipe = of_size("wmt14-base", width=512, heads=8, dropout=0.1, rate=7e-4, steps=100_000)
