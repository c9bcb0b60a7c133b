"""The laws of instruments: what they say of a memory is what the memory does."""

from dataclasses import replace

import pytest
import torch
from closeness import close

from palimpsest.errors import UserError
from palimpsest.evaluation.instruments import (
    HeadPage,
    collisions,
    effective_rank,
    heads_of,
    overheard,
    ranked_after,
    read_instruments,
)
from palimpsest.gates import Gates
from palimpsest.kernels import memory_scan
from palimpsest.memory.feature_maps import EluPlusOne, Silu
from palimpsest.memory.key_scales import SumToOne, UnitNorm
from palimpsest.memory.update_rules import Delta, DeltaProduct, GatedDelta, Sum, UpdateRule
from palimpsest.mixers import FastWeight, SelfReferential, SoftmaxAttention
from palimpsest.models.block import Hybrid, PostNorm, PreNorm
from palimpsest.models.language_model import LanguageModel

TOKENS, LENGTH = 11, 20
RULES = [*(rule() for rule in UpdateRule.variants()), DeltaProduct(writes=3), GatedDelta(writes=2, limit=2.0)]
SCALES = {EluPlusOne(): SumToOne(), Silu(): UnitNorm()}
SENTENCES = [
    FastWeight(feature_map, scale, rule, heads=2)
    for rule in RULES
    for feature_map, scale in SCALES.items()
    if feature_map.non_negative or not rule.counts_keys
]
every_sentence = pytest.mark.parametrize("mixer", SENTENCES, ids=repr)


def model_of(mixer, layers=1, block=PreNorm):
    model = LanguageModel(width=8, layers=layers, block=block(mixer)).build(TOKENS)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def text(length=LENGTH):
    return torch.randint(TOKENS, (length,))


def inspected(model, ids):
    return read_instruments(model, ids, tuple(map(str, ids.tolist())))


@every_sentence
@pytest.mark.parametrize("block", (PreNorm, PostNorm))
def test_attention_times_values_is_what_is_read(mixer, block):
    model, ids = model_of(mixer, block=block), text()
    (address,) = overheard(model, ids)
    reads, page = memory_scan(*address[1:5], backend="reference")
    for head, told in enumerate(heads_of(address)):
        ours = HeadPage(*told)
        close(ours.attention() @ told[2], reads[0, :, head].detach())
        close(ours.page(len(told[1])), page[0, head].detach())
        assert not ours.attention().triu(1).any()


@every_sentence
def test_readings_tell_of_tokens_however_often_they_write(mixer):
    seen = inspected(model_of(mixer), text())
    assert len(seen.tokens) == LENGTH
    assert [layer.layer for layer in seen.layers] == [1]
    for head in seen.layers[0].heads:
        assert head.attention.shape == (LENGTH, LENGTH)
        assert len(head.ranks) == len(seen.ranked_after)
        assert all(1 <= rank <= 4 for rank in head.ranks)
        assert 0 < head.collisions <= 1 + 1e-9


def test_gates_are_those_of_the_rule():
    model, ids = model_of(FastWeight(update_rule=GatedDelta(), heads=2)), text()
    gates = overheard(model, ids)[0].gates.opened()
    for number, head in enumerate(inspected(model, ids).layers[0].heads):
        for spread, gate in ((head.keep, gates.log_keep.exp()), (head.erase, gates.erase), (head.write, gates.write)):
            mine = gate[0, :, number]
            close(
                torch.tensor([spread.mean, spread.least, spread.largest]), torch.stack([mine.mean(), *mine.aminmax()])
            )


def test_a_gate_that_is_not_there_has_no_reading():
    (head, *_) = inspected(model_of(FastWeight(update_rule=Sum(), heads=2)), text()).layers[0].heads
    assert (head.keep, head.erase, head.write) == (None, None, None)
    assert head.erase_norm == 0
    assert head.write_norm > 0


def test_lengths_of_what_is_written_and_erased_are_those_of_the_pages_changes():
    """Token by token: the page changes by key ⊗ write · value, and by key ⊗ erase · recall."""
    keys, values, beta = torch.randn(9, 3), torch.randn(9, 5), torch.rand(9)
    page, written, erased = torch.zeros(3, 5), [], []
    for key, value, gate in zip(keys, values, beta, strict=True):
        written.append(torch.outer(key, gate * value).norm())
        erased.append(torch.outer(key, gate * (key @ page)).norm())
        page = page + torch.outer(key, gate * (value - key @ page))
    seen = HeadPage(keys, keys, values, Gates(erase=beta, write=beta)).readings((9,))
    close(torch.tensor([seen.write_norm, seen.erase_norm]), torch.stack([sum(written), sum(erased)]) / 9)


@pytest.mark.parametrize("rank", (1, 2, 5))
def test_a_page_written_under_orthogonal_keys_has_as_many_ranks(rank):
    keys, values = (torch.linalg.qr(torch.randn(8, 8)).Q[:rank] for _ in range(2))
    seen = HeadPage(keys, keys, values, Gates()).readings(tuple(range(1, rank + 1)))
    close(torch.tensor(seen.ranks), torch.arange(1, rank + 1).double())
    assert seen.collisions == pytest.approx(0, abs=1e-12)


def test_a_page_that_holds_nothing_has_no_rank():
    assert effective_rank(torch.zeros(3, 4)) == 0


def test_keys_collide_where_they_have_been_before():
    one, other = torch.eye(2)
    assert collisions(torch.stack([one, other])) == 0
    assert collisions(torch.stack([one, -3 * one, 2 * one])) == pytest.approx(1)
    assert collisions(torch.stack([one, other, one + other])) == pytest.approx(0.5**0.5 / 2)
    assert collisions(one[None]) == 0


@pytest.mark.parametrize("length", (1, 2, 15, 16, 17, 100))
def test_the_last_page_is_always_looked_at(length):
    times = ranked_after(length)
    assert times[-1] == length
    assert list(times) == sorted({*times})
    assert times[0] >= 1
    assert len(times) == min(length, 16)


def test_layers_keep_their_numbers_among_others_that_have_no_memory():
    block = Hybrid(PreNorm(FastWeight(heads=2)), PreNorm(SoftmaxAttention(heads=2)), every=2)
    model = LanguageModel(width=8, layers=5, block=block).build(TOKENS)
    assert [layer.layer for layer in inspected(model, text()).layers] == [1, 3, 5]


@pytest.mark.parametrize("mixer", (SoftmaxAttention(heads=2), SelfReferential(heads=2)), ids=repr)
def test_a_model_without_such_a_memory_is_refused(mixer):
    with pytest.raises(UserError, match="no layer of this model has a fast weight memory"):
        inspected(model_of(mixer), text())


def test_looking_changes_nothing():
    model, ids = model_of(FastWeight(update_rule=Delta(), heads=2), layers=2), text()
    before = model.predict(ids[None])[0]
    one, other = inspected(model, ids), inspected(model, ids)
    assert one.to_json() == other.to_json()
    assert torch.equal(model.predict(ids[None])[0], before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_keys_shared_by_heads_are_seen_in_each_of_them():
    mixer = replace(SENTENCES[0], heads=4, key_heads=2)
    heads = inspected(model_of(mixer), text()).layers[0].heads
    assert heads[0].collisions == heads[1].collisions != heads[2].collisions


def test_a_picture_is_told_in_per_cents_of_each_rows_strongest():
    (head, *_) = inspected(model_of(FastWeight(heads=2)), text()).layers[0].heads
    rows = head.to_json()["attention"]
    assert [len(row) for row in rows] == list(range(1, LENGTH + 1))
    assert all(max(map(abs, row)) == 100 for row in rows)
    strongest = head.attention.abs().argmax(-1)
    assert all(abs(row[place]) == 100 for row, place in zip(rows, strongest, strict=True))
