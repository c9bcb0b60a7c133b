"""The laws of a vocabulary's softmax: one answer, whichever rows count and however many logits are held."""

import pytest
import torch
from closeness import all_close, close
from torch import Tensor

from palimpsest.kernels import BackendRefused
from palimpsest.kernels.cross_entropy import choose_backend, linear_cross_entropy

ROWS, TOKENS, WIDTH = 11, 7, 5


def draw(bias: bool = True) -> dict[str, Tensor]:
    shapes = {"hidden": (ROWS, WIDTH), "weight": (TOKENS, WIDTH)} | ({"bias": (TOKENS,)} if bias else {})
    return {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}


def run(given: dict[str, Tensor], targets: Tensor, **options) -> Tensor:
    return linear_cross_entropy(given["hidden"], given["weight"], given.get("bias"), targets, **options)


def gradients(loss: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))


def by_hand(given: dict[str, Tensor], targets: Tensor, z_loss: float, smoothing: float) -> tuple[Tensor, Tensor]:
    """Nats, and what is learned from, row by row and token by token."""
    nats, learned = [], []
    for state, target in zip(given["hidden"], targets.tolist(), strict=True):
        logits = torch.stack([state @ vector for vector in given["weight"]])
        logits = logits + given["bias"] if "bias" in given else logits
        partition = logits.exp().sum().log()
        wanted = torch.full((TOKENS,), smoothing / TOKENS)
        wanted[target] += 1 - smoothing
        nats.append(partition - logits[target])
        learned.append((wanted * (partition - logits)).sum() + z_loss * partition**2)
    return torch.stack(nats), torch.stack(learned)


@pytest.mark.parametrize("backend", ["reference", "pieces"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("z_loss, smoothing", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_nats_are_the_targets_and_gradients_are_of_all_that_is_charged(backend, bias, z_loss, smoothing):
    given, targets, weights = draw(bias), torch.randint(TOKENS, (ROWS,)), torch.randn(ROWS)
    nats, learned = by_hand(given, targets, z_loss, smoothing)
    found = run(given, targets, z_loss=z_loss, smoothing=smoothing, backend=backend)
    close(found, nats)
    all_close(gradients((found * weights).sum(), given), gradients((learned * weights).sum(), given))


@pytest.mark.parametrize("options", [{"backend": "reference"}, {}, {"chunk": 1}, {"chunk": 3 * TOKENS}], ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_rows_that_do_not_count_cost_nothing_and_learn_nothing(options, share):
    given, targets, weights = draw(), torch.randint(TOKENS, (ROWS,)), torch.randn(ROWS)
    counted = torch.rand(ROWS) < share
    options = options | {"z_loss": 0.1, "smoothing": 0.1}
    expected = run(given, targets, **options)
    found = run(given, targets.where(counted, -100), counted=counted, **options)
    close(found, expected.where(counted, 0.0))
    all_close(gradients((found * weights).sum(), given), gradients((expected * weights)[counted].sum(), given))


def test_a_graph_holds_rows_that_are_picked():
    given, targets, counted = draw(), torch.randint(TOKENS, (ROWS,)), torch.rand(ROWS) < 0.5

    def some(targets: Tensor, counted: Tensor) -> Tensor:
        return run(given, targets.where(counted, -1), counted=counted, chunk=6 * TOKENS)

    found = torch.compile(some, backend="aot_eager", fullgraph=True)(targets, counted)
    close(found, some(targets, counted))
    all_close(gradients(found.sum(), given), gradients(some(targets, counted).sum(), given))


def test_a_form_that_is_not_there_is_refused():
    given, targets = draw(), torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(BackendRefused, match="no backend 'sampled'; there are reference, pieces, fused"):
        run(given, targets, backend="sampled")
    with pytest.raises(ValueError, match=r"bias: expected the axes tokens=7, found the shape \(8,\)"):
        linear_cross_entropy(given["hidden"], given["weight"], torch.zeros(8), targets)


def test_on_a_cpu_logits_are_made_in_pieces():
    given = draw()
    assert choose_backend(given["hidden"].float(), given["weight"].float(), None) == "pieces"
