"""The laws of reading: every Order, every size of batch and segment, any place to go on from."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.data.streams import Contiguous, Order, RandomLengths, Shuffled, ShuffledDocuments
from palimpsest.errors import UserError
from palimpsest.legacy.streams import (
    AdaptiveSpanBlocks,
    LmtoolSlidingWindows,
    SentenceOrder,
    TransformerXLRandomLengths,
    TransformerXLSegments,
    TransformerXLSentences,
    TransformerXLShuffledSentences,
)

torch.set_num_threads(1)
SENTENCES = [variant() for variant in SentenceOrder.variants()]
PLANNED = [
    *(variant() for variant in Order.variants() if not issubclass(variant, SentenceOrder)),
    Contiguous(extra=4),
    TransformerXLSegments(extra=4),
    TransformerXLRandomLengths(extra=4),
]
OURS = [order for order in PLANNED if not type(order).__module__.startswith("palimpsest.legacy")]
every_order = pytest.mark.parametrize("order", PLANNED + SENTENCES, ids=repr)
every_planned_order = pytest.mark.parametrize("order", PLANNED, ids=repr)
every_sentence_order = pytest.mark.parametrize("order", SENTENCES, ids=repr)
relaxed = settings(deadline=None, max_examples=40, derandomize=True)
sizes = st.integers(1, 6)


def stream_of(order, tokens, batch, segment, seed=0):
    """At least one batch long. Token i is the number i, so that what was read says where it was read."""
    if isinstance(order, SentenceOrder):
        return order.build(sentences(tokens // 6 + batch * segment), batch, segment, seed)
    enough = max(tokens, order.fewest(batch, segment))
    return order.build(np.arange(enough, dtype=np.uint16), batch, segment, seed)


def sentences(count):
    """Of one to five words, each word another number, between two zeros."""
    lengths = np.arange(count) * 7 % 5 + 1
    words = np.split(np.arange(1, lengths.sum() + 1), lengths.cumsum()[:-1])
    return np.concatenate([token for sentence in words for token in ([0], sentence, [0])])


def epoch_of(stream):
    return [stream.next() for _ in range(stream.steps_per_epoch)]


def counted(batch):
    """The part of the inputs whose targets count."""
    return batch.inputs if batch.mask is None else batch.inputs[:, batch.mask[0]]


@every_planned_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes)
def test_targets_are_the_tokens_that_follow(order, tokens, batch, segment):
    for (inputs, targets, mask, *_), _ in epoch_of(stream_of(order, tokens, batch, segment)):
        assert inputs.shape == targets.shape == (batch, inputs.shape[1])
        assert inputs.dtype == targets.dtype == torch.int64
        counted = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
        assert torch.equal(targets[counted], inputs[counted] + 1)
        assert not targets[~counted].any()  # what does not count is not told
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(inputs.shape[1]))


@every_planned_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes, epochs=st.integers(1, 3))
def test_no_target_counts_twice_in_an_epoch(order, tokens, batch, segment, epochs):
    if isinstance(order, LmtoolSlidingWindows):
        return
    stream = stream_of(order, tokens, batch, segment)
    for _ in range(epochs):
        read = torch.cat([counted(batch).flatten() for batch, _ in epoch_of(stream)])
        assert len(read.unique()) == len(read)
        assert order not in OURS or len(read) > tokens - order.fewest(batch, segment)


@every_planned_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes)
def test_extra_tokens_are_those_before_and_do_not_count(order, tokens, batch, segment):
    extra, before = getattr(order, "extra", 0), 0
    for read, _ in epoch_of(stream_of(order, tokens, batch, segment)):
        again = read.inputs.shape[1] - counted(read).shape[1]
        assert again == min(extra, before)
        assert (read.mask is None) == (again == 0)
        if again:
            assert torch.equal(read.mask, (torch.arange(read.inputs.shape[1]) >= again).expand(batch, -1))
        assert read.count() == counted(read).numel()
        before += counted(read).shape[1]


@every_order
@relaxed
@given(tokens=st.integers(2, 200), batch=sizes, segment=sizes, cut=st.integers(0, 60), seed=st.integers(-9, 9))
def test_going_on_from_a_position_is_going_on(order, tokens, batch, segment, cut, seed):
    stream, resumed = (stream_of(order, tokens, batch, segment, seed) for _ in range(2))
    for _ in range(cut):
        stream.next()
    resumed.seek(dict(stream.position()))
    for _ in range(30):
        assert resumed.position() == stream.position()
        (ours, ours_continues), (theirs, theirs_continues) = stream.next(), resumed.next()
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)
        assert ours.count() == theirs.count()
        assert ours_continues == theirs_continues


@every_planned_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes)
def test_rows_that_continue_begin_where_they_ended(order, tokens, batch, segment):
    stream = stream_of(order, tokens, batch, segment)
    ended = None
    for _ in range(3):
        for step, (read, continues) in enumerate(epoch_of(stream)):
            assert continues == (order.continues and step > 0)
            if continues:
                assert torch.equal(counted(read)[:, 0], ended)
            ended = read.targets[:, -1]


@every_planned_order
@relaxed
@given(batch=sizes, segment=sizes)
def test_the_shortest_text_is_an_epoch_and_a_shorter_one_is_refused(order, batch, segment):
    needed = order.fewest(batch, segment)
    assert order.build(np.arange(needed), batch, segment, 0).next()[0].count() > 0
    with pytest.raises(UserError, match=rf"{needed - 1} tokens.*at least {needed}\. Lower --batch .* or --segment"):
        order.build(np.arange(needed - 1), batch, segment, 0)


@every_order
def test_sizes_below_one_and_positions_beyond_the_epoch_are_refused(order):
    with pytest.raises(UserError, match="1 or more"):
        order.build(sentences(100), 0, 4, 0)
    stream = order.build(sentences(100), 2, 4, 0)
    with pytest.raises(UserError, match="another text, --batch or --segment"):
        stream.seek({**stream.position(), "step": 999})


@every_order
def test_a_memory_map_reads_like_an_array(order, tmp_path):
    ids = sentences(50).astype(np.uint8)
    ids.tofile(tmp_path / "ids.bin")
    mapped, plain = order.build(np.memmap(tmp_path / "ids.bin", np.uint8, "r"), 3, 7, 5), order.build(ids, 3, 7, 5)
    for _ in range(20):
        assert torch.equal(mapped.next()[0].inputs, plain.next()[0].inputs)


def test_shuffled_epochs_and_seeds_differ_and_cuts_move():
    stream, other = stream_of(Shuffled(), 4000, 2, 16, seed=1), stream_of(Shuffled(), 4000, 2, 16, seed=2)
    starts = [torch.cat([batch.inputs[:, 0] for batch, _ in epoch_of(s)]) for s in (stream, stream, other)]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert len({int(places[0]) % 16 for places in starts}) > 1


@pytest.mark.parametrize("extra", [0, 7])
def test_contiguous_rows_follow_one_another_in_the_text(extra):
    stream = stream_of(Contiguous(extra), 101, 2, 5)
    rows = torch.cat([counted(batch) for batch, _ in epoch_of(stream)], dim=1)
    assert torch.equal(rows.flatten(), torch.arange(100))


def test_random_lengths_leave_nothing_out_and_differ_by_epoch_and_seed():
    stream, other = (stream_of(RandomLengths(), 3 * 500 + 1, 3, 20, seed) for seed in (1, 2))
    epochs = [[batch for batch, _ in epoch_of(s)] for s in (stream, stream, other)]
    assert len({tuple(batch.inputs.shape[1] for batch in epoch) for epoch in epochs}) == 3
    for epoch in epochs:
        rows = torch.cat([batch.inputs for batch in epoch], dim=1)
        assert torch.equal(rows.flatten(), torch.arange(1500))


def test_random_lengths_lie_around_the_segment_and_now_and_then_around_half_of_it():
    stream = stream_of(RandomLengths(), 400_001, 1, 100)
    lengths = np.array([stream.next()[0].inputs.shape[1] for _ in range(stream.steps_per_epoch - 1)])
    assert lengths.min() >= 5
    assert lengths.max() <= 115
    assert (lengths < 75).mean() == pytest.approx(0.05, abs=0.01)
    # truncation takes half a token away, and the ends are cut off at three deviations
    assert lengths[lengths > 75].mean() == pytest.approx(99.5, abs=0.3)
    assert lengths[lengths > 75].std() == pytest.approx(5, abs=0.3)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match="0 or more"):
        Contiguous(extra=-1)
    with pytest.raises(UserError, match="shortest"):
        RandomLengths(shortest=0)


def test_sliding_windows_advance_by_one_token_and_leave_out_the_last():
    starts = [int(batch.inputs[0, 0]) for batch, _ in epoch_of(stream_of(LmtoolSlidingWindows(), 20, 2, 4))]
    assert starts == list(range(6))


def test_adaptive_span_begins_again_at_a_random_place_of_the_first_block():
    stream = stream_of(AdaptiveSpanBlocks(), 200, 2, 16)
    begins = [int(epoch_of(stream)[0][0].inputs[0, 0]) for _ in range(30)]
    assert begins[0] == 0
    assert len(set(begins)) > 8
    assert max(begins) < 16


def test_the_originals_random_lengths_go_on_with_their_chance_from_epoch_to_epoch():
    stream = stream_of(TransformerXLRandomLengths(), 401, 2, 20)
    epochs = [[batch.inputs.shape[1] for batch, _ in epoch_of(stream)] for _ in range(2)]
    chance, again = np.random.RandomState(0), []
    while len(again) < len(epochs[0] + epochs[1]):
        middle = 20 if chance.random_sample() < 0.95 else 10.0
        again.append(min(35, max(5, int(chance.normal(middle, 5)))))
    last = {len(epochs[0]) - 1, len(again) - 1}  # cut off by the end of the rows
    for place, (drawn, found) in enumerate(zip(again, epochs[0] + epochs[1], strict=True)):
        assert found == drawn or (place in last and found < drawn)


@every_sentence_order
@relaxed
@given(batch=sizes, segment=sizes, extra=st.integers(0, 9), count=st.integers(40, 90))
def test_each_row_reads_whole_sentences_one_after_another(order, batch, segment, extra, count):
    stream = type(order)(extra=extra).build(sentences(count), batch, segment, 3)
    history = torch.zeros(batch, 0, dtype=torch.long)
    inputs, targets = [], []
    while True:
        read, continues = stream.next()
        if not continues and inputs:
            break
        again = read.inputs.shape[1] - segment
        assert again == min(extra, history.shape[1])
        assert torch.equal(read.inputs[:, :again], history[:, history.shape[1] - again :])
        assert read.count() == batch * segment
        inputs.append(read.inputs[:, again:])
        targets.append(read.targets[:, again:])
        history = torch.cat([history, inputs[-1]], dim=1)
    inputs, targets = torch.cat(inputs, 1), torch.cat(targets, 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    words = inputs[inputs != 0]
    assert len(words.unique()) == len(words)


def test_files_and_the_sentences_of_each_are_shuffled_anew_in_every_epoch():
    stream = TransformerXLShuffledSentences(files=(30, 50, 20)).build(sentences(100), 1, 1, 0)
    epochs, words = [], []
    while len(epochs) < 3:
        batch, continues = stream.next()
        if not continues and words:
            epochs.append(words)
            words = []
        words.append(int(batch.inputs))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert {tuple(sorted(epoch)) for epoch in epochs} == {tuple(sorted(epochs[0]))}
    borders = [int(sentences(number)[-2]) for number in (30, 80)]  # the last words of two files
    for epoch in epochs:
        files = [int(np.searchsorted(borders, word)) for word in epoch if word]
        assert sum(one != other for one, other in pairwise(files)) == 2, "one file after another"


def test_a_text_that_is_not_made_of_sentences_or_of_that_many_is_refused():
    with pytest.raises(UserError, match="begin and end with one mark"):
        TransformerXLSentences().build(np.arange(100), 2, 4, 0)
    with pytest.raises(UserError, match=r"10 sentences.*12"):
        TransformerXLSentences(files=(7, 5)).build(sentences(10), 2, 4, 0)
    with pytest.raises(UserError, match="Lower --batch"):
        TransformerXLSentences().build(sentences(3), 5, 40, 0)


# ------------------------------------------------------------------------------------------------- documents

ordinary_order = pytest.mark.parametrize("order", OURS, ids=repr)
borders_of = st.lists(st.integers(1, 9), min_size=1, max_size=40).map(lambda lengths: np.cumsum([0, *lengths]))


def packed(order, borders, batch, segment, seed=0):
    """Tokens are numbers, as above; None where the text is too short for one batch."""
    if borders[-1] < order.fewest(batch, segment):
        return None
    return order.build(np.arange(borders[-1]), batch, segment, seed, borders)


@ordinary_order
@relaxed
@given(borders=borders_of, batch=sizes, segment=sizes)
def test_a_document_begins_where_it_says_and_no_target_belongs_to_another(order, borders, batch, segment):
    stream = packed(order, borders, batch, segment)
    for (inputs, targets, mask, starts, _), _ in epoch_of(stream) if stream else []:
        assert torch.equal(starts, torch.isin(inputs, torch.from_numpy(borders[:-1])))
        ended = torch.isin(inputs + 1, torch.from_numpy(borders))
        counted = mask if getattr(order, "extra", 0) else ~ended
        assert torch.equal(mask, counted & ~ended)
        assert torch.equal(targets, torch.where(mask, inputs + 1, 0))


@relaxed
@given(borders=borders_of, batch=sizes, segment=sizes, epoch=st.integers(0, 2))
def test_shuffled_documents_are_whole_and_read_once(borders, batch, segment, epoch):
    stream = packed(ShuffledDocuments(), borders, batch, segment)
    if stream is None:
        return
    stream.seek({"epoch": epoch, "step": 0})
    rows = torch.cat([batch.inputs for batch, _ in epoch_of(stream)], dim=1)
    assert len({*rows.flatten().tolist()}) == rows.numel()
    for row in rows.tolist():
        jumps = [(before, after) for before, after in pairwise(row) if after != before + 1]
        assert all(before + 1 in borders and after in borders for before, after in jumps)


def test_documents_stand_in_another_order_in_every_epoch():
    stream = packed(ShuffledDocuments(), np.arange(0, 400, 4), 2, 8)
    epochs = []
    for _ in range(3):
        epochs.append(torch.cat([batch.inputs for batch, _ in epoch_of(stream)], dim=1).tolist())
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
