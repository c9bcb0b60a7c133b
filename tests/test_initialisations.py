"""The numbers the originals start from, by their statistics: every parameter, each kind as its original draws it."""

import re
from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, Uniform

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.attention.positions import LearnedRelative, SinusoidalRelative
from palimpsest.legacy.adaptive_span import AdaptivePastAttention, PastAttention
from palimpsest.legacy.initialisations import PyTorchStart, TransformerXLStart, TransformerXLUniformStart
from palimpsest.legacy.transformer_xl import AbsoluteAttention, CodesAtEveryLayer, CountdownLearned, PreNormUnclosed
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PostNorm
from palimpsest.models.embeddings import AdaptiveEmbedding, TokenEmbedding
from palimpsest.models.feed_forward import Relu
from palimpsest.models.heads import AdaptiveSoftmax, SoftmaxHead
from palimpsest.models.language_model import LanguageModel, LanguageNetwork
from palimpsest.models.norms import LayerNorm

TOKENS, WIDTH, INNER, HEADS = 600, 64, 96, 4
CUTOFFS = (100, 250)
HEAD_WIDTH = WIDTH // HEADS


def built(spec: LanguageModel, seed: int = 0) -> LanguageNetwork:
    return spec.build(TOKENS, torch.Generator().manual_seed(seed))


def check_drawn(numbers: Tensor, expected: Distribution | float, name: str) -> None:
    """All equal to the number; or with the mean, spread and shape of the distribution, as far as so many can tell."""
    if isinstance(expected, float):
        assert (numbers == expected).all(), name
        return
    numbers, count = numbers.detach().double().flatten(), numbers.numel()
    assert abs(numbers.mean() - expected.mean) < 4.5 * expected.stddev / sqrt(count), name
    assert abs(numbers.std() / expected.stddev - 1) < 4.5 / sqrt(2 * count), name
    if isinstance(expected, Uniform):
        assert numbers.abs().max() <= expected.high * (1 + 1e-6), name
        assert min(numbers.max(), -numbers.min()) > expected.high * (1 - 20 / count), name
    below = torch.arange(1, count + 1) / count
    apart = (expected.cdf(numbers.sort().values) - below).abs().max()  # Kolmogorov and Smirnov's distance
    assert apart < 2.2 / sqrt(count), name


def check_every_parameter(model: LanguageNetwork, expected: dict[str, Distribution | float]) -> None:
    """The expectations are read in order, the first pattern that ends a parameter's name counts; each is needed."""
    used = set()
    for name, parameter in model.named_parameters():
        pattern = next((pattern for pattern in expected if re.search(f"{pattern}$", name)), None)
        assert pattern is not None, f"nothing is expected of {name}"
        used.add(pattern)
        check_drawn(parameter, expected[pattern], name)
    assert used == expected.keys()


def normal(std: float, mean: float = 0.0) -> Distribution:
    return Normal(torch.tensor(mean).double(), torch.tensor(std).double())


def uniform(reach: float) -> Distribution:
    return Uniform(torch.tensor(-reach).double(), torch.tensor(reach).double(), validate_args=False)


# --------------------------------------------------------------------------- Transformer-XL and lmtool-fwms

PARTS = {"feed_forward": Relu(INNER), "norm": LayerNorm()}
RELATIVE = PostNorm(SoftmaxAttention(SinusoidalRelative(), heads=HEADS), **PARTS)
LEARNED = PreNormUnclosed(SoftmaxAttention(LearnedRelative(64), heads=HEADS), **PARTS)
ABSOLUTE = CodesAtEveryLayer(PostNorm(AbsoluteAttention(memory_codes=CountdownLearned(64), heads=HEADS), **PARTS))
# every combination of tables and projections, own and shared
ENDS = {
    "one table": (AdaptiveEmbedding(), AdaptiveSoftmax()),
    "a tied table": (AdaptiveEmbedding(), AdaptiveSoftmax(tied=True)),
    "a tied table in clusters": (AdaptiveEmbedding(CUTOFFS), AdaptiveSoftmax(CUTOFFS, tied=True)),
    "a projected table": (AdaptiveEmbedding(CUTOFFS, 1, 32), AdaptiveSoftmax(CUTOFFS, 1, 32, True, (1, 2))),
    "tables": (AdaptiveEmbedding(CUTOFFS, 2), AdaptiveSoftmax(CUTOFFS, 2)),
    "tied tables": (AdaptiveEmbedding(CUTOFFS, 2), AdaptiveSoftmax(CUTOFFS, 2, None, True, (1, 2))),
}
BLOCKS = {"relative": RELATIVE, "learned relative": LEARNED, "learned absolute": ABSOLUTE}
BASE = LanguageModel(width=WIDTH, layers=2, block=RELATIVE)


def transformer_xl(start: TransformerXLStart, block: str, ends: str) -> LanguageModel:
    embedding, head = ENDS[ends]
    return replace(BASE, block=BLOCKS[block], embedding=embedding, head=head, initialisation=start)


def expected_of_transformer_xl(block: str, ends: str, weights: Distribution, norms: float, projections: float) -> dict:
    """What train.py does after the model is made, by our names."""
    expected: dict[str, Distribution | float] = {
        r"norm\.weight": normal(norms, mean=1.0),
        r"mixer\.(project|out)\.weight": weights,
        r"feed_forward\.(up|down)\.weight": weights,
        r"tables\.\d\.weight": weights,
    }
    if "projected" in ends or ends.endswith("tables"):
        expected[r"(embedding|head)\.projections\.\d\.weight"] = normal(projections)
    if ends not in ("one table", "a tied table"):
        expected[r"head\.clusters\.weight"] = weights
    expected |= {
        "relative": {r"positions\.project\.weight": weights, r"positions\.biases\.(content|place)": weights},
        "learned relative": {r"positions\.(table|content)": weights, r"positions\.bias": 0.0},
        "learned absolute": {r"mixer\.codes\.table\.weight": weights},
    }[block]
    return expected | {r"\.bias": 0.0}


each_block = [(block, "one table") for block in BLOCKS]
each_end = [("relative", ends) for ends in ENDS if ends != "one table"]


@pytest.mark.parametrize("block, ends", each_block + each_end)
def test_transformer_xl_starts_normal_but_for_biases_and_norms(block, ends):
    model = built(transformer_xl(TransformerXLStart(std=0.03, projection_std=0.007), block, ends))
    check_every_parameter(model, expected_of_transformer_xl(block, ends, normal(0.03), 0.03, 0.007))


@pytest.mark.parametrize("block, ends", each_block + each_end)
def test_transformer_xl_may_start_uniform_but_for_norms_and_projections(block, ends):
    model = built(transformer_xl(TransformerXLUniformStart(std=0.03, projection_std=0.007, reach=0.2), block, ends))
    check_every_parameter(model, expected_of_transformer_xl(block, ends, uniform(0.2), 0.03, 0.007))


def test_the_defaults_are_those_of_the_original():
    assert TransformerXLUniformStart() == TransformerXLUniformStart(std=0.02, projection_std=0.01, reach=0.1)
    assert TransformerXLStart() == TransformerXLStart(std=0.02, projection_std=0.01)


# ------------------------------------------------------------------------------------------ adaptive-span

LIMIT, COUNT = 128, 48
FIXED = PostNorm(PastAttention(LIMIT, heads=HEADS), **PARTS)
ALL_ATTENTION = PostNorm(
    AdaptivePastAttention(LIMIT, PersistentVectors(COUNT), HEADS, initial=0.125), feed_forward=None, norm=LayerNorm()
)
PLAIN = (TokenEmbedding(), SoftmaxHead(bias=True))
UNTIED = (AdaptiveEmbedding(CUTOFFS, 4), AdaptiveSoftmax(CUTOFFS, 4))
TIED = (AdaptiveEmbedding(CUTOFFS, 4), AdaptiveSoftmax(CUTOFFS, 4, None, True, (0, 1, 2)))


def adaptive_span(block: PostNorm, ends: tuple) -> LanguageModel:
    return replace(BASE, block=block, embedding=ends[0], head=ends[1], initialisation=PyTorchStart())


def by_inputs(count: int) -> Distribution:
    return uniform(count**-0.5)


PROJECTIONS = {
    r"mixer\.(queries|keys|values|out)\.weight": by_inputs(WIDTH),
    r"mixer\.vectors\.table": normal(1.0),
    r"norm\.weight": 1.0,
    r"norm\.bias": 0.0,
}
FEED_FORWARD = {
    r"feed_forward\.up\.(weight|bias)": by_inputs(WIDTH),
    r"feed_forward\.down\.(weight|bias)": by_inputs(INNER),
}
PERSISTENT = {
    r"persistent\.keys": normal(HEAD_WIDTH**-0.5),
    r"persistent\.values": normal(COUNT**-0.5),
    r"mixer\.ratio": 0.125,
}
CLUSTERS = {rf"projections\.{i}\.weight": by_inputs(WIDTH // 4**i) for i in range(3)}
CLUSTERS |= {rf"head\.tables\.{i}\.bias": by_inputs(WIDTH // 4**i) for i in range(3)}
CLUSTERS |= {r"embedding\.tables\.\d\.weight": normal(1.0), r"head\.clusters\.(weight|bias)": by_inputs(WIDTH)}


def test_adaptive_span_starts_as_pytorch_makes_its_modules():
    expected = PROJECTIONS | FEED_FORWARD
    expected |= {r"embedding\.table\.weight": normal(1.0), r"head\.project\.(weight|bias)": by_inputs(WIDTH)}
    check_every_parameter(built(adaptive_span(FIXED, PLAIN)), expected)


def test_persistent_vectors_and_spans_start_as_adaptive_span_has_them():
    expected = PROJECTIONS | PERSISTENT | CLUSTERS
    expected |= {rf"head\.tables\.{i}\.weight": by_inputs(WIDTH // 4**i) for i in range(3)}
    check_every_parameter(built(adaptive_span(ALL_ATTENTION, UNTIED)), expected)


def test_a_tied_table_starts_as_the_embedding_and_not_as_a_matrix():
    check_every_parameter(built(adaptive_span(ALL_ATTENTION, TIED)), PROJECTIONS | PERSISTENT | CLUSTERS)


def made_by_pytorch(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        return nn.Linear(module.in_features, module.out_features, module.bias is not None)
    if isinstance(module, nn.Embedding):
        return nn.Embedding(module.num_embeddings, module.embedding_dim)
    return nn.LayerNorm(WIDTH)


def farthest_apart(one: Tensor, other: Tensor) -> float:
    """Between the shares of each that lie below a number, for whichever number."""
    places = torch.cat([one, other]).sort().values
    below = [torch.searchsorted(each.sort().values, places, right=True) / len(each) for each in (one, other)]
    return (below[0] - below[1]).abs().max().item()


@pytest.mark.parametrize("block, ends", [(FIXED, PLAIN), (ALL_ATTENTION, UNTIED)])
def test_each_module_looks_like_a_new_one_of_pytorch(block, ends):
    modules = [
        m for m in built(adaptive_span(block, ends)).modules() if isinstance(m, nn.Linear | nn.Embedding | nn.LayerNorm)
    ]
    assert len(modules) > 6
    for module in modules:
        for (name, ours), theirs in zip(module.named_parameters(), made_by_pytorch(module).parameters(), strict=True):
            apart = farthest_apart(ours.detach().flatten(), theirs.detach().flatten())
            assert apart <= 2.2 * sqrt(2 / ours.numel()), f"{name} of {module}"


# ------------------------------------------------------------------------------------------- chance

MODELS = [
    transformer_xl(TransformerXLStart(), "relative", "tied tables"),
    transformer_xl(TransformerXLUniformStart(), "learned relative", "a projected table"),
    adaptive_span(FIXED, PLAIN),
    adaptive_span(ALL_ATTENTION, TIED),
]
every_model = pytest.mark.parametrize("spec", MODELS, ids=lambda spec: type(spec.initialisation).__name__)


def numbers(model: LanguageNetwork) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@every_model
def test_the_same_generator_gives_the_same_numbers(spec):
    first = numbers(built(spec, seed=1))
    torch.manual_seed(123)
    assert torch.equal(numbers(built(spec, seed=1)), first)
    assert not torch.equal(numbers(built(spec, seed=2)), first)


@every_model
def test_global_chance_is_left_alone(spec):
    before = torch.get_rng_state()
    built(spec)
    assert torch.equal(torch.get_rng_state(), before)


@every_model
def test_no_parameter_keeps_the_number_it_was_made_with(spec):
    model = spec.build(TOKENS)
    for parameter in model.parameters():
        nn.init.constant_(parameter, torch.nan)
    spec.initialisation.apply(model, torch.Generator().manual_seed(0))
    assert not [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
