"""A small translator of shopping lists, from English into German, on a laptop: a first try that needs no download.

    palimpsest train shopping-lists
    echo "We need twenty-four old books." | palimpsest translate runs/shopping-lists-001

On your own sentence pairs, a file with a tab in each line or a folder with train.en, train.de, valid.en and valid.de:

    palimpsest train pairs.tsv
    palimpsest train shopping-lists --corpus LanguageFiles --path my-pairs --corpus.source en --corpus.target de

About a minute on two CPU cores; 0.05 nats per sub-word and a BLEU of 99 on the validation split.
"""

from palimpsest.attention.positions import NoPositions, Sinusoidal
from palimpsest.data.shopping_lists import ShoppingLists
from palimpsest.data.vocabulary import SubWords
from palimpsest.experiment import ParallelData, TranslationRecipe
from palimpsest.mixers import SoftmaxAttention, SoftmaxSource
from palimpsest.models.block import PreNorm
from palimpsest.models.embeddings import TokenEmbedding
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.norms import LayerNorm
from palimpsest.models.translation_model import TranslationModel
from palimpsest.training.optimisers import AdamW
from palimpsest.training.schedules import Cosine
from palimpsest.training.trainer import Run

recipe = TranslationRecipe(
    name="shopping-lists",
    data=ParallelData(ShoppingLists(), SubWords(500), tokens=1024),
    model=TranslationModel(
        width=96,
        encoder_layers=2,
        layers=2,
        encoder=SoftmaxSource(heads=4),
        cross=SoftmaxSource(heads=4),
        block=PreNorm(SoftmaxAttention(NoPositions(), heads=4), Relu(inner=192), LayerNorm(), dropout=0.0),
        embedding=TokenEmbedding(scale=96**0.5, positions=Sinusoidal()),
        head=SoftmaxHead(tied=True, smoothing=0.05),
    ),
    optimiser=AdamW(rate=3e-3, weight_decay=0.01),
    schedule=Cosine(warmup=50),
    run=Run(steps=400, validate_every=100, save_every=200),
)
