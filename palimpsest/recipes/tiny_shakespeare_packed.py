"""As tiny-shakespeare, speech by speech: each is a document of its own, packed with others and read on a fresh page.

    palimpsest train tiny-shakespeare-packed

About three minutes on two CPU cores; 1.49 nats per character on the whole validation split, the first character of each
speech aside, which nothing foretells.
"""

from dataclasses import replace

from palimpsest.data.corpora import TinyShakespeare
from palimpsest.data.streams import ShuffledDocuments
from palimpsest.evaluation.perplexity import CarriedState
from palimpsest.recipes.tiny_shakespeare import recipe as whole

recipe = replace(
    whole,
    name="tiny-shakespeare-packed",
    data=replace(whole.data, corpus=TinyShakespeare(documents="\n\n"), order=ShuffledDocuments()),
    run=replace(whole.run, carry=True),
    evaluation=CarriedState(512),
)
