"""Laws of evaluation: each target counted once, and the fast way gives the textbook's number."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from closeness import close, states_close
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.attention.positions import SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.batch import Batch
from palimpsest.errors import UserError
from palimpsest.evaluation.perplexity import (
    CachedMemory,
    CarriedState,
    Protocol,
    Reader,
    Segments,
    Series,
    SlidingWindow,
    evaluate,
    read_text,
)
from palimpsest.legacy.protocols import (
    AdaptiveSpanBlocks,
    LmtoolSlidingWindow,
    TransformerXLColumns,
    TransformerXLSentenceRows,
)
from palimpsest.legacy.streams import TransformerXLSentences
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.heads import Head, SoftmaxHead
from palimpsest.models.language_model import LanguageModel

ours = [
    Segments(8),
    Segments(1000),
    SlidingWindow(8, 3),
    SlidingWindow(8, 8),
    SlidingWindow(8, 1),
    CarriedState(7),
    CarriedState(7, rows=3),
    CachedMemory(7, 5),
    CachedMemory(4, 3, rows=3),
    CachedMemory(4, 6, same_length=True, clamp=4, rows=100, warm_up=False),
]
originals = [
    TransformerXLColumns(4, rows=3),
    TransformerXLColumns(4, extra=3, clamp=2, rows=3),
    TransformerXLColumns(4, 6, same_length=True, clamp=4, rows=2),
    LmtoolSlidingWindow(5, rows=4),
    LmtoolSlidingWindow(5, skip_first=True, rows=4),
    AdaptiveSpanBlocks(4, rows=4),
    AdaptiveSpanBlocks(10, rows=1),
]
in_sentences = TransformerXLSentenceRows(4, 3, rows=2)
every_protocol = pytest.mark.parametrize("protocol", ours + originals, ids=repr)
relative = SoftmaxAttention(SinusoidalRelative(), SegmentCache(6))
models = {"fast weights": PreNorm(), "attention": PreNorm(mixer=SoftmaxAttention())}
every_model = pytest.mark.parametrize("block", models.values(), ids=models.keys())


def build(block, layers=2):
    return LanguageModel(width=16, layers=layers, block=block).build(11, torch.Generator().manual_seed(0)).eval()


@pytest.fixture
def remembering():
    """A model whose memory can be chosen."""
    return shaken(build(PreNorm(mixer=relative)))


def shaken(model):
    """Far from the careful start, so that every token of the context is felt."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


@pytest.fixture
def ids():
    return np.random.default_rng(0).integers(0, 11, 46).astype(np.uint8)


def targets_of(protocol, model, ids, tokens_at_once=1000):
    """The nats of each target that counts, by its place in the text."""
    tally = read_text(model, ids, protocol, tokens_at_once=tokens_at_once)
    return {place: tally.nats[place].item() for place in tally.times.nonzero()[:, 0].tolist()}


def same_targets(found, expected):
    assert found.keys() == expected.keys()
    close(*(torch.tensor([numbers[place] for place in sorted(expected)]) for numbers in (found, expected)), 1e-12)


def nats(model, ids, start, end):
    """Of the targets start+1 … end, read at once from a fresh state."""
    tokens = torch.from_numpy(ids[start : end + 1].astype(np.int64))[None]
    with torch.no_grad():
        return model(Batch(tokens[:, :-1], tokens[:, 1:]))[0][0]


def test_every_protocol_has_an_example_here():
    assert {type(protocol) for protocol in ours + originals + [in_sentences]} == set(Protocol.variants())


def test_rows_that_take_the_next_sentence_are_scored_as_the_original_scores_them(remembering):
    sentences = [[0, *words, 0] for words in ([3, 4, 5], [6], [7, 8, 9, 10, 1, 2, 3], [4, 4], [5, 6, 7, 8], [9, 1])]
    ids = np.array([token for sentence in sentences for token in sentence])
    stream = TransformerXLSentences().build(ids, 2, 4, seed=0)
    model, state, expected = remembering.remembering(3), None, []
    while stream.position()["epoch"] == 0:
        batch, _ = stream.next()
        if stream.position()["epoch"] == 0:
            with torch.no_grad():
                found, state = model(batch, state)
            expected += found.flatten().tolist()
    found = targets_of(in_sentences, remembering, ids)
    close(torch.tensor(sorted(found.values())), torch.tensor(sorted(expected)))
    left_out = {place for where in in_sentences.unscored(ids) for place in where}
    assert left_out == set(range(len(ids))) - found.keys()
    assert not [place for place in found if place in np.flatnonzero(ids == 0)[::2]], "a mark that begins a sentence"


def test_with_another_memory_a_model_has_the_same_parameters_tied_and_frozen_as_they_were():
    spec = LanguageModel(width=16, layers=2, block=PreNorm(mixer=relative), head=SoftmaxHead(tied=True))
    model = spec.build(11, torch.Generator().manual_seed(0))
    model.embedding.requires_grad_(False)
    other = model.remembering(3)
    same = zip(model.named_parameters(), other.named_parameters(), strict=True)
    assert all(one is another for (_, one), (_, another) in same)
    assert [p.requires_grad for p in other.embedding.parameters()] == [False]


@pytest.mark.parametrize("protocol", ours, ids=repr)
@pytest.mark.parametrize("length", [2, 3, 8, 9, 10, 46])
def test_every_target_is_counted_once(protocol, length, ids, remembering):
    score = evaluate(remembering, ids[:length], protocol, length - 1, length - 1)
    assert score.tokens == length - 1
    assert sum(bucket["tokens"] for bucket in score.by_position) == length - 1
    assert sum(b["tokens"] * b["nats_per_token"] for b in score.by_position) == pytest.approx(score.nats)


@every_protocol
@pytest.mark.parametrize("length", [42, 44, 45, 46])
def test_what_a_protocol_leaves_out_it_owns_up_to(protocol, length, ids, remembering):
    left_out = [place for where in protocol.unscored(ids[:length]) for place in where]
    scored = targets_of(protocol, remembering, ids[:length])
    assert sorted([*scored, *left_out]) == list(range(length))


@given(targets=st.integers(1, 300), context=st.integers(1, 40), stride=st.integers(1, 40))
def test_windows_cover_each_target_once_with_all_the_context_they_promise(targets, context, stride):
    protocol = SlidingWindow(context, min(stride, context))
    scored = []
    for starts, length, skip in protocol.windows(targets):
        assert length <= context
        for start in starts:
            assert 0 <= start < start + length <= targets
            scored += range(start + 1 + skip, start + length + 1)
            assert skip >= context - protocol.stride or start == 0
    assert scored == list(range(1, targets + 1))


@every_model
@pytest.mark.parametrize("context, stride", [(8, 3), (8, 1), (8, 8), (5, 2), (100, 10)])
def test_the_sliding_window_gives_the_textbooks_numbers(block, context, stride, ids):
    model, scored = shaken(build(block)), min(context, 45)
    expected = dict(enumerate(nats(model, ids, 0, scored).tolist(), start=1))
    while scored < 45:
        end = min(scored + stride, 45)
        last = nats(model, ids, end - context, end)[-(end - scored) :]
        expected |= dict(enumerate(last.tolist(), start=scored + 1))
        scored = end
    same_targets(targets_of(SlidingWindow(context, stride), model, ids), expected)
    score = evaluate(model, ids, SlidingWindow(context, stride), 45, 45)
    assert score.nats == pytest.approx(sum(expected.values()), rel=1e-12)


@pytest.mark.parametrize("context, stride", [(8, 3), (8, 1), (8, 8)])
def test_nobody_is_asked_for_nats_that_do_not_count(context, stride, ids, monkeypatch):
    model, asked = build(PreNorm()), []
    forward = type(model.head).forward
    monkeypatch.setattr(
        type(model.head), "forward", lambda self, x, targets: asked.append(targets.numel()) or forward(self, x, targets)
    )
    evaluate(model, ids, SlidingWindow(context, stride), 45, 45)
    assert sum(asked) == 45


@pytest.mark.parametrize("head", Head.variants(), ids=lambda head: head.__name__)
def test_a_model_can_be_asked_for_its_last_targets_alone(head, ids):
    model = LanguageModel(width=16, layers=1, head=head()).build(11, torch.Generator().manual_seed(0)).eval()
    batch = Batch.cut(ids, [0, 9, 20], 12, documents=np.array([0, 5, 14, 31, 46]))
    with torch.no_grad():
        (everything, state), (last, same_state) = model(batch), model(batch.asked_from(9))
    close(last, everything[:, 9:])
    states_close(same_state, state)
    assert batch.asked_from(9).count() == batch.mask[:, 9:].sum()


@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("documents", [None, np.array([0, 5, 14, 31, 46])], ids=["one text", "documents"])
def test_a_batch_is_the_same_wherever_it_is_cut(documents, extra, ids):
    places = np.array([[3, 4, 5, 6], [13, 14, 15, 16], [41, 42, 43, 44]])
    there = [None if numbers is None else torch.from_numpy(numbers) for numbers in (ids, places, documents)]
    here, found = Batch.at(ids, places, extra, documents), Batch.at(*there[:2], extra, there[2])
    for one, other in zip(here, found, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_a_protocol_that_counts_a_target_twice_is_refused(ids, monkeypatch):
    monkeypatch.setattr(Segments, "windows", lambda self, targets: [Series(range(0, 8, 4), 8, skip=3)])
    with pytest.raises(UserError, match="counted targets twice"):
        evaluate(build(PreNorm()), ids, Segments(), 45, 45)


@every_model
def test_carrying_the_state_is_reading_all_at_once(block, ids):
    model = build(block)
    expected = float(nats(model, ids, 0, 45).sum())
    for segment in (1, 7, 45, 100):
        assert evaluate(model, ids, CarriedState(segment), 45, 45).nats == pytest.approx(expected, rel=1e-12)


@every_protocol
def test_how_much_is_read_at_once_does_not_matter(protocol, ids, remembering):
    together = targets_of(protocol, remembering, ids)
    for tokens in (1, 20):
        same_targets(targets_of(protocol, remembering, ids, tokens), together)


@every_model
def test_sliding_windows_score_the_same_one_at_a_time_and_sixty_four_at_once(block):
    model, ids = shaken(build(block)), np.random.default_rng(1).integers(0, 11, 201)
    one, many = (evaluate(model, ids, SlidingWindow(8, 3), 200, 200, tokens_at_once=8 * n) for n in (1, 64))
    assert many.nats == pytest.approx(one.nats, rel=1e-13)
    assert [bucket["tokens"] for bucket in many.by_position] == [bucket["tokens"] for bucket in one.by_position]


@every_model
def test_each_row_of_a_carried_state_begins_afresh(block, ids):
    model = build(block)
    borders = {1: [0, 45], 2: [0, 21, 45], 3: [0, 14, 28, 45], 20: [0, 7, 14, 21, 28, 35, 42, 45]}
    for rows, cuts in borders.items():
        expected = sum(float(nats(model, ids, start, end).sum()) for start, end in pairwise(cuts))
        score = evaluate(model, ids, CarriedState(7, rows), 45, 45)
        assert score.nats == pytest.approx(expected, rel=1e-12)
        assert score.to_json()["protocol"]["rows"] == rows


@pytest.mark.parametrize("segment, memory", [(4, 0), (4, 3), (7, 20), (1, 5)])
def test_a_layer_sees_its_segment_and_the_memory_before_it(segment, memory, ids):
    model = shaken(build(PreNorm(mixer=relative), layers=1))  # one layer: what is remembered is what was read
    everything = model.remembering(1000)
    expected = 0.0
    for start in range(0, 45, segment):
        end, first = min(start + segment, 45), max(0, start - memory)
        expected += float(nats(everything, ids, first, end)[start - first :].sum())
    assert evaluate(model, ids, CachedMemory(segment, memory), 45, 45).nats == pytest.approx(expected, rel=1e-12)


def test_memory_clamp_and_same_length_are_chosen_at_evaluation(ids, remembering):
    chosen = [
        CachedMemory(4, 6),
        CachedMemory(4, 0),
        CachedMemory(4, 9),
        CachedMemory(4, 6, same_length=True),
        CachedMemory(4, 6, clamp=2),
    ]
    scores = [evaluate(remembering, ids, protocol, 45, 45).nats for protocol in chosen]
    assert len({round(score, 6) for score in scores}) == len(chosen)
    assert remembering.spec.block.mixer.span == SegmentCache(6), "the model itself keeps its own"


@pytest.mark.parametrize("length", [2, 30, 97])
@pytest.mark.parametrize(
    "choice",
    [
        CachedMemory(4, 3),  # a warm-up of 16 tokens
        CachedMemory(3, 5),  # … and of 18, where 16 would do
        CachedMemory(1, 2),
        CachedMemory(8, 0),
        CachedMemory(4, 6, same_length=True, clamp=3),
        CachedMemory(16, 30),  # longer than most rows
    ],
    ids=repr,
)
def test_rows_that_have_warmed_up_score_what_one_row_does(choice, length, remembering):
    ids = np.random.default_rng(2).integers(0, 11, length)
    expected = targets_of(choice, remembering, ids)
    for rows in (2, 3, 7, 100):
        same_targets(targets_of(replace(choice, rows=rows), remembering, ids), expected)


def test_the_whole_score_of_warm_rows_is_that_of_one(remembering):
    ids = np.random.default_rng(2).integers(0, 11, 97)
    one, many = (evaluate(remembering, ids, CachedMemory(4, 3, rows=rows), 96, 96) for rows in (1, 5))
    assert many.nats == pytest.approx(one.nats, rel=1e-13)
    for ours, theirs in zip(many.by_position, one.by_position, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-13)


def test_a_shorter_warm_up_would_be_felt(remembering, monkeypatch):
    ids = np.random.default_rng(2).integers(0, 11, 97)
    one, three = CachedMemory(3, 5), CachedMemory(3, 5, rows=3)
    expected = evaluate(remembering, ids, one, 96, 96).nats
    monkeypatch.setattr(Reader, "layers", 1)
    assert abs(evaluate(remembering, ids, three, 96, 96).nats - expected) > 1e-9


def test_rows_that_have_not_warmed_up_say_how_many_they_are(remembering):
    ids = np.random.default_rng(2).integers(0, 11, 97)
    scores = [evaluate(remembering, ids, CachedMemory(4, 3, rows=n, warm_up=False), 96, 96) for n in (1, 2, 3)]
    assert len({round(score.nats, 9) for score in scores}) == 3
    assert [score.to_json()["protocol"]["rows"] for score in scores] == [1, 2, 3]


def test_a_batch_is_one_call_for_each_segment(remembering, monkeypatch):
    calls = []
    forward = type(remembering).forward
    monkeypatch.setattr(
        type(remembering), "forward", lambda self, batch, state: calls.append(batch) or forward(self, batch, state)
    )
    evaluate(remembering, np.zeros(8 * 40, int), CachedMemory(8, 4, rows=4), 1, 1)
    assert len(calls) == 14, "ten segments of its own and three to warm up; the last of the text is one token short"


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


@every_protocol
def test_evaluation_leaves_the_model_as_it_was(protocol, ids):
    model = build(PreNorm(mixer=relative, dropout=0.5)).train()
    scores = {evaluate(model, ids, protocol, 45, 45).nats for _ in range(2)}
    assert len(scores) == 1, "no dropout in evaluation"
    assert model.training
    model(Batch.cut(ids, [0], 8))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_too_short_a_text_and_an_impossible_stride_are_refused(ids):
    with pytest.raises(UserError, match="1 tokens has nothing to predict"):
        evaluate(build(PreNorm()), ids[:1], Segments(8), 0, 0)
    with pytest.raises(UserError, match="stride"):
        SlidingWindow(8, 9)


@pytest.mark.parametrize(
    "protocol",
    [
        lambda: Segments(0),
        lambda: CarriedState(rows=0),
        lambda: CachedMemory(memory=-1),
        lambda: CachedMemory(clamp=0),
        lambda: TransformerXLColumns(same_length=True),
    ],
)
def test_counts_that_make_no_sense_are_refused(protocol):
    with pytest.raises(UserError):
        protocol()


def test_a_model_without_such_a_memory_says_so(ids):
    with pytest.raises(UserError, match="memory"):
        evaluate(build(PreNorm()), ids, CachedMemory(4, 3), 45, 45)


@pytest.mark.parametrize("segment, extra, rows", [(4, 0, 3), (4, 3, 3), (5, 7, 1), (100, 2, 5)])
def test_transformer_xl_columns_without_a_memory_are_segments_read_afresh(segment, extra, rows, ids):
    model, length, expected = build(PreNorm(mixer=relative)), 46 // rows, {}
    for row in range(rows):
        column = ids[row * length : (row + 1) * length]
        for start in range(0, length - 1, segment):
            end, again = min(start + segment, length - 1), min(extra, start)
            for place, number in enumerate(nats(model, column, start - again, end)[again:].tolist()):
                expected[row * length + start + place + 1] = number
    same_targets(targets_of(TransformerXLColumns(segment, extra=extra, rows=rows), model, ids), expected)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_transformer_xl_columns_hand_on_their_memory(rows, ids, remembering):
    protocol, length = TransformerXLColumns(4, 7, clamp=5, rows=rows), 46 // rows
    expected = {}
    for row in range(rows):
        column = ids[row * length : (row + 1) * length]
        alone = targets_of(CachedMemory(4, 7, clamp=5), remembering, column)
        expected |= {row * length + place: number for place, number in alone.items()}
    same_targets(targets_of(protocol, remembering, ids), expected)


@pytest.mark.parametrize("own, extra", [(0, 3), (2, 3), (2, 0), (0, 5)])
def test_transformer_xl_remembers_what_is_before_the_tokens_it_reads_again(own, extra, ids):
    mixer = replace(relative, span=SegmentCache(6, extra=own))
    model = shaken(build(PreNorm(mixer=mixer), layers=1))  # one layer: what is remembered is what was read
    everything, expected = model.remembering(1000), {}
    for start in range(0, 45, 4):
        end, first = min(start + 4, 45), max(0, start - extra - 7)
        for place, number in enumerate(nats(everything, ids, first, end)[start - first :].tolist(), start=start + 1):
            expected[place] = number
    same_targets(targets_of(TransformerXLColumns(4, 7, extra, rows=1), model, ids), expected)
    assert model.spec.block.mixer.span.extra == own


def test_transformer_xl_switches_same_length_on_and_never_off(ids):
    on = replace(relative, span=SegmentCache(6, same_length=True))
    own, other = (shaken(build(PreNorm(mixer=mixer))) for mixer in (on, relative))
    scores = [
        targets_of(TransformerXLColumns(4, 6, same_length=asked, rows=2), model, ids)
        for model, asked in [(own, False), (own, True), (other, True)]
    ]
    for score in scores[1:]:
        same_targets(score, scores[0])
    assert targets_of(TransformerXLColumns(4, 6, rows=2), other, ids) != scores[0]


@pytest.mark.parametrize("rows, skip_first", [(1, False), (3, False), (3, True)])
def test_lmtool_has_a_window_for_each_target(rows, skip_first, ids):
    model, length, expected = build(PreNorm()), 46 // rows, {}
    for row in range(rows):
        column = ids[row * length : (row + 1) * length]
        for start in range(length - 5):
            counted = 5 if start == 0 and not skip_first else 1
            for back, number in enumerate(reversed(nats(model, column, start, start + 5)[-counted:].tolist())):
                expected[row * length + start + 5 - back] = number
    same_targets(targets_of(LmtoolSlidingWindow(5, skip_first, rows=rows), model, ids), expected)
    assert len(expected) == rows * (length - 5 if skip_first else length - 1)


@pytest.mark.parametrize(
    "rows, block, tokens", [(1, 5, 46), (4, 5, 46), (4, 5, 44), (3, 7, 46), (3, 7, 45), (2, 11, 24)]
)
def test_adaptive_span_stops_before_a_block_that_is_not_whole(rows, block, tokens, ids):
    model, length, expected = shaken(build(PreNorm(mixer=relative))), tokens // rows, {}
    for row in range(rows):
        column, state, place = torch.from_numpy(ids[row * length : (row + 1) * length].astype(int))[None], None, 0
        while place == 0 or place < length - block:
            with torch.no_grad():
                piece = Batch(column[:, place : place + block], column[:, place + 1 : place + block + 1])
                found, state = model(piece, state)
            expected |= {row * length + place + i + 1: number for i, number in enumerate(found[0].tolist())}
            place += block
    same_targets(targets_of(AdaptiveSpanBlocks(block, rows), model, ids[:tokens]), expected)


def test_rows_too_short_for_an_original_are_refused(ids):
    with pytest.raises(UserError, match="ask for fewer rows"):
        evaluate(build(PreNorm()), ids, AdaptiveSpanBlocks(12, rows=4), 45, 45)
