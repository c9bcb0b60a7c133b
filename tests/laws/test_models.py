"""The laws of language models, whatever they are made of: nats are exact, cuts invisible, chance an argument."""

from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from closeness import all_close, close, states_close
from pairs import fewest_with_every_pair
from torch import Tensor

from palimpsest.attention.positions import AddedPositions, NoPositions
from palimpsest.batch import Batch
from palimpsest.kernels import cross_entropy
from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import Favor
from palimpsest.memory.read_outs import GatedNorm
from palimpsest.memory.update_rules import UpdateRule
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import Block, Hybrid, MixerBlock, PreNorm
from palimpsest.models.embeddings import Embedding, TokenEmbedding
from palimpsest.models.feed_forward import FeedForward
from palimpsest.models.heads import Head, SoftmaxHead
from palimpsest.models.initialisations import Initialisation, Scaled, SilentStart
from palimpsest.models.language_model import LanguageModel, LanguageNetwork
from palimpsest.models.norms import Norm
from palimpsest.spec import Spec
from palimpsest.state import leaves

TOKENS, WIDTH, LENGTH = 11, 8, 6
SMALL = LanguageModel(width=WIDTH, layers=2, initialisation=Scaled())

FEED_FORWARDS = [None, *(variant(inner=12) for variant in FeedForward.variants())]
SIMPLE_BLOCKS = MixerBlock.variants()
OTHER_BLOCKS = [variant() for variant in Block.variants() if variant is not Hybrid and variant not in SIMPLE_BLOCKS]
BLOCKS = [
    block(mixer=mixer, feed_forward=feed_forward, norm=norm())
    for block, mixer, feed_forward, norm in fewest_with_every_pair(
        product(SIMPLE_BLOCKS, (FastWeight(heads=2), SoftmaxAttention(heads=2)), FEED_FORWARDS, Norm.variants())
    )
]
MEMORY, ATTENTION = FastWeight(heads=2, convolution=ShortConvolution(3)), SoftmaxAttention(heads=2)
HYBRIDS = [
    Hybrid(usual=one(mixer=MEMORY), other=two(mixer=ATTENTION), every=every)
    for one, two, every in product(SIMPLE_BLOCKS, SIMPLE_BLOCKS, (1, 2, 3))
]
EMBEDDINGS = [variant() for variant in Embedding.variants()]
EMBEDDINGS += [
    TokenEmbedding(positions=variant()) for variant in AddedPositions.variants() if variant is not NoPositions
]
HEADS = [*(variant() for variant in Head.variants()), SoftmaxHead(tied=True)]
INITIALISATIONS = [variant() for variant in Initialisation.variants()]
MODELS = [replace(SMALL, block=block) for block in BLOCKS + HYBRIDS + OTHER_BLOCKS]
MODELS += [
    replace(SMALL, embedding=embedding, head=head, initialisation=initialisation)
    for embedding, head, initialisation in fewest_with_every_pair(product(EMBEDDINGS, HEADS, INITIALISATIONS))
]


def brief(part) -> str:
    """A part by its name and what is not as usual in it."""
    if not isinstance(part, Spec):
        return str(part)
    unusual = [brief(value) for field in fields(part) if (value := getattr(part, field.name)) != field.default]
    return type(part).__name__ + (f"({', '.join(unusual)})" if unusual else "")


every_model = pytest.mark.parametrize("spec", MODELS, ids=brief)
every_invariant_model = pytest.mark.parametrize("spec", [spec for spec in MODELS if spec.segment_invariant], ids=brief)
every_head = pytest.mark.parametrize("head", HEADS, ids=brief)
every_initialisation = pytest.mark.parametrize("initialisation", INITIALISATIONS, ids=brief)


def built(spec: LanguageModel, seed: int = 0) -> LanguageNetwork:
    return spec.build(TOKENS, torch.Generator().manual_seed(seed))


def drawn(batch: int = 2, length: int = LENGTH) -> Batch:
    text = torch.randint(TOKENS, (batch, length + 1))
    return Batch(text[:, :-1], text[:, 1:])


def tokens(batch: Batch, part: slice) -> Batch:
    return Batch(batch.inputs[:, part], batch.targets[:, part])


def gradients(model: LanguageNetwork, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: learned.grad.clone() for name, learned in model.named_parameters()}


@pytest.mark.parametrize("spec", [spec for spec in MODELS if isinstance(spec.head, SoftmaxHead)], ids=brief)
def test_nats_are_minus_the_logarithm_of_the_softmax_at_the_target(spec):
    model, batch = built(spec), drawn()
    nats, _ = model(batch)
    hidden, _ = model.read(batch.inputs, None)
    logits = hidden @ model.head.project.weight.T
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    close(nats, -probabilities.gather(-1, batch.targets[..., None]).squeeze(-1).log())


@every_invariant_model
def test_what_is_predicted_is_what_is_scored(spec):
    model, batch = built(spec), drawn()
    nats, _ = model(batch)
    for length in range(1, LENGTH + 1):
        predictions, state = model.predict(batch.inputs[:, :length])
        close(predictions.exp().sum(-1), torch.ones(2))
        close(-predictions.gather(-1, batch.targets[:, length - 1 : length]), nats[:, length - 1 : length])
        states_close(state, model(tokens(batch, slice(length)))[1])


@every_invariant_model
def test_predicting_token_by_token_is_scoring_one_segment(spec):
    model, batch = built(spec), drawn()
    expected, expected_state = model(batch)
    nats, state = [], None
    for token, target in zip(batch.inputs.split(1, dim=1), batch.targets.split(1, dim=1), strict=True):
        predictions, state = model.predict(token, state)
        nats.append(-predictions.gather(-1, target))
    close(torch.cat(nats, dim=1), expected)
    states_close(state, expected_state)


@every_invariant_model
def test_cutting_a_segment_anywhere_changes_nothing(spec):
    model, batch = built(spec), drawn()
    nats, expected_state = model(batch)
    expected = gradients(model, nats.mean())
    for cut in range(1, LENGTH):
        early, state = model(tokens(batch, slice(cut)))
        late, state = model(tokens(batch, slice(cut, None)), state)
        in_two = torch.cat([early, late], dim=1)
        close(in_two, nats)
        states_close(state, expected_state)
        all_close(gradients(model, in_two.mean()), expected)


@every_model
def test_the_fresh_state_is_no_state(spec):
    model, batch = built(spec), drawn(batch=3)
    fresh = model.initial_state(3)
    given_fresh, given_none = model(batch, fresh), model(batch)
    close(given_fresh[0], given_none[0])
    states_close(given_fresh[1], given_none[1])
    for state in (fresh, given_none[1]):
        assert all(len(leaf) == 3 for leaf in leaves(state))


@every_model
def test_everything_learned_gets_a_gradient(spec):
    model = built(spec)
    found = gradients(model, model(drawn())[0].mean())
    silent = isinstance(
        spec.initialisation, SilentStart
    )  # what a block adds starts at zero, and hides what is before it
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert [name for name, gradient in found.items() if not gradient.any() and not (silent and "blocks" in name)] == []


@every_head
@pytest.mark.parametrize("chunk", (1, TOKENS, 3 * TOKENS, 5 * TOKENS + 1, 12 * TOKENS - 1, 12 * TOKENS))
def test_the_logits_held_at_once_are_invisible(head, chunk):
    whole, in_chunks = (built(replace(SMALL, head=each)) for each in (head, replace(head, chunk=chunk)))
    batch = drawn()
    expected, actual = (model(batch)[0] for model in (whole, in_chunks))
    close(actual, expected)
    weights = torch.rand_like(expected)
    all_close(gradients(in_chunks, (weights * actual).sum()), gradients(whole, (weights * expected).sum()))


@pytest.mark.parametrize("rows", (1, 3, 12))
def test_no_more_logits_are_held_than_a_chunk(rows, monkeypatch):
    model = built(replace(SMALL, head=SoftmaxHead(chunk=rows * TOKENS)))
    made = []
    logits_of = cross_entropy.logits_of
    monkeypatch.setattr(cross_entropy, "logits_of", lambda x, *matrix: made.append(len(x)) or logits_of(x, *matrix))
    with torch.no_grad():
        model(drawn())
    assert max(made) == rows
    assert sum(made) == 12


def test_a_tied_head_shares_the_matrix_of_the_embedding():
    tied, untied = (built(replace(SMALL, head=SoftmaxHead(tied=tied))) for tied in (True, False))
    assert tied.head.project.weight is tied.embedding.table.weight
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == TOKENS * WIDTH


def numbers(model: LanguageNetwork) -> Tensor:
    return torch.cat([z.flatten() for z in model.state_dict().values()])


# every rule, and the parts that have matrices of their own
MIXERS = [FastWeight(Favor(), update_rule=rule(), read_out=GatedNorm(), heads=2) for rule in UpdateRule.variants()]
MIXERS.append(SoftmaxAttention(heads=2))
every_start = pytest.mark.parametrize(
    "spec",
    [
        replace(SMALL, block=block(mixer=mixer), initialisation=initialisation)
        for block, mixer, initialisation in fewest_with_every_pair(product(SIMPLE_BLOCKS, MIXERS, INITIALISATIONS))
    ],
    ids=brief,
)


@every_start
def test_a_model_starts_from_numbers_that_depend_on_the_generator_alone(spec):
    first = numbers(built(spec, seed=1))
    torch.manual_seed(123)
    assert torch.equal(numbers(built(spec, seed=1)), first)
    assert not torch.equal(numbers(built(spec, seed=2)), first)


@every_start
def test_initialisation_fills_everything_and_leaves_the_global_generator_alone(spec):
    model = spec.build(TOKENS)
    for number in (*model.parameters(), *model.buffers()):
        number.data.fill_(torch.nan)
    before = torch.get_rng_state()
    spec.initialisation.apply(model, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)
    assert numbers(model).isfinite().all()


def test_a_silent_start_adds_nothing_to_what_skips_the_parts():
    model = built(replace(SMALL, initialisation=SilentStart()))
    x = torch.randn(2, LENGTH, WIDTH)
    for block in model.blocks:
        assert torch.equal(block(x)[0], x)


def with_dropout(rate: float) -> list[LanguageModel]:
    """A model for each place in which numbers may be dropped."""
    blocks = [variant(dropout=rate) for variant in SIMPLE_BLOCKS]
    blocks += [PreNorm(feed_forward=variant(dropout=rate)) for variant in FeedForward.variants()]
    blocks.append(PreNorm(mixer=SoftmaxAttention(dropout=rate)))
    return [replace(SMALL, embedding=TokenEmbedding(dropout=rate)), *(replace(SMALL, block=block) for block in blocks)]


@pytest.mark.parametrize("dropping, whole", list(zip(with_dropout(0.5), with_dropout(0.0), strict=True)), ids=brief)
def test_numbers_are_dropped_in_training_only(dropping, whole):
    model, batch = built(dropping), drawn()
    assert not torch.equal(model(batch)[0], model(batch)[0])
    model.eval()
    assert torch.equal(model(batch)[0], built(whole)(batch)[0])


def test_a_hybrid_has_the_other_block_every_so_many_layers():
    spec = Hybrid(PreNorm(FastWeight(heads=2)), PreNorm(SoftmaxAttention(heads=2)), every=3)
    model = LanguageModel(width=WIDTH, layers=7, block=spec).build(TOKENS)
    kinds = [type(block.mixer.spec) for block in model.blocks]
    assert kinds == [FastWeight, FastWeight, SoftmaxAttention, FastWeight, FastWeight, SoftmaxAttention, FastWeight]
