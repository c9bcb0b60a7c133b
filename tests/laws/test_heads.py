"""The laws of heads and of the embeddings they share: probabilities are whole, and how they are made is invisible."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from closeness import all_close, close
from torch import Tensor, nn

from palimpsest.attention.positions import Sinusoidal
from palimpsest.errors import UserError
from palimpsest.kernels import cross_entropy
from palimpsest.legacy.transformer_xl import SparingAdaptiveEmbedding, SparingAdaptiveSoftmax
from palimpsest.models.embeddings import AdaptiveEmbedding, Embedding, EmbeddingModule, TokenEmbedding
from palimpsest.models.heads import AdaptiveSoftmax, Head, HeadModule, SoftmaxHead
from palimpsest.models.initialisations import Initialisation
from palimpsest.models.language_model import LanguageModel
from palimpsest.serialise import from_json, to_json

TOKENS, WIDTH, ROWS, LENGTH = 14, 8, 3, 14
WIDEST = TOKENS  # logits of one softmax


def adaptive(cutoffs: tuple[int, ...], divisor: int, inner: int | None, tied: bool, untied: int) -> AdaptiveSoftmax:
    """All projections tied but the first so many."""
    projections = tuple(range(untied, len(cutoffs) + 1))
    return AdaptiveSoftmax(cutoffs, divisor, inner, tied, projections)


CUTOFFS = [(), (5,), (4, 9), (2, 3, 11, TOKENS, 40)]
PROJECTED = [(1, 9), (2, None), (2, 9)]  # divisor and inner
TIES = [(False, 9), (False, 1), (True, 9), (True, 1), (True, 0)]
ADAPTIVE = [adaptive(cutoffs, 1, None, tied, untied=1) for cutoffs, tied in product(CUTOFFS, (False, True))]
ADAPTIVE += [adaptive(cutoffs, *shape, *ties) for cutoffs, shape, ties in product(CUTOFFS, PROJECTED, TIES)]
HEADS = [SoftmaxHead(tied, bias) for tied, bias in product((False, True), repeat=2)] + ADAPTIVE
every_head = pytest.mark.parametrize("head", HEADS, ids=repr)
every_adaptive = pytest.mark.parametrize("head", ADAPTIVE, ids=repr)
some_heads = pytest.mark.parametrize("head", [SoftmaxHead(bias=True), *ADAPTIVE[1::7]], ids=repr)


class Pair(nn.Module):
    """An embedding and the head above it."""

    def __init__(self, embedding: EmbeddingModule, head: HeadModule):
        super().__init__()
        self.embedding, self.head = embedding, head

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        return self.head(self.embedding(tokens, places), targets)


def below(head: Head) -> Embedding:
    if isinstance(head, AdaptiveSoftmax):
        return AdaptiveEmbedding(head.cutoffs, head.divisor, head.inner)
    return TokenEmbedding()


def pair(head: Head, embedding: Embedding | None = None, seed: int = 0) -> Pair:
    under = (embedding or below(head)).build(TOKENS, WIDTH)
    made = Pair(under, head.build(TOKENS, WIDTH, under))
    torch.manual_seed(seed)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def texts() -> tuple[Tensor, Tensor]:
    """Every token is read, and is a target, in each row."""
    return tuple(torch.stack([torch.randperm(TOKENS) for _ in range(ROWS)]) for _ in range(2))


def hidden_states() -> Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH)


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: learned.grad.clone() for name, learned in module.named_parameters()}


@every_head
def test_the_probabilities_of_all_tokens_sum_to_one(head):
    probabilities = pair(head).head.log_probabilities(torch.randn(5, WIDTH)).exp()
    assert probabilities.shape == (5, TOKENS)
    close(probabilities.sum(-1), torch.ones(5))


@every_head
def test_nats_are_minus_the_logarithm_of_the_probability_of_the_target(head):
    module, hidden, (_, targets) = pair(head).head, hidden_states(), texts()
    predicted = module.log_probabilities(hidden.flatten(0, 1)).gather(-1, targets.flatten()[:, None])
    close(module(hidden, targets), -predicted.view_as(targets))


@every_head
def test_no_target_is_scored_by_its_place(head):
    module, hidden, (_, targets) = pair(head).head, hidden_states(), texts()
    mixed = torch.randperm(ROWS * LENGTH)
    moved = module(hidden.flatten(0, 1)[mixed].view_as(hidden), targets.flatten()[mixed].view_as(targets))
    close(moved.flatten(), module(hidden, targets).flatten()[mixed])


@every_head
def test_how_many_logits_are_held_at_once_is_invisible(head):
    batch = texts()
    weights = torch.rand(ROWS, LENGTH)
    whole = pair(head)
    nats = whole(*batch)
    expected = gradients(whole, (weights * nats).sum())
    for chunk in (1, 3 * WIDEST, 5 * WIDEST + 1):
        in_pieces = pair(replace(head, chunk=chunk))
        actual = in_pieces(*batch)
        close(actual, nats)
        all_close(gradients(in_pieces, (weights * actual).sum()), expected)


@every_adaptive
def test_no_more_logits_are_held_than_a_chunk(head, monkeypatch):
    chunk = 2 * WIDEST + 3
    module = pair(replace(head, chunk=chunk)).head
    made, logits_of = [], cross_entropy.logits_of

    def counted(hidden, weight, bias):
        made.append((weight, logits_of(hidden, weight, bias)))
        return made[-1][1]

    monkeypatch.setattr(cross_entropy, "logits_of", counted)
    matrices = module.matrices()
    monkeypatch.setattr(module, "matrices", lambda: matrices)
    module(hidden_states(), texts()[1])
    assert max(each.numel() for _, each in made) <= chunk
    rows = [sum(len(each) for weight, each in made if weight is wanted) for wanted, _ in matrices]
    assert rows == [ROWS * LENGTH, *(ROWS * size for size in module.vocabulary.sizes[1:])]  # none in another's tail


@pytest.mark.parametrize("head", [SoftmaxHead(bias=True), AdaptiveSoftmax((4, 9), 2, tied=True)], ids=repr)
def test_one_graph_holds_embedding_and_head(head):
    batch, module = texts(), pair(replace(head, chunk=30 * WIDEST, z_loss=0.1))
    expected = module(*batch)
    gradients_expected = gradients(module, expected.sum())
    torch.compiler.reset()
    nats = torch.compile(module, backend="aot_eager", fullgraph=True)(*batch)
    close(nats, expected)
    all_close(gradients(module, nats.sum()), gradients_expected)


@every_adaptive
def test_a_cluster_that_does_not_occur_is_scored_and_learned_as_nothing(head):
    module = pair(head)
    first = min((TOKENS, *head.cutoffs))
    tokens, targets = torch.randint(first, (2, ROWS, LENGTH))
    everywhere = torch.cat([targets, texts()[1]], dim=1)
    nats = module(tokens, targets)
    close(nats, module(torch.cat([tokens, tokens], dim=1), everywhere)[:, :LENGTH])
    found = gradients(module, nats.sum())
    assert all(gradient.isfinite().all() for gradient in found.values())
    for name in ("tables.1.weight", "tables.1.bias"):
        if f"head.{name}" in found and not head.tied:
            assert not found[f"head.{name}"].any()


# the only token of its cluster is certain there, so that nothing is learned
@pytest.mark.parametrize("head", [head for head in ADAPTIVE if 3 not in head.cutoffs], ids=repr)
def test_everything_learned_gets_a_gradient(head):
    module = pair(head)
    assert all(gradient.any() for gradient in gradients(module, module(*texts()).sum()).values())


@pytest.mark.parametrize("tied", (False, True))
@pytest.mark.parametrize("cutoffs", [(), (TOKENS,), (TOKENS + 5, TOKENS + 6)])
def test_without_clusters_it_is_a_softmax_with_a_bias(tied, cutoffs):
    plain, clustered = pair(SoftmaxHead(tied, bias=True)), pair(AdaptiveSoftmax(cutoffs, tied=tied), TokenEmbedding())
    batch = texts()
    close(clustered(*batch), plain(*batch))
    hidden = torch.randn(4, WIDTH)
    close(clustered.head.log_probabilities(hidden), plain.head.log_probabilities(hidden))


def test_an_adaptive_embedding_of_one_cluster_is_a_table_scaled_by_the_root_of_the_width():
    tokens, places = texts()[0], torch.arange(LENGTH).expand(ROWS, -1)
    for positions in (None, Sinusoidal()):
        options = {} if positions is None else {"positions": positions}
        adaptive = pair(SoftmaxHead(), AdaptiveEmbedding(**options)).embedding
        table = pair(SoftmaxHead(), TokenEmbedding(scale=WIDTH**0.5, **options)).embedding
        close(adaptive(tokens, places), table(tokens, places))


@pytest.mark.parametrize("divisor, inner", [(1, None), *PROJECTED])
def test_cutoffs_beyond_the_vocabulary_are_dropped(divisor, inner):
    some, more = (adaptive(cutoffs, divisor, inner, True, 1) for cutoffs in [(4, 9), (4, 9, TOKENS, 99)])
    batch = texts()
    close(pair(some)(*batch), pair(more)(*batch))
    close(pair(some)(*batch), pair(more, below(some))(*batch))


@every_head
def test_what_is_tied_is_one_parameter_with_one_gradient(head):
    tied = pair(head)
    names = {name: id(learned) for name, learned in tied.named_parameters(remove_duplicate=False)}
    owners = {number: name for name, number in reversed(names.items())}
    loose = pair(replace(head, tied=False, **({"tied_projections": ()} if isinstance(head, AdaptiveSoftmax) else {})))
    loose.load_state_dict(tied.state_dict())
    batch = texts()
    nats = tied(*batch)
    close(loose(*batch), nats)
    expected: dict[str, Tensor] = {}
    for name, gradient in gradients(loose, loose(*batch).sum()).items():
        owner = owners[names[name]]
        expected[owner] = expected.get(owner, 0) + gradient
    all_close(gradients(tied, nats.sum()), expected)


@every_adaptive
def test_exactly_what_is_said_to_be_tied_is(head):
    made = pair(head)
    ours, theirs = made.head, made.embedding
    assert {id(table.weight) for table in ours.tables}.isdisjoint(map(id, theirs.parameters())) is not head.tied
    for cluster, projection in enumerate(ours.projections):
        origin = theirs.projections[cluster if head.divisor > 1 else 0]
        assert (projection.weight is origin.weight) is (cluster in head.tied_projections)


@pytest.mark.parametrize(
    "head, embedding",
    [
        (AdaptiveSoftmax((5,), 2, tied=True), TokenEmbedding()),
        (AdaptiveSoftmax((5,), 2, tied=True), AdaptiveEmbedding((6,), 2)),
        (AdaptiveSoftmax((5,), 2, tied=True), AdaptiveEmbedding((5, 9), 2)),
        (AdaptiveSoftmax((5,), 2, tied=True), AdaptiveEmbedding((5,), 4)),
        (AdaptiveSoftmax((5,), 2, tied=True), AdaptiveEmbedding((5,), 1)),
        (AdaptiveSoftmax((5,), 1, tied=True), AdaptiveEmbedding((5,), 2)),
        (AdaptiveSoftmax((5,), 1, 6, tied=True), AdaptiveEmbedding((5,))),
        (AdaptiveSoftmax((5,), 2, tied_projections=(1,)), TokenEmbedding()),
        (AdaptiveSoftmax((5,), 2, tied_projections=(1,)), AdaptiveEmbedding((5,), 4)),
        (AdaptiveSoftmax((5,), 1, 6, tied_projections=(1,)), AdaptiveEmbedding((5,), 2, 6)),
        (SoftmaxHead(tied=True), AdaptiveEmbedding((5,), 2)),
        (SoftmaxHead(tied=True), AdaptiveEmbedding(inner=6)),
    ],
    ids=repr,
)
def test_an_embedding_that_does_not_fit_is_not_shared(head, embedding):
    with pytest.raises(UserError, match=r"^the head is to share (tables|projections) of \d.*: give both the same"):
        pair(head, embedding)


@pytest.mark.parametrize("part", (AdaptiveEmbedding, AdaptiveSoftmax))
def test_a_vocabulary_that_cannot_be_cut_is_refused(part):
    for cutoffs in [(0,), (5, 5), (9, 4), (-1,)]:
        with pytest.raises(UserError, match="cutoffs ascend"):
            part(cutoffs)
    with pytest.raises(UserError, match=r"divisor .* at least one; found 0"):
        part(divisor=0)
    with pytest.raises(UserError, match="at least one number; found inner 0"):
        part(inner=0)
    with pytest.raises(UserError, match=r"vectors of 8 numbers, divided by 4 .* the last of 3 clusters"):
        part((4, 9), divisor=4).build(TOKENS, WIDTH, *([pair(SoftmaxHead()).embedding] * (part is AdaptiveSoftmax)))


def test_a_projection_of_no_cluster_cannot_be_tied():
    with pytest.raises(UserError, match="2 cutoffs make clusters 0 to 2; found 1, 3 to tie"):
        AdaptiveSoftmax((4, 9), tied_projections=(1, 3))


@some_heads
def test_hidden_states_are_dropped_before_the_head_and_in_training_only(head):
    dropping, whole = pair(replace(head, dropout=0.5)).head, pair(head).head
    hidden, (_, targets) = hidden_states(), texts()
    for read, state in ((lambda h: lambda x: h(x, targets), hidden), (lambda h: h.log_probabilities, hidden[0])):
        torch.manual_seed(1)
        actual = read(dropping)(state)
        torch.manual_seed(1)
        close(actual, read(whole)(nn.functional.dropout(state, 0.5)))
        dropping.eval()
        close(read(dropping)(state), read(whole)(state))
        dropping.train()


@pytest.mark.parametrize("embedding", [TokenEmbedding(dropout=0.5), AdaptiveEmbedding((5,), 2, dropout=0.5)], ids=repr)
def test_embedded_tokens_are_dropped_after_positions_are_added_and_in_training_only(embedding):
    embedding = replace(embedding, positions=Sinusoidal())
    dropping, whole = (pair(SoftmaxHead(), each).embedding for each in (embedding, replace(embedding, dropout=0.0)))
    tokens, places = texts()[0], torch.arange(LENGTH).expand(ROWS, -1)
    torch.manual_seed(1)
    actual = dropping(tokens, places)
    torch.manual_seed(1)
    close(actual, nn.functional.dropout(whole(tokens, places), 0.5))
    dropping.eval()
    close(dropping(tokens, places), whole(tokens, places))


@some_heads
def test_probabilities_are_never_coarser_than_single_precision(head):
    module = pair(head).head.half()
    hidden, targets = hidden_states().half(), texts()[1]
    assert module(hidden, targets).dtype == module.log_probabilities(hidden[0]).dtype == torch.float32


@some_heads
def test_a_model_with_the_head_starts_from_numbers_that_depend_on_the_generator_alone(head):
    for initialisation in Initialisation.variants():
        spec = LanguageModel(WIDTH, layers=1, embedding=below(head), head=head, initialisation=initialisation())
        model = spec.build(TOKENS)
        for parameter in model.parameters():
            nn.init.constant_(parameter, torch.nan)
        spec.initialisation.apply(model, torch.Generator().manual_seed(0))
        again = spec.build(TOKENS, torch.Generator().manual_seed(0)).state_dict()
        assert all(torch.equal(number, again[name]) for name, number in model.state_dict().items())


@some_heads
def test_an_adaptive_vocabulary_survives_json(head):
    assert from_json(to_json(head), Head) == head
    assert from_json(to_json(below(head)), Embedding) == below(head)


@pytest.mark.parametrize("sparing", (False, True))
def test_a_cluster_that_no_token_is_in_gets_zeros_and_in_the_originals_form_nothing(sparing):
    embedding = (SparingAdaptiveEmbedding if sparing else AdaptiveEmbedding)((4, 8), divisor=2).build(12, 8)
    head = (SparingAdaptiveSoftmax if sparing else AdaptiveSoftmax)((4, 8), divisor=2).build(12, 8, embedding)
    tokens = torch.arange(8)[None]
    head(embedding(tokens, tokens), tokens).sum().backward()
    for part in (embedding, head):
        assert part.tables[1].weight.grad.any()
        last = part.tables[2].weight.grad
        assert last is None if sparing else not last.any()
