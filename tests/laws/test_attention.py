"""Laws of relative attention: one answer from all its forms, and what it must not see."""

from itertools import product
from typing import NamedTuple

import pytest
import torch
from closeness import all_close, close
from torch import Tensor, nn

from palimpsest.attention.positions import SharedRelative
from palimpsest.attention.spans import Adaptive
from palimpsest.kernels import ATTENTION_BACKENDS, BackendRefused, Relative, relative_attention
from palimpsest.mixers import SoftmaxAttention, softmax_attention

EXACT = [name for name in ATTENTION_BACKENDS if name != "fused"]  # it knows no float64: its laws are in tests/fused
ROWS, HEADS, KEY, VALUE, VECTORS, BLOCK = 2, 3, 4, 5, 2, 3
LENGTHS = [(1, 1), (1, 6), (2, 2), (BLOCK - 1, 7), (BLOCK, 8), (BLOCK + 1, BLOCK + 1), (7, 12)]
REACHES = (None, 1, 2, 5)


class Terms(NamedTuple):
    """Which of the terms of the score there are."""

    relative: bool = False
    mask: bool = False
    persistent: bool = False
    empty: bool = False

    @property
    def plain(self) -> bool:
        return not (self.relative or self.mask or self.persistent)


EVERY = [Terms(*chosen) for chosen in product((False, True), repeat=4)]
every_combination = pytest.mark.parametrize("terms", EVERY, ids=repr)
every_length = pytest.mark.parametrize("queries, keys", LENGTHS)
every_reach = pytest.mark.parametrize("reach", REACHES)


def inputs(terms: Terms, queries: int, keys: int, reach: int | None) -> dict[str, Tensor]:
    """Everything that can be learned or read, by name."""
    seen = keys if reach is None else min(reach, keys)
    shapes = {
        "queries": (ROWS, queries, HEADS, KEY),
        "keys": (ROWS, keys, HEADS, KEY),
        "values": (ROWS, keys, HEADS, VALUE),
    }
    if terms.relative:
        shapes |= {"place": (ROWS, queries, HEADS, KEY), "table": (seen + 1, HEADS, KEY), "bias": (seen + 1, HEADS)}
    if terms.persistent:
        shapes |= {"vector keys": (HEADS, VECTORS, KEY), "vector values": (HEADS, VECTORS, VALUE)}
    made = {name: torch.randn(shape) for name, shape in shapes.items()}
    if terms.mask:  # one head sees its own token best of all, another fades out on the way, another sees all there is
        made["spans"] = torch.tensor([0.0, 0.37 * seen, float(seen)])
    return made


def attend(given: dict[str, Tensor], reach: int | None, empty: bool, **options) -> Tensor:
    queries, keys = given["queries"], given["keys"]
    seen = keys.shape[1] if reach is None else min(reach, keys.shape[1])
    mask = None
    if "spans" in given:
        mask = ((given["spans"][:, None] - torch.arange(seen)) / 3 + 1).clamp(0, 1)
    cached = keys.shape[1] - queries.shape[1]
    return relative_attention(
        queries,
        keys,
        given["values"],
        relative=Relative(given["place"], given["table"], given["bias"]) if "place" in given else None,
        reach=reach,
        mask=mask,
        persistent=(given["vector keys"], given["vector values"]) if "vector keys" in given else None,
        empty=torch.tensor([0, min(2, cached)]) if empty else None,
        **options,
    )


def outcome(given: dict[str, Tensor], reach: int | None, empty: bool, **options) -> dict[str, Tensor]:
    learned = {name: value.clone().requires_grad_() for name, value in given.items()}
    reads = attend(learned, reach, empty, **options)
    weights = torch.randn(reads.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((reads * weights).sum(), list(learned.values()))
    return {"reads": reads.detach()} | {
        f"gradient of {name}": one for name, one in zip(learned, gradients, strict=True)
    }


@every_combination
@every_length
@every_reach
def test_all_forms_agree(terms, queries, keys, reach):
    given = inputs(terms, queries, keys, reach)
    truth = outcome(given, reach, terms.empty, backend="reference")
    for block in (1, BLOCK - 1, BLOCK, 64):
        all_close(outcome(given, reach, terms.empty, backend="blocked", block=block), truth)
    if terms.plain:
        all_close(outcome(given, reach, terms.empty, backend="plain"), truth)
    all_close(outcome(given, reach, terms.empty), truth)


@pytest.mark.parametrize("backend", EXACT)
def test_weights_are_shares_of_what_is_seen(backend):
    given = inputs(Terms(), 4, 9, 3) | {"values": torch.ones(ROWS, 9, HEADS, VALUE)}
    close(attend(given, 3, False, backend=backend), torch.ones(ROWS, 4, HEADS, VALUE))


@every_combination
@every_reach
def test_what_lies_ahead_or_beyond_the_reach_is_not_read(terms, reach):
    given = inputs(terms, 4, 9, reach)
    before = attend(given, reach, terms.empty)
    for query, place in product(range(4), range(9)):
        distance = 5 + query - place
        changed = {**given, "keys": given["keys"].clone(), "values": given["values"].clone()}
        changed["keys"][:, place], changed["values"][:, place] = 7.0, 1e9
        if distance < 0 or (reach is not None and distance >= reach):
            close(attend(changed, reach, terms.empty)[:, query], before[:, query])


@pytest.mark.parametrize("backend", EXACT)
def test_what_is_empty_may_differ_from_query_to_query(backend):
    """As if each query had been asked with its own keys alone."""
    queries, keys, values = torch.randn(2, 4, 2, 3), torch.randn(2, 6, 2, 3), torch.randn(2, 6, 2, 5)
    empty = torch.tensor([[0, 3, 3, 5], [2, 2, 4, 4]])
    reads = relative_attention(queries, keys, values, empty=empty, backend=backend)
    for row, query in product(range(2), range(4)):
        one, seen = slice(row, row + 1), slice(int(empty[row, query]), 3 + query)
        alone = relative_attention(
            queries[one, query : query + 1], keys[one, seen], values[one, seen], backend="reference"
        )
        close(reads[one, query : query + 1], alone)


def test_an_empty_slot_is_not_read():
    given = inputs(Terms(True, True, True, True), 2, 6, None)
    changed = {**given, "keys": given["keys"].clone(), "values": given["values"].clone()}
    changed["keys"][1, :2], changed["values"][1, :2] = 7.0, 1e9  # of the second row, where two slots are empty
    close(attend(changed, None, True), attend(given, None, True))
    assert not torch.allclose(attend(changed, None, False), attend(given, None, False))


def test_a_mask_of_ones_is_no_mask_and_a_mask_of_zeros_is_a_shorter_reach():
    given = inputs(Terms(relative=True), 4, 9, None)
    everything = outcome(given, None, False)
    assert all(value is not None for value in everything.values())
    ones = relative_attention(*three(given), relative=relative(given), mask=torch.ones(HEADS, 9))
    close(ones, everything["reads"])
    near = torch.cat([torch.ones(HEADS, 3), torch.zeros(HEADS, 6)], dim=1)
    close(relative_attention(*three(given), relative=relative(given), mask=near), attend(given, 3, False))


def three(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return given["queries"], given["keys"], given["values"]


def relative(given: dict[str, Tensor]) -> Relative:
    return Relative(given["place"], given["table"], given["bias"])


def test_a_masked_score_that_towers_above_all_others_does_no_harm():
    queries = keys = torch.zeros(1, 3, 1, 1)
    keys = keys.clone()
    keys[:, 0], queries = 1e4, torch.ones(1, 3, 1, 1)
    values = torch.arange(3.0).view(1, 3, 1, 1)
    for backend in ("reference", "blocked"):
        mask = torch.tensor([[1.0, 1.0, 0.0]]).requires_grad_()
        reads = relative_attention(queries, keys, values, mask=mask, backend=backend)
        close(reads[0, 2], torch.tensor([[1.5]]))
        reads[0, 2].sum().backward()
        assert mask.grad.isfinite().all()


def test_heads_of_one_group_are_not_widened_by_those_of_another():
    spans = Adaptive(limit=1024, ramp=32).build(4)
    with torch.no_grad():
        spans.ratio.copy_(torch.tensor([0.0, 1.0, 0.01, 0.3]))
    groups = {tuple(group.heads): group.reach for group in spans.groups()}
    assert groups == {(0, 2): 64, (3,): 384, (1,): 1024}
    assert spans.together() == (slice(None), 1024)


def test_heads_that_are_asked_together_read_what_they_read_in_groups(monkeypatch):
    mixer = SoftmaxAttention(SharedRelative(200), Adaptive(limit=200, ramp=16), heads=4).build(8)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter)
    with torch.no_grad():
        mixer.span.ratio.copy_(torch.tensor([0.0, 1.0, 0.01, 0.5]))
    x = torch.randn(2, 150, 8)

    def outcome() -> dict[str, Tensor]:
        first, state = mixer(x[:, :90])
        second, _ = mixer(x[:, 90:], state)
        reads = torch.cat([first, second], dim=1)
        gradients = torch.autograd.grad(reads.sin().sum(), list(mixer.parameters()))
        return {"reads": reads} | dict(zip(dict(mixer.named_parameters()), gradients, strict=True))

    assert len(mixer.span.groups()) == 3
    grouped = outcome()
    monkeypatch.setattr(softmax_attention, "skips_by_head", lambda queries: True)
    all_close(outcome(), grouped)


def test_windows_hold_all_that_a_head_sees_and_follow_it_when_it_changes():
    spans = Adaptive(limit=300, ramp=7).build(1)
    for ratio in (0.0, 0.31, 0.999, 1.0, 0.1):
        with torch.no_grad():
            spans.ratio.fill_(ratio)
        (group,) = spans.groups()
        assert spans.mask(slice(None), 300)[0, group.reach :].sum() == 0
        assert spans.spans()[0] <= group.reach <= spans.spans()[0] + 63
        assert spans.slots >= group.reach - 1


@pytest.mark.parametrize("grown", [0.3, 1.0])
def test_when_spans_grow_by_any_step_no_more_is_seen_than_was_there(grown):
    """As far as the last memory went and no farther: as if all that is kept had been read in one segment."""
    mixer, x = (
        SoftmaxAttention(SharedRelative(400), Adaptive(limit=400, ramp=7), heads=HEADS).build(6),
        torch.randn(2, 330, 6),
    )
    for weight in mixer.parameters():
        nn.init.normal_(weight)
    nn.init.constant_(mixer.span.ratio, 0.0)
    before, segment, after = x.split([300, 10, 20], dim=1)
    _, state = mixer(before)
    with torch.no_grad():
        mixer.span.ratio.fill_(grown)
    kept = state.hidden.shape[1]
    for new, earlier in ((segment, 0), (after, 10)):
        reads, state = mixer(new, state)
        expected, _ = mixer(x[:, 300 - kept : 300 + earlier + new.shape[1]])
        close(reads, expected[:, -new.shape[1] :])
        assert state.hidden.all(dim=2).all()


def test_spans_may_be_used_where_torch_counts_no_changes_and_are_followed_where_it_is_told_of_none():
    with torch.inference_mode():
        spans = Adaptive(limit=300, ramp=7).build(2)
        for ratio in (0.0, 1.0):
            spans.ratio.fill_(ratio)
            assert spans.together().reach == (64, 300)[int(ratio)]
    spans = Adaptive(limit=300, ramp=7).build(2)
    for ratio in (0.0, 1.0):
        spans.ratio.data.fill_(ratio)
        assert spans.together().reach == (64, 300)[int(ratio)]


def test_after_a_step_spans_are_between_nothing_and_their_limit():
    spans = Adaptive(limit=100).build(2)
    with torch.no_grad():
        spans.ratio.copy_(torch.tensor([-0.2, 1.3]))
    spans.after_step()
    assert spans.ratio.tolist() == [0.0, 1.0]
    assert spans.gauges() == {"span": [32.0, 100.0]}


@pytest.mark.parametrize(
    "options, fault",
    [
        ({"backend": "flash"}, "there is no backend 'flash'"),
        ({"backend": "plain", "mask": torch.ones(HEADS, 9)}, "the plain backend knows products"),
        ({"backend": "fused", "mask": torch.ones(HEADS, 9)}, "the fused backend"),
        ({"backend": "plain", "block": 3}, "a block is a number of queries for the blocked backend"),
        ({"block": 0, "mask": torch.ones(HEADS, 9)}, "a block is a number"),
        ({"reach": 0}, "a query sees at least its own token"),
        ({"mask": torch.ones(HEADS, 8)}, "9 distances are seen, but the mask knows 8"),
        ({"mask": torch.ones(HEADS + 1, 9)}, "mask: expected the axes"),
    ],
)
def test_what_cannot_be_done_is_refused(options, fault):
    with pytest.raises((BackendRefused, ValueError), match=fault):
        relative_attention(*three(inputs(Terms(), 4, 9, None)), **options)


def test_more_queries_than_keys_are_refused():
    with pytest.raises(ValueError, match="the last 4 keys are the queries' own, but there are 3"):
        relative_attention(torch.ones(1, 4, 1, 2), torch.ones(1, 3, 1, 2), torch.ones(1, 3, 1, 2))
