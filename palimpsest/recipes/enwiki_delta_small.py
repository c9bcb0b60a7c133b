"""lmtool-fwms's small Delta Network, without its quirks, on running text of your own: articles of Wikipedia, say.

    palimpsest train enwiki-delta-small --path FOLDER

FOLDER holds text files with train, valid and test in their names, such as enwiki2015.train.0.txt: `= Title =`, a blank
line, a paragraph a line. Words are runs of letters and digits; each punctuation mark is a word of its own, written @-@
where it stands inside a word, as WikiText does; a newline is <eos>, and what is seen fewer than three times is <unk>.
Of the 23,402 articles of enwiki2015 that is 79,558,344 words and 251,033 different ones, 41,880,220 parameters, and six
epochs. No score is published of it; ours is in nats per word. All the words before as context, and the sum rule:

    --carry --embedding.positions NoPositions --evaluation CarriedState
    --update-rule Sum --key-scale Unscaled --read-out Normalised
"""

from dataclasses import replace

from palimpsest.attention.positions import Sinusoidal
from palimpsest.data.corpora import Text
from palimpsest.data.streams import Contiguous
from palimpsest.data.vocabulary import PunctuatedWords
from palimpsest.evaluation.perplexity import SlidingWindow
from palimpsest.experiment import Data
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.recipes.lmtool_delta_elu_small import delta_memory
from palimpsest.recipes.lmtool_standard_small import fresh, small, with_mixer
from palimpsest.training.schedules import Cosine

original = fresh("enwiki-delta-small", small, with_mixer(small, delta_memory(small, EluPlusOne()), Sinusoidal()))
recipe = replace(
    original,
    data=Data(Text(), PunctuatedWords(minimum_count=3), Contiguous(), small.batch, small.segment),
    schedule=Cosine(warmup=1000),
    run=replace(original.run, steps=20_000, validate_every=2000, save_every=2000),
    evaluation=SlidingWindow(context=256, stride=64),
)
