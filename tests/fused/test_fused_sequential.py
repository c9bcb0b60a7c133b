"""The fused forms of the recurrences in Triton's interpreter, held against the plain forms in float64."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from palimpsest.kernels import BackendRefused
from palimpsest.kernels.activations import Bare, Sigmoid, Softmax, Tanh
from palimpsest.kernels.delta_lstm import delta_lstm
from palimpsest.kernels.delta_rnn import delta_rnn
from palimpsest.kernels.recurrent_delta import recurrent_delta
from palimpsest.kernels.trust import INTERPRETED

SMALL = (2, 8, 1, 2)  # tokens, width, rows, heads
GUARDED = Softmax(epsilon=1e-2)

interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
Given = list[Tensor | None]


def lstm_in_order(inputs, keys, values, betas, memory, fed, cell, beside, *activations, backend):
    return delta_lstm(inputs, keys, values, betas, memory, fed, cell, *activations, beside, backend=backend)


def drawn_rnn(length: int, width: int, rows: int, heads: int) -> Given:
    tokens, state = (rows, length, heads), (rows, heads)
    inputs, values = torch.randn(2, *tokens, width)
    keys, betas = torch.randn(*tokens, width).softmax(-1), torch.rand(tokens)
    return [inputs, keys, values, betas, torch.randn(*state, width, width), torch.rand(*state, width)]


def drawn_lstm(length: int, width: int, rows: int, heads: int) -> Given:
    tokens, state = (rows, length, heads, 3), (rows, heads)
    inputs, values = torch.randn(2, *tokens, width)
    keys, betas = torch.randn(*tokens, width).softmax(-1), torch.rand(tokens)
    fed, cell = torch.rand(2, *state, width)
    beside = torch.randn(rows, length, heads, width)
    return [inputs, keys, values, betas, torch.randn(*state, 3, width, width), fed, cell, beside]


def drawn_lstm_alone(*sizes: int) -> Given:
    return [*drawn_lstm(*sizes)[:-1], None]


def drawn_recurrent_delta(length: int, width: int, rows: int, heads: int) -> Given:
    made, state = 3 * width + 1, (rows, heads)
    inputs, weights = torch.randn(rows, length, heads, made), torch.randn(heads, width, made) / width**0.5
    return [inputs, weights, torch.randn(*state, width, width), torch.randn(*state, width)]


class Recurrence(NamedTuple):
    door: Callable[..., tuple[Tensor, ...]]
    draw: Callable[..., Given]
    activations: tuple

    def __call__(self, given: Given, backend: str) -> tuple[Tensor, ...]:
        return self.door(*given, *self.activations, backend=backend)


RNN = Recurrence(delta_rnn, drawn_rnn, (Softmax(),))
LSTM = Recurrence(lstm_in_order, drawn_lstm, (Softmax(), Sigmoid()))
RECURRENT_DELTA = Recurrence(recurrent_delta, drawn_recurrent_delta, (Softmax(),))
EACH = {"delta_rnn": RNN, "delta_lstm": LSTM, "recurrent_delta": RECURRENT_DELTA}
OTHERS = {
    "delta_rnn, guarded softmax": RNN._replace(activations=(GUARDED,)),
    "delta_rnn, tanh": RNN._replace(activations=(Tanh(),)),
    "delta_lstm, bare candidate": LSTM._replace(draw=drawn_lstm_alone, activations=(GUARDED, Bare())),
    "recurrent_delta, guarded softmax": RECURRENT_DELTA._replace(activations=(GUARDED,)),
}
each = pytest.mark.parametrize("recurrence", EACH.values(), ids=EACH)
each_other = pytest.mark.parametrize("recurrence", OTHERS.values(), ids=OTHERS)


def outcome(recurrence: Recurrence, given: Given, backend: str) -> list[Tensor]:
    """Results, and the gradient of one weighted sum of them for everything given."""
    arguments = [None if x is None else x.detach().requires_grad_() for x in given]
    results = recurrence(arguments, backend)
    chance = torch.Generator().manual_seed(0)
    weighed = [(z.double() * torch.randn(z.shape, generator=chance).double()).sum() for z in results]
    gradients = torch.autograd.grad(torch.stack(weighed).sum(), [x for x in arguments if x is not None])
    return [*(z.detach() for z in results), *gradients]


def errors(actual: list[Tensor], expected: list[Tensor]) -> list[float]:
    pairs = zip(actual, expected, strict=True)
    return [((a.double() - e).norm() / (e.norm() or 1.0)).item() for a, e in pairs]


def held_to_the_plain_form(recurrence: Recurrence, given: Given) -> None:
    """At most twice as far from float64 as the plain form, and of the same type."""
    exact = outcome(recurrence, [None if x is None else x.double() for x in given], "plain")
    plain, fused = (outcome(recurrence, given, backend) for backend in ("plain", "fused"))
    assert [x.dtype for x in fused] == [x.dtype for x in plain]
    allowed = [2 * error + 1e-6 for error in errors(plain, exact)]
    found = errors(fused, exact)
    assert all(one <= most for one, most in zip(found, allowed, strict=True)), (found, allowed)


@interpreted
@each
@pytest.mark.parametrize("sizes", [(1, 8, 2, 2), (5, 12, 1, 2), (19, 8, 1, 1)], ids=str)
def test_results_and_gradients_are_those_of_the_plain_form(recurrence, sizes):
    held_to_the_plain_form(recurrence, recurrence.draw(*sizes))


@interpreted
@each_other
def test_every_activation_is_that_of_the_plain_form(recurrence):
    held_to_the_plain_form(recurrence, recurrence.draw(*SMALL))


@interpreted
@each
def test_half_precision_is_read_and_given_back_and_the_page_is_float32(recurrence):
    given = [None if x is None else x.half() for x in recurrence.draw(*SMALL)]
    held_to_the_plain_form(recurrence, given)
    assert [z.dtype for z in recurrence(given, "fused")[:2]] == [torch.float16, torch.float32]


@interpreted
@each
def test_numbers_may_lie_anywhere(recurrence):
    given = recurrence.draw(*SMALL)
    scattered = [x.transpose(1, -1).contiguous().transpose(1, -1) for x in given]
    spaced = [torch.stack([x, x], dim=1).unbind(1)[0] for x in given]
    assert scattered[0].stride(-1) > 1
    mixed = [one if number % 2 else other for number, (one, other) in enumerate(zip(spaced, scattered, strict=True))]
    pairs = zip(outcome(recurrence, mixed, "fused"), outcome(recurrence, given, "fused"), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@interpreted
@each
def test_one_result_alone_has_its_gradient(recurrence):
    given = recurrence.draw(*SMALL)
    for number in range(2):
        gradients = []
        for backend in ("plain", "fused"):
            arguments = [x.detach().requires_grad_() for x in given]
            recurrence(arguments, backend)[number].sum().backward()  # a gradient of one number for all
            gradients.append([torch.zeros_like(x) if x.grad is None else x.grad for x in arguments])
        assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(*gradients, strict=True))


@interpreted
def test_taking_away_what_was_added_loses_no_more_than_the_rounding_of_the_largest_page():
    """Backward finds the pages before a large one by taking away what made it large."""
    given, large = drawn_rnn(8, 8, 1, 1), 1000.0
    given[2][:, 4] = large
    given[1][:, 4:6], given[3][:, 4:6] = torch.eye(8)[0], 1.0  # written at once, and overwritten
    exact = outcome(RNN, [x.double() for x in given], "plain")
    plain, fused = (errors(outcome(RNN, given, backend), exact) for backend in ("plain", "fused"))
    rounding = large * 2**-24
    assert all(one <= 2 * other + rounding for one, other in zip(fused, plain, strict=True)), (fused, plain)


@interpreted
@each
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_recurrence_is_one_node_of_a_compiled_graph(recurrence):
    given = recurrence.draw(*SMALL)
    compiled = torch.compile(lambda *given: recurrence(list(given), "fused"), fullgraph=True, backend="aot_eager")
    expected = outcome(recurrence, given, "fused")
    found = outcome(recurrence._replace(door=lambda *inside, backend: compiled(*inside[: len(given)])), given, "fused")
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


class Cube(NamedTuple):
    def of(self, x: Tensor) -> Tensor:
        return x**3

    def back(self, gradient: Tensor, y: Tensor) -> Tensor:
        return 3 * y.abs() ** (2 / 3) * gradient


@interpreted
@pytest.mark.parametrize(
    "width, dtype, activation, reason",
    [
        (65, torch.float32, Softmax(), "heads of up to 64 numbers; found 65"),
        (8, torch.float64, Softmax(), "float32 pages; found torch.float64"),
        (8, torch.float32, Cube(), "does not know Cube"),
    ],
)
def test_what_a_fused_form_cannot_do_is_refused_in_words(width, dtype, activation, reason):
    given = [x.to(dtype) for x in drawn_rnn(2, width, 1, 1)]
    with pytest.raises(BackendRefused, match=reason):
        delta_rnn(*given, activation, backend="fused")
    delta_rnn(*given, activation)


def test_a_form_that_is_not_there_is_refused():
    with pytest.raises(BackendRefused, match="there is no backend 'fast'; there are plain, fused"):
        recurrent_delta(*drawn_recurrent_delta(2, 8, 1, 1), Softmax(), backend="fast")
