"""The laws of translation: what fills rows up is never seen, tokens written one by one are those that were learned,
and a search finds what is there."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from closeness import close
from pairs import fewest_with_every_pair
from torch.nn.functional import cross_entropy

from palimpsest.attention.positions import NoPositions, SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.batch import Batch, Source
from palimpsest.errors import UserError
from palimpsest.evaluation.decoding import BeamSearch, Greedy, Sampled
from palimpsest.evaluation.generation import Sampling
from palimpsest.evaluation.translation import total_nats
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor, FeatureMap, StabilisedFavor
from palimpsest.memory.key_scales import KeyScale, SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain, ReadOut
from palimpsest.memory.update_rules import Delta, GatedDelta, Sum
from palimpsest.mixers import FastWeight, MemorySource, Mixer, SoftmaxAttention, SoftmaxSource, SourceAttention
from palimpsest.models.block import Hybrid, PostNorm, PreNorm
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.translation_model import TranslationModel
from palimpsest.state import rows_of

TOKENS, WIDTH, END = 7, 8, 0


def said(feature_map, key_scale, read_out):
    try:
        return MemorySource(feature_map(), key_scale(), read_out(), heads=2)
    except UserError:
        return None  # a sum of signed features, refused


PRODUCTS = fewest_with_every_pair(product(FeatureMap.variants(), KeyScale.variants(), ReadOut.variants()))
MEMORIES = [memory for memory in (said(*parts) for parts in PRODUCTS) if memory is not None]
ATTENTIONS = [*(variant(heads=2) for variant in SourceAttention.variants()), *MEMORIES]
every_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=repr)


def small(mixer: Mixer, attention: SourceAttention = SoftmaxSource(heads=2), block=PreNorm) -> TranslationModel:  # noqa: B008
    return TranslationModel(
        width=WIDTH,
        encoder_layers=1,
        layers=2,
        encoder=attention,
        cross=attention,
        block=block(mixer, Relu(inner=12)),
        head=SoftmaxHead(),  # a tied one would repeat its first input, the end
    )


def mixers() -> list[Mixer]:
    found = [variant(heads=2) if "heads" in variant.__dataclass_fields__ else variant() for variant in Mixer.variants()]
    return [mixer for mixer in found if mixer.segment_invariant and mixer.remembers]


SUMMED = FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised(), heads=2)
ATTENDING = SoftmaxAttention(NoPositions(), heads=2)
MODELS = [small(mixer) for mixer in mixers()]
MODELS += [small(SUMMED, attention) for attention in ATTENTIONS]
MODELS += [
    small(ATTENDING, MemorySource(DPFP(nu=2), heads=2), PostNorm),
    small(FastWeight(DPFP(), SumToOne(), Delta(), Plain(), heads=2), MemorySource(StabilisedFavor(4), heads=2)),
    replace(small(SUMMED), block=Hybrid(PreNorm(SUMMED), PreNorm(ATTENDING), every=2)),
    small(FastWeight(update_rule=GatedDelta(), heads=2), block=PostNorm),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.block!r} {model.cross!r}"[:120])


def built(model: TranslationModel, tokens: int = TOKENS):
    return model.build(tokens, torch.Generator().manual_seed(1)).eval()


def sources(*lengths: int, tokens: int = TOKENS, seed: int = 0) -> Source:
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, tokens, (len(lengths), max(lengths)), generator=chance)
    return Source(ids, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def filled_up(source: Source, more: int) -> Source:
    rows = len(source.tokens)
    tokens = torch.cat([source.tokens, torch.randint(TOKENS, (rows, more))], dim=1)
    return Source(tokens, torch.cat([source.present, torch.zeros(rows, more, dtype=torch.bool)], dim=1))


def batch_of(source: Source, length: int) -> Batch:
    targets = torch.randint(1, TOKENS, (len(source.tokens), length))
    inputs = targets.roll(1, dims=1)
    inputs[:, 0] = END
    return Batch(inputs, targets, torch.ones_like(targets, dtype=torch.bool), source=source)


# ----------------------------------------------------------------------------------------- sources


@every_attention
def test_what_fills_a_source_up_is_never_seen(attention):
    module, source, x = attention.build(WIDTH).eval(), torch.randn(3, 5, WIDTH), torch.randn(3, 4, WIDTH)
    present = torch.ones(3, 5, dtype=torch.bool)
    longer = torch.cat([source, 100 * torch.randn(3, 3, WIDTH)], dim=1)
    partly = torch.cat([present, torch.zeros(3, 3, dtype=torch.bool)], dim=1)
    close(module.read(x, module.write(longer, partly)), module.read(x, module.write(source, present)))


@every_attention
def test_the_order_of_a_source_does_not_matter_and_all_of_it_is_seen(attention):
    module, source, x = attention.build(WIDTH).eval(), torch.randn(2, 5, WIDTH), torch.randn(2, 3, WIDTH)
    present, order = torch.ones(2, 5, dtype=torch.bool), torch.tensor([3, 0, 4, 2, 1])
    reads = module.read(x, module.write(source, present))
    close(module.read(x, module.write(source[:, order], present)), reads)
    for place in range(5):
        other = source.clone()
        other[:, place] += torch.randn(WIDTH)
        assert not torch.allclose(module.read(x, module.write(other, present)), reads)


@every_attention
def test_the_page_of_a_source_is_a_state_whose_rows_can_be_gathered(attention):
    module, source, x = attention.build(WIDTH).eval(), torch.randn(3, 5, WIDTH), torch.randn(3, 2, WIDTH)
    present, rows = torch.arange(5) < torch.tensor([5, 2, 3])[:, None], torch.tensor([2, 0, 0])
    page = module.write(source, present)
    close(module.read(x[rows], rows_of(page, rows)), module.read(x, page)[rows])


@pytest.mark.parametrize("feature_map", [EluPlusOne(), DPFP(nu=2), Favor(6), StabilisedFavor(6)], ids=repr)
def test_a_memory_of_a_source_is_linear_attention_to_all_of_it(feature_map):
    module = MemorySource(feature_map, heads=2, read_out=Normalised(epsilon=1e-12)).build(WIDTH)
    source, x = torch.randn(1, 5, WIDTH), torch.randn(1, 3, WIDTH)
    keys, values = module.project(source)[0].chunk(2, dim=-1)
    plain = Favor(6, epsilon=0.0).build(4) if isinstance(feature_map, Favor) else module.feature_map
    if isinstance(feature_map, Favor):  # what is stabilised is the same number, written in other units
        module.feature_map.spec = replace(feature_map, epsilon=0.0)
        plain.matrix = module.feature_map.matrix
    reads = []
    for head in (slice(0, 4), slice(4, 8)):
        weights = plain(module.ask(x)[0, :, head]) @ plain(keys[:, head]).T
        reads.append(weights / (weights.sum(-1, keepdim=True) + 1e-12) @ values[:, head])
    page = module.write(source, torch.ones(1, 5, dtype=torch.bool))
    close(module.read(x, page), module.out(torch.cat(reads, dim=-1))[None])


def test_softmax_over_a_source_is_the_transformers_attention():
    module = SoftmaxSource(heads=2).build(WIDTH)
    source, x = torch.randn(1, 5, WIDTH), torch.randn(1, 3, WIDTH)
    keys, values = module.project(source)[0].chunk(2, dim=-1)
    heads = (slice(0, 4), slice(4, 8))
    weights = [(module.ask(x)[0, :, head] @ keys[:, head].T / 2).softmax(-1) for head in heads]
    reads = torch.cat([weight @ values[:, head] for weight, head in zip(weights, heads, strict=True)], dim=-1)
    close(module.read(x, module.write(source, torch.ones(1, 5, dtype=torch.bool))), module.out(reads)[None])


def test_keys_too_large_for_numbers_are_weighed_against_each_other():
    module = MemorySource(StabilisedFavor(6), heads=2).build(WIDTH)
    source = (50 * torch.randn(2, 5, WIDTH)).requires_grad_()
    present = torch.arange(5) < torch.tensor([5, 3])[:, None]
    read = module(source, present)
    read.sum().backward()
    assert read.isfinite().all()
    assert source.grad.isfinite().all()


# ------------------------------------------------------------------------------------------ models


@every_model
def test_adding_padding_changes_nothing(model):
    network, source = built(model), sources(5, 3, 4)
    batch = batch_of(source, 6)
    nats = network(batch)[0]
    close(network(batch._replace(source=filled_up(source, 4)))[0], nats)
    longer = batch_of(source, 9)
    longer = longer._replace(inputs=torch.cat([batch.inputs, longer.inputs[:, 6:]], dim=1))
    longer = longer._replace(targets=torch.cat([batch.targets, longer.targets[:, 6:]], dim=1))
    close(network(longer)[0][:, :6], nats)


@every_model
def test_tokens_written_one_by_one_have_the_scores_they_were_taught_with(model):
    network, batch = built(model), batch_of(sources(5, 3), 6)
    nats = network(batch)[0]
    state = network.begin(batch.source)
    for place in range(6):
        log_probabilities, state = network.predict(batch.inputs[:, place : place + 1], state)
        close(-log_probabilities.gather(1, batch.targets[:, place : place + 1])[:, 0], nats[:, place])


@every_model
def test_rows_of_a_translation_do_not_mix(model):
    network, batch = built(model), batch_of(sources(5, 3, 4), 6)
    nats = network(batch)[0]
    for row in range(3):
        close(network(batch.rows(slice(row, row + 1)))[0], nats[row : row + 1])


@every_model
def test_all_of_the_source_is_translated(model):
    network, batch = built(model), batch_of(sources(4), 3)
    nats = network(batch)[0]
    for place in range(4):
        other = batch.source.tokens.clone()
        other[0, place] = other[0, place] % (TOKENS - 1) + 1
        assert not torch.allclose(network(batch._replace(source=batch.source._replace(tokens=other)))[0], nats)


def test_source_and_target_share_their_embedding_with_the_head():
    network = built(replace(small(SUMMED), head=TranslationModel().head))
    assert network.head.project.weight is network.embedding.table.weight


def test_every_parameter_learns():
    network = small(FastWeight(heads=2), MemorySource(heads=2)).build(TOKENS, torch.Generator().manual_seed(1))
    network(batch_of(sources(5, 3), 6))[0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


def test_every_matrix_between_embedding_and_head_is_treated_as_such():
    network = small(FastWeight(heads=2), MemorySource(heads=2)).build(TOKENS)
    matrices = {id(matrix) for matrix in network.hidden_matrices()}
    around = {id(parameter) for part in (network.embedding, network.head) for parameter in part.parameters()}
    expected = {id(parameter) for parameter in network.parameters() if parameter.ndim == 2} - around
    assert matrices == expected


def test_a_mixer_that_minds_how_a_text_is_cut_is_refused():
    with pytest.raises(UserError, match="token by token"):
        small(SoftmaxAttention(SinusoidalRelative(), SegmentCache(4), heads=2))


def test_smoothed_targets_have_the_gradient_of_smoothed_cross_entropy_and_nats_do_not_show_it():
    model, batch = small(SUMMED), batch_of(sources(5, 3), 6)
    network = replace(model, head=SoftmaxHead(smoothing=0.2)).build(TOKENS, torch.Generator().manual_seed(1))
    close(network.train()(batch)[0], network.eval()(batch)[0])
    network.train()
    smoothed = torch.autograd.grad(network(batch)[0].sum(), list(network.parameters()))
    hidden, _ = network.read(batch.inputs, network.begin(batch.source))
    logits = network.head.logits(hidden).flatten(0, 1)
    loss = cross_entropy(logits, batch.targets.flatten(), reduction="sum", label_smoothing=0.2)
    for one, other in zip(smoothed, torch.autograd.grad(loss, list(network.parameters())), strict=True):
        close(one, other)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_targets_are_smoothed_by_a_share(share):
    with pytest.raises(UserError, match="share"):
        SoftmaxHead(smoothing=share)


def test_what_is_dropped_in_training_is_there_otherwise():
    attention = SoftmaxSource(heads=2, dropout=0.5)
    model = replace(small(SUMMED, attention), block=PreNorm(SUMMED, Relu(inner=12), dropout=0.5))
    for dropping in (small(SUMMED, attention), replace(model, encoder=SoftmaxSource(2), cross=SoftmaxSource(2))):
        network, batch = built(dropping), batch_of(sources(5, 3), 6)
        kept = network(batch)[0]
        close(network(batch)[0], kept)
        assert not torch.allclose(network.train()(batch)[0], kept)


# ---------------------------------------------------------------------------------------- decoding


SEARCHED = [
    small(ATTENDING),
    small(SUMMED, MemorySource(heads=2)),
    small(FastWeight(DPFP(), SumToOne(), Delta(), Plain(), heads=2), MemorySource(DPFP(), heads=2)),
]
every_searched = pytest.mark.parametrize("model", SEARCHED, ids=lambda model: type(model.block.mixer).__name__)


def log_probability(network, source: Source, row: int, tokens: list[int]) -> float:
    """Taught, in one piece."""
    source = rows_of(source, slice(row, row + 1))
    targets = torch.tensor([[*tokens, END]])
    return -network(Batch(torch.tensor([[END, *tokens]]), targets, source=source))[0].sum().item()


@every_searched
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_of_one_is_greedy(model, seed):
    network, source = built(model), sources(5, 2, 4, seed=seed)
    greedy = Greedy(growth=0.0, extra=6).translate(network, source, END)
    beam = BeamSearch(beam=1, growth=0.0, extra=6).translate(network, source, END)
    for (one,), (other,) in zip(greedy, beam, strict=True):
        assert one.tokens == other.tokens
        assert math.isclose(one.log_probability, other.log_probability, rel_tol=1e-9)


@every_searched
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_beam_that_holds_every_beginning_finds_what_an_exhaustive_search_finds(model, penalty):
    tokens, longest = 4, 3
    network, source = built(model, tokens), sources(3, 2, tokens=tokens)
    search = BeamSearch(beam=tokens**longest, length_penalty=penalty, growth=0.0, extra=longest)
    every = [line for length in range(longest + 1) for line in product(range(1, tokens), repeat=length)]
    for row, found in enumerate(search.translate(network, source, END)):
        totals = {line: log_probability(network, source, row, [*line]) for line in every}
        scores = {line: total / (len(line) + 1) ** penalty for line, total in totals.items()}
        assert {tuple(one.tokens) for one in found} == {*every}
        assert tuple(found[0].tokens) == max(scores, key=scores.__getitem__)
        for one in found:
            assert math.isclose(one.log_probability, totals[tuple(one.tokens)], rel_tol=1e-9)
            assert math.isclose(one.score, scores[tuple(one.tokens)], rel_tol=1e-9)


@every_searched
def test_hypotheses_come_best_first_with_the_scores_they_would_be_taught_with(model):
    network, source = built(model), sources(5, 2, 4)
    for row, found in enumerate(BeamSearch(beam=3, growth=1.0, extra=2).translate(network, source, END)):
        assert len(found) >= 3
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({tuple(one.tokens) for one in found}) == len(found)
        for one in found:
            taught = log_probability(network, source, row, one.tokens)
            assert math.isclose(one.log_probability, taught, rel_tol=1e-9)


@every_searched
@pytest.mark.parametrize("decoding", [Greedy(), BeamSearch(beam=3), BeamSearch(beam=4, length_penalty=0.0)], ids=repr)
def test_a_sentence_is_translated_alone_as_among_others(model, decoding):
    network, source = built(model), sources(5, 1, 4, 2)
    together = decoding.translate(network, filled_up(source, 2), END)
    for row, (found, length) in enumerate(zip(together, (5, 1, 4, 2), strict=True)):
        alone = Source(*(side[row : row + 1, :length] for side in source))
        (expected,) = decoding.translate(network, alone, END)
        assert [one.tokens for one in found] == [one.tokens for one in expected]


def test_a_wider_beam_with_room_for_more_never_scores_worse_than_greedy_on_average():
    network, source = built(SEARCHED[0]), sources(*[4] * 30)
    sums = [
        sum(found[0].log_probability for found in decoding.translate(network, source, END))
        for decoding in (Greedy(extra=4), BeamSearch(beam=6, length_penalty=0.0, extra=4))
    ]
    assert sums[0] < sums[1]


def test_a_translation_is_never_longer_than_its_limit():
    network, source = built(SEARCHED[0]), sources(5, 2)
    for decoding in (Greedy(1.0, 1), BeamSearch(3, growth=1.0, extra=1), Sampled(growth=1.0, extra=1)):
        for found, limit in zip(decoding.translate(network, source, END), (6, 3), strict=True):
            assert found
            assert all(len(one.tokens) <= limit for one in found)


def test_sampling_without_temperature_is_greedy_and_with_it_follows_the_distribution():
    network, source = built(SEARCHED[0]), sources(*[3] * 2000)
    source = Source(source.tokens[:1].expand(2000, -1), source.present)
    greedy = Greedy(extra=2).translate(network, rows_of(source, slice(1)), END)
    cold = Sampled(Sampling(temperature=0.0), extra=2).translate(network, rows_of(source, slice(1)), END)
    assert [one.tokens for one in cold[0]] == [one.tokens for one in greedy[0]]
    drawn = Sampled(extra=2).translate(network, source, END, torch.Generator().manual_seed(1))
    first = torch.tensor([found[0].tokens[0] if found[0].tokens else END for found in drawn])
    expected = network.predict(torch.tensor([[END]]), network.begin(rows_of(source, slice(1))))[0].exp()[0]
    close(first.bincount(minlength=TOKENS) / 2000, expected, 0.1)


@pytest.mark.parametrize("decoding, length", [(Greedy, {"extra": -1}), (BeamSearch, {"growth": -1.0})])
def test_a_length_below_nothing_is_refused(decoding, length):
    with pytest.raises(UserError, match="0 or more"):
        decoding(**length)


def test_the_nats_of_a_split_do_not_depend_on_how_it_is_batched():
    network, batch = built(SEARCHED[1]), batch_of(sources(5, 3, 4, 2), 6)
    batch = batch._replace(mask=torch.arange(6) < torch.tensor([6, 2, 4, 1])[:, None])
    whole = total_nats(network, [batch])
    pieces = total_nats(network, [batch.rows(slice(0, 3)), batch.rows(slice(3, 4))])
    assert whole[1] == pieces[1] == 13
    assert math.isclose(whole[0], pieces[0], rel_tol=1e-12)
