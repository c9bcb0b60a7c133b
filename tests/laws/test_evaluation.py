"""Laws of evaluation: each target counted once, and the fast way gives the textbook's number."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.batch import Batch
from palimpsest.errors import UserError
from palimpsest.evaluation import perplexity
from palimpsest.evaluation.perplexity import CarriedState, Protocol, Segments, SlidingWindow, evaluate
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel

protocols = [
    Segments(8),
    Segments(1000),
    SlidingWindow(8, 3),
    SlidingWindow(8, 8),
    SlidingWindow(8, 1),
    CarriedState(7),
]
every_protocol = pytest.mark.parametrize("protocol", protocols, ids=repr)
models = {"fast weights": PreNorm(), "attention": PreNorm(mixer=SoftmaxAttention())}
every_model = pytest.mark.parametrize("block", models.values(), ids=models.keys())


def build(block):
    return LanguageModel(width=16, layers=2, block=block).build(11, torch.Generator().manual_seed(0))


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, 11, 46).astype(np.uint8)


def nats(model, ids, start, end):
    """Of the targets start+1 … end, read at once from a fresh state."""
    tokens = torch.from_numpy(ids[start : end + 1].astype(np.int64))[None]
    with torch.no_grad():
        return model(Batch(tokens[:, :-1], tokens[:, 1:]))[0][0]


def test_every_protocol_has_an_example_here():
    assert {type(protocol) for protocol in protocols} == set(Protocol.variants())


@every_protocol
@pytest.mark.parametrize("length", [2, 3, 8, 9, 10, 46])
def test_every_target_is_counted_once(protocol, length, ids):
    score = evaluate(build(PreNorm()), ids[:length], protocol, length - 1, length - 1)
    assert score.tokens == length - 1
    assert sum(bucket["tokens"] for bucket in score.by_position) == length - 1
    assert sum(b["tokens"] * b["nats_per_token"] for b in score.by_position) == pytest.approx(score.nats)


@given(targets=st.integers(1, 300), context=st.integers(1, 40), stride=st.integers(1, 40))
def test_windows_cover_each_target_once_with_all_the_context_they_promise(targets, context, stride):
    protocol = SlidingWindow(context, min(stride, context))
    scored = []
    for window in protocol.windows(targets):
        assert 0 <= window.start < window.end <= targets
        assert window.end - window.start <= context
        scored += range(window.start + 1 + window.skip, window.end + 1)
        if window.start:
            assert window.skip >= context - protocol.stride
    assert scored == list(range(1, targets + 1))


@every_model
@pytest.mark.parametrize("context, stride", [(8, 3), (8, 1), (8, 8), (5, 2), (100, 10)])
def test_the_sliding_window_gives_the_textbooks_number(block, context, stride, ids):
    model, expected, scored = build(block), 0.0, min(context, 45)
    expected += nats(model, ids, 0, scored).sum()
    while scored < 45:
        end = min(scored + stride, 45)
        expected += nats(model, ids, end - context, end)[-(end - scored) :].sum()
        scored = end
    assert evaluate(model, ids, SlidingWindow(context, stride), 45, 45).nats == pytest.approx(
        float(expected), rel=1e-12
    )


@every_model
def test_carrying_the_state_is_reading_all_at_once(block, ids):
    model = build(block)
    expected = float(nats(model, ids, 0, 45).sum())
    for segment in (1, 7, 45, 100):
        assert evaluate(model, ids, CarriedState(segment), 45, 45).nats == pytest.approx(expected, rel=1e-12)


@every_protocol
def test_how_many_windows_are_read_at_once_does_not_matter(protocol, ids, monkeypatch):
    model = build(PreNorm())
    together = evaluate(model, ids, protocol, 45, 45)
    monkeypatch.setattr(perplexity, "TOKENS_AT_ONCE", 1)
    assert evaluate(model, ids, protocol, 45, 45).nats == pytest.approx(together.nats, rel=1e-12)


def test_the_units_follow_from_the_nats(ids):
    score = evaluate(build(PreNorm()), ids, Segments(8), characters=90, bytes=180).to_json()
    assert score["nats_per_token"] == pytest.approx(score["nats"] / 45)
    assert score["perplexity"] == pytest.approx(math.exp(score["nats_per_token"]))
    assert score["bits_per_token"] == pytest.approx(score["nats_per_token"] / math.log(2))
    assert score["bits_per_character"] == pytest.approx(score["bits_per_token"] / 2)
    assert score["bits_per_byte"] == pytest.approx(score["bits_per_token"] / 4)
    assert score["protocol"] == {"part": "Segments", "length": 8}


def test_a_model_without_knowledge_needs_the_logarithm_of_the_vocabulary(ids):
    model = build(PreNorm())
    torch.nn.init.zeros_(model.head.project.weight)
    assert evaluate(model, ids, Segments(8), 45, 45).nats_per_token == pytest.approx(math.log(11))


def test_evaluation_leaves_the_model_as_it_was(ids):
    model = build(PreNorm(dropout=0.5)).train()
    scores = {evaluate(model, ids, Segments(8), 45, 45).nats for _ in range(2)}
    assert len(scores) == 1, "no dropout in evaluation"
    assert model.training


def test_too_short_a_text_and_an_impossible_stride_are_refused(ids):
    with pytest.raises(UserError, match="1 tokens has nothing to predict"):
        evaluate(build(PreNorm()), ids[:1], Segments(8), 0, 0)
    with pytest.raises(UserError, match="stride"):
        SlidingWindow(8, 9)
