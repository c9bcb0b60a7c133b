"""Packing changes nothing: a document among others is read, scored and learned from as if it were alone."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from closeness import close
from test_evaluation import ours
from test_models import MODELS, TOKENS, brief, built
from toys import metrics, quiet, toy, train_until_the_power_goes

from palimpsest.attention.positions import SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.batch import Batch
from palimpsest.cli import recipes
from palimpsest.data.corpora import Text
from palimpsest.data.streams import ShuffledDocuments
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes, Characters, SubWords
from palimpsest.errors import UserError
from palimpsest.evaluation.perplexity import CarriedState, Segments, evaluate
from palimpsest.experiment import Data, Recipe, Trained, load, resume, train
from palimpsest.legacy.transformer_xl import CountdownSinusoidal
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.embeddings import TokenEmbedding
from palimpsest.models.language_model import LanguageModel
from palimpsest.world import ALONE

BORDERS = np.array([0, 4, 5, 11, 13, 20])
IDS = np.random.default_rng(0).integers(0, TOKENS, BORDERS[-1])
PACKING = [spec for spec in MODELS if spec.packs]
REMEMBERING = LanguageModel(16, 2, PreNorm(mixer=SoftmaxAttention(SinusoidalRelative(), SegmentCache(6))))


def alone(model, protocol=None):
    """The nats of every document's targets, read by itself; with a protocol, as that reads it."""
    documents = [IDS[first:last] for first, last in pairwise(BORDERS) if last - first > 1]
    if protocol is None:
        return torch.cat([model(Batch.cut(ids, [0], len(ids) - 1))[0][0] for ids in documents])
    return sum(evaluate(model, ids, protocol, None, len(ids)).nats for ids in documents)


@pytest.mark.parametrize("spec", PACKING, ids=brief)
def test_a_document_among_others_costs_what_it_costs_alone(spec):
    model = built(spec).eval()
    batch = Batch.at(IDS, np.arange(len(IDS))[None], documents=BORDERS)
    nats, _ = model(batch)
    close(nats[batch.mask], alone(model))


@pytest.mark.parametrize("spec", [spec for spec in PACKING if spec.segment_invariant], ids=brief)
def test_documents_may_go_on_in_the_next_segment(spec):
    model = built(spec).eval()
    nats, counted, state = [], [], None
    for first in range(0, len(IDS), 7):
        places = np.arange(first, min(first + 7, len(IDS)))[None]
        batch = Batch.at(IDS, places, documents=BORDERS)
        read, state = model(batch, state)
        nats.append(read)
        counted.append(batch.mask)
    close(torch.cat(nats, dim=1)[torch.cat(counted, dim=1)], alone(model))


@pytest.mark.parametrize("protocol", [CarriedState(7), Segments(1000)], ids=repr)
def test_a_packed_text_scores_what_its_documents_score(protocol):
    model = built(MODELS[0]).eval()
    score = evaluate(model, IDS, protocol, None, len(IDS), documents=BORDERS)
    assert score.tokens == len(IDS) - (len(BORDERS) - 1)
    close(torch.tensor(score.nats), torch.tensor(alone(model, protocol)))


@pytest.mark.parametrize("protocol", ours, ids=repr)
def test_every_protocol_counts_each_target_of_each_document_once(protocol):
    model = REMEMBERING.build(TOKENS, torch.Generator().manual_seed(0)).eval()
    score = evaluate(model, IDS, protocol, None, len(IDS), documents=BORDERS)
    assert score.tokens == len(IDS) - (len(BORDERS) - 1)
    assert sum(one["tokens"] for one in score.by_position) == score.tokens
    assert max(one["from"] for one in score.by_position) < np.diff(BORDERS).max()


def test_a_packed_run_goes_on_as_if_it_had_never_stopped(tmp_path):
    recipe = toy(recipes.find_recipe("tiny-shakespeare-packed"), steps=6, validate_every=6, save_every=1)
    whole = train(recipe, tmp_path / "whole", quiet())
    train_until_the_power_goes(recipe, tmp_path / "part", 3)
    assert metrics(resume(tmp_path / "part", quiet())) == metrics(whole)
    valid = load(whole).tokens().splits["valid"]
    score = load(whole).evaluate(valid)
    assert score.tokens == valid.tokens - (len(valid.documents) - 1)
    assert score.bytes == valid.bytes - (len(valid.documents) - 1)  # the first character of each was not foretold


@pytest.mark.parametrize("documents", [None, "\n\n"])
@pytest.mark.parametrize("vocabulary", [Bytes(), Characters(), SubWords(300)], ids=repr)
def test_bytes_and_characters_of_a_score_are_those_of_its_targets(vocabulary, documents, tmp_path):
    (tmp_path / "text.txt").write_text("▁привет, мир\n\n😀 ok\n\n" * 40, "utf-8")
    recipe = Recipe(
        data=Data(Text(tmp_path / "text.txt", documents=documents), vocabulary), model=LanguageModel(width=8, layers=1)
    )
    tokens = tokenise(recipe.data.corpus, vocabulary, cache=tmp_path)
    model, split = recipe.model.build(tokens.codec.size), tokens.splits["valid"]
    score = Trained(tmp_path, "best", recipe, model, tokens.codec, ALONE).evaluate(split)
    firsts = {0} if documents is None else {*split.documents.tolist()}
    targets = [token for place, token in enumerate(split.ids.tolist()) if place not in firsts]
    assert score.tokens == len(targets)
    assert score.bytes == sum(len(tokens.codec.spelling([token])) for token in targets)
    assert score.tokens == {"byte": score.bytes, "character": score.characters}.get(tokens.codec.unit, score.tokens)


def test_what_cannot_be_packed_is_refused():
    text = Text(documents="\n\n")
    countdown = LanguageModel(embedding=TokenEmbedding(positions=CountdownSinusoidal()))
    with pytest.raises(UserError, match="reads a segment as one text"):
        Recipe(data=Data(corpus=text), model=countdown)
    with pytest.raises(UserError, match="say what each of them ends with"):
        Recipe(data=Data(order=ShuffledDocuments())).require()


def test_a_text_of_documents_too_short_to_foretell_anything_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("a" * 100)
    recipe = toy(Recipe(data=Data(corpus=Text(tmp_path / "text.txt", documents="a"))))
    with pytest.raises(UserError, match="no train split to speak of"):
        train(recipe, tmp_path / "run", quiet())
    with pytest.raises(UserError, match="none of the 3 tokens is foretold by another"):
        evaluate(built(MODELS[0]), IDS[:3], Segments(8), None, 3, documents=np.arange(4))
