"""The laws of reading: every Order, every size of batch and segment, any place to go on from."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.data.streams import Contiguous, Order, Shuffled
from palimpsest.errors import UserError

torch.set_num_threads(1)
every_order = pytest.mark.parametrize("order", [variant() for variant in Order.variants()], ids=repr)
relaxed = settings(deadline=None, max_examples=60, derandomize=True)
sizes = st.integers(1, 6)


def stream_of(order, tokens, batch, segment, seed=0):
    """At least one batch long. Token i is the number i, so that what was read says where it was read."""
    enough = max(tokens, batch * segment + order.spare(segment))
    return order.build(np.arange(enough, dtype=np.uint16), batch, segment, seed)


def epoch_of(stream):
    return [stream.next() for _ in range(stream.steps_per_epoch)]


@every_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes)
def test_targets_are_the_tokens_that_follow(order, tokens, batch, segment):
    for (inputs, targets, mask), _ in epoch_of(stream_of(order, tokens, batch, segment)):
        assert inputs.shape == targets.shape == (batch, segment)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
        assert mask is None
        assert torch.equal(inputs, inputs[:, :1] + torch.arange(segment))


@every_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes, epochs=st.integers(1, 3))
def test_no_token_is_read_twice_in_an_epoch(order, tokens, batch, segment, epochs):
    stream = stream_of(order, tokens, batch, segment)
    for _ in range(epochs):
        read = torch.cat([batch.inputs.flatten() for batch, _ in epoch_of(stream)])
        assert len(read.unique()) == len(read) > tokens - batch * segment - order.spare(segment)


@every_order
@relaxed
@given(tokens=st.integers(2, 200), batch=sizes, segment=sizes, cut=st.integers(0, 60), seed=st.integers(-9, 9))
def test_going_on_from_a_position_is_going_on(order, tokens, batch, segment, cut, seed):
    stream, resumed = (stream_of(order, tokens, batch, segment, seed) for _ in range(2))
    for _ in range(cut):
        stream.next()
    resumed.seek(dict(stream.position()))
    for _ in range(2 * stream.steps_per_epoch):
        assert resumed.position() == stream.position()
        (ours, ours_continues), (theirs, theirs_continues) = stream.next(), resumed.next()
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)
        assert ours_continues == theirs_continues


@every_order
@relaxed
@given(tokens=st.integers(2, 300), batch=sizes, segment=sizes)
def test_rows_that_continue_begin_where_they_ended(order, tokens, batch, segment):
    stream = stream_of(order, tokens, batch, segment)
    steps = [stream.next() for _ in range(2 * stream.steps_per_epoch + 1)]
    for place, (batch_read, continues) in enumerate(steps):
        assert continues == (order.continues and place % stream.steps_per_epoch > 0)
        if continues:
            assert torch.equal(batch_read.inputs[:, 0], steps[place - 1][0].targets[:, -1])


@every_order
@relaxed
@given(batch=sizes, segment=sizes)
def test_the_shortest_text_is_one_batch_and_a_shorter_one_is_refused(order, batch, segment):
    needed = batch * segment + order.spare(segment)
    assert order.build(np.arange(needed), batch, segment, 0).steps_per_epoch == 1
    with pytest.raises(UserError, match=rf"{needed - 1} tokens.*= {needed}\. Lower --batch .* or --segment"):
        order.build(np.arange(needed - 1), batch, segment, 0)


@every_order
def test_sizes_below_one_and_positions_beyond_the_epoch_are_refused(order):
    with pytest.raises(UserError, match="1 or more"):
        order.build(np.arange(100), 0, 4, 0)
    with pytest.raises(UserError, match="another text, --batch or --segment"):
        order.build(np.arange(100), 2, 4, 0).seek({"epoch": 0, "step": 99})


@every_order
def test_a_memory_map_reads_like_an_array(order, tmp_path):
    ids = np.random.default_rng(0).integers(0, 200, 500).astype(np.uint8)
    ids.tofile(tmp_path / "ids.bin")
    mapped = order.build(np.memmap(tmp_path / "ids.bin", np.uint8, "r"), 3, 7, 5)
    for (ours, _), (theirs, _) in zip(epoch_of(mapped), epoch_of(order.build(ids, 3, 7, 5)), strict=True):
        assert torch.equal(ours.inputs, theirs.inputs)


def test_shuffled_epochs_and_seeds_differ_and_cuts_move():
    stream, other = stream_of(Shuffled(), 4000, 2, 16, seed=1), stream_of(Shuffled(), 4000, 2, 16, seed=2)
    starts = [torch.cat([batch.inputs[:, 0] for batch, _ in epoch_of(s)]) for s in (stream, stream, other)]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert len({int(places[0]) % 16 for places in starts}) > 1


def test_contiguous_rows_follow_one_another_in_the_text():
    stream = stream_of(Contiguous(), 101, 2, 5)
    rows = torch.cat([batch.inputs for batch, _ in epoch_of(stream)], dim=1)
    assert torch.equal(rows.flatten(), torch.arange(100))
