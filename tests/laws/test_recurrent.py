"""The laws of recurrences: backward, written by hand, is the gradient; all forms keep the laws of mixers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import test_mixers as laws
import torch
from closeness import close
from torch import Tensor
from torch.autograd import gradcheck

from palimpsest.errors import UserError
from palimpsest.kernels.activations import Activation, Bare, Sigmoid, Softmax, Tanh
from palimpsest.kernels.delta_lstm import delta_lstm
from palimpsest.kernels.delta_rnn import delta_rnn
from palimpsest.kernels.pages import CHUNK
from palimpsest.kernels.recurrent_delta import recurrent_delta
from palimpsest.memory.feature_maps import DPFP, Identity, Silu
from palimpsest.memory.feature_maps import Softmax as SoftmaxMap
from palimpsest.memory.key_scales import UnitNorm, Unscaled
from palimpsest.memory.read_outs import GatedNorm, Normalised
from palimpsest.mixers.delta_delta import DeltaDeltaNet, FirstPage
from palimpsest.mixers.delta_lstm import Candidate, DeltaLSTM
from palimpsest.mixers.delta_mlp import DeltaMLP
from palimpsest.mixers.delta_rnn import DeltaRNN
from palimpsest.mixers.feedback import Feedback
from palimpsest.mixers.lstm import LSTM
from palimpsest.mixers.mixer import Mixer
from palimpsest.mixers.out_projection import OutProjection
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNet
from palimpsest.mixers.rnn import RNN
from palimpsest.mixers.slow_lstm import SlowLSTM
from palimpsest.state import leaves, map_state

ROWS, HEADS, VALUES = 2, 2, 2
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)


def recalled(key: Tensor, page: Tensor) -> Tensor:
    """keyᵀ page"""
    return (key[..., None] * page).sum(-2)


def rewritten(page: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    return page + key[..., None] * (beta[..., None] * (value - recalled(key, page)))[..., None, :]


def naive_rnn(inputs, keys, values, betas, memory, fed, activation: Activation) -> tuple[Tensor, ...]:
    sums = []
    for t in range(inputs.shape[1]):
        memory = rewritten(memory, keys[:, t], values[:, t], betas[:, t])
        sums.append(inputs[:, t] + recalled(fed, memory))
        fed = activation.of(sums[-1])
    return torch.stack(sums, dim=1), memory


def naive_lstm(inputs, keys, values, betas, memory, fed, cell, beside, activation, squash) -> tuple[Tensor, ...]:
    sums = []
    for t in range(inputs.shape[1]):
        memory = rewritten(memory, keys[:, t], values[:, t], betas[:, t])
        i, u, o = (inputs[:, t] + recalled(fed[:, :, None], memory)).unbind(2)
        cell = i.sigmoid() * squash.of(u) + (1 - i.sigmoid()) * cell
        sums.append(o.sigmoid() * cell + (0 if beside is None else beside[:, t]))
        fed = activation.of(sums[-1])
    return torch.stack(sums, dim=1), memory, cell


def naive_recurrent_delta(inputs, weights, memory, read, activation: Activation) -> tuple[Tensor, ...]:
    reads, width = [], read.shape[-1]
    for t in range(inputs.shape[1]):
        made = inputs[:, t] + recalled(read.tanh(), weights)
        query, key, value, logit = made.split([width, width, width, 1], dim=-1)
        memory = rewritten(memory, activation.of(key), value, logit.sigmoid().squeeze(-1))
        read = recalled(activation.of(query), memory)
        reads.append(read)
    return torch.stack(reads, dim=1), memory


def our_lstm(inputs, keys, values, betas, memory, fed, cell, beside, activation, squash) -> tuple[Tensor, ...]:
    return delta_lstm(inputs, keys, values, betas, memory, fed, cell, activation, squash, beside)


def drawn_rnn(length: int) -> list[Tensor]:
    tokens, state = (ROWS, length, HEADS), (ROWS, HEADS)
    keys, betas = torch.randn(*tokens, VALUES).softmax(-1), torch.rand(tokens)
    inputs, values = torch.randn(2, *tokens, VALUES)
    return [inputs, keys, values, betas, torch.randn(*state, VALUES, VALUES), torch.rand(*state, VALUES)]


def drawn_lstm(length: int) -> list[Tensor]:
    tokens, state = (ROWS, length, HEADS, 3), (ROWS, HEADS)
    keys, betas = torch.randn(*tokens, VALUES).softmax(-1), torch.rand(tokens)
    inputs, values = torch.randn(2, *tokens, VALUES)
    fed, cell = torch.rand(2, *state, VALUES)
    beside = torch.randn(ROWS, length, HEADS, VALUES)
    return [inputs, keys, values, betas, torch.randn(*state, 3, VALUES, VALUES), fed, cell, beside]


def drawn_lstm_alone(length: int) -> list[Tensor | None]:
    return [*drawn_lstm(length)[:-1], None]


def drawn_recurrent_delta(length: int) -> list[Tensor]:
    made = 3 * VALUES + 1
    inputs, weights = torch.randn(ROWS, length, HEADS, made), torch.randn(HEADS, VALUES, made)
    return [inputs, weights, torch.randn(ROWS, HEADS, VALUES, VALUES), torch.randn(ROWS, HEADS, VALUES)]


GUARDED = Softmax(epsilon=1e-6)
RECURRENCES = {
    "delta_rnn": (delta_rnn, naive_rnn, drawn_rnn, (Softmax(),)),
    "delta_rnn, guarded softmax": (delta_rnn, naive_rnn, drawn_rnn, (GUARDED,)),
    "delta_rnn, tanh": (delta_rnn, naive_rnn, drawn_rnn, (Tanh(),)),
    "delta_lstm, bare candidate": (our_lstm, naive_lstm, drawn_lstm_alone, (Softmax(), Bare())),
    "delta_lstm, sigmoid candidate": (our_lstm, naive_lstm, drawn_lstm_alone, (GUARDED, Sigmoid())),
    "delta_lstm, beside the cell": (our_lstm, naive_lstm, drawn_lstm, (Softmax(), Sigmoid())),
    "recurrent_delta": (recurrent_delta, naive_recurrent_delta, drawn_recurrent_delta, (Softmax(),)),
    "recurrent_delta, guarded softmax": (recurrent_delta, naive_recurrent_delta, drawn_recurrent_delta, (GUARDED,)),
}
every_recurrence = pytest.mark.parametrize("ours, naive, draw, activations", RECURRENCES.values(), ids=RECURRENCES)


def outcome(recurrence: Callable, given: list[Tensor | None], activations: tuple, uses: int = 1) -> list[Tensor]:
    """Results and the gradient of everything given, of one weighted sum of them all."""
    learned = [x.detach().requires_grad_() for x in given if x is not None]
    supply = iter(learned)
    arguments = [None if x is None else next(supply) for x in given]
    total = torch.zeros(())
    for use in range(uses):
        results = recurrence(*arguments, *activations)
        chance = torch.Generator().manual_seed(use)
        total = total + sum((z * torch.randn(z.shape, generator=chance)).sum() for z in results)
    return [*(z.detach() for z in results), *torch.autograd.grad(total, learned)]


def all_near(actual: list[Tensor], expected: list[Tensor]) -> None:
    for number, pair in enumerate(zip(actual, expected, strict=True)):
        close(*pair, what=f"number {number} of results and gradients")


@every_recurrence
@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_written_by_hand_is_the_gradient_of_the_naive_loop(ours, naive, draw, activations, length):
    given = draw(length)
    all_near(outcome(ours, given, activations), outcome(naive, given, activations))


@every_recurrence
def test_the_gradient_of_a_recurrence_is_that_of_small_differences(ours, naive, draw, activations):
    given = [None if x is None else x.requires_grad_() for x in draw(2)]
    assert gradcheck(lambda *arguments: ours(*arguments, *activations), given)


@every_recurrence
def test_inputs_may_lie_in_memory_in_any_order(ours, naive, draw, activations):
    given = draw(5)
    scattered = [None if x is None else x.transpose(0, -1).contiguous().transpose(0, -1) for x in given]
    assert any(not x.is_contiguous() for x in scattered if x is not None)
    all_near(outcome(ours, scattered, activations), outcome(ours, given, activations))


@every_recurrence
def test_the_same_inputs_may_be_used_twice(ours, naive, draw, activations):
    given = draw(5)
    before = [None if x is None else x.clone() for x in given]
    all_near(outcome(ours, given, activations, uses=2), outcome(naive, given, activations, uses=2))
    assert all(x is None or torch.equal(x, y) for x, y in zip(given, before, strict=True))


@every_recurrence
def test_gradients_that_nobody_asks_for_are_not_needed(ours, naive, draw, activations):
    given = draw(5)
    first = given[0].requires_grad_()
    sums = ours(*given, *activations)[0]
    naive_sums = naive(*given, *activations)[0]
    close(*(torch.autograd.grad(z[:, -1].sum(), first)[0] for z in (sums, naive_sums)))


@every_recurrence
def test_a_recurrence_in_half_precision_has_a_float32_page(ours, naive, draw, activations):
    given = [None if x is None else x.bfloat16().requires_grad_() for x in draw(5)]
    with torch.autocast("cpu"):
        out, memory, *_ = ours(*given, *activations)
        (out.float().sum() + memory.sum()).backward()
    assert (out.dtype, memory.dtype) == (torch.bfloat16, torch.float32)
    assert all(x is None or x.grad.dtype == torch.bfloat16 for x in given)


def test_a_recurrence_refuses_what_does_not_fit():
    given = drawn_rnn(4)
    with pytest.raises(ValueError, match="keys: expected the axes"):
        delta_rnn(given[0], given[1][:, :3], *given[2:], Softmax())
    inputs, *rest = drawn_recurrent_delta(4)
    with pytest.raises(ValueError, match="weights: expected the axes"):
        recurrent_delta(inputs[..., 1:], *rest, Softmax())


# ------------------------------------------------------------------------------------------------- mixers

RNN_FORMS = [DeltaRNN(feedback=variant(), heads=2) for variant in Feedback.variants()]
RNN_FORMS += [replace(RNN_FORMS[0], read_out=Normalised()), replace(RNN_FORMS[0], read_out=GatedNorm(), head_width=3)]
RNN_FORMS += [replace(RNN_FORMS[1], feature_map=SoftmaxMap(), key_scale=Unscaled(), read_out=Normalised(0.5))]
RNN_FORMS += [replace(RNN_FORMS[0], feature_map=DPFP(2)), replace(RNN_FORMS[0], out=None)]
LSTM_FORMS = [
    DeltaLSTM(feedback=feedback(), candidate=candidate(), scale=0.7, heads=2)
    for feedback in Feedback.variants()
    for candidate in Candidate.variants()
]
LSTM_FORMS += [replace(LSTM_FORMS[0], feature_map=DPFP()), replace(LSTM_FORMS[0], out=None)]
OTHER_FORMS = [
    RecurrentDeltaNet(0.5, heads=2, head_width=3),
    RNN(inner=5),
    RNN(out=None),
    LSTM(inner=5),
    LSTM(out=None),
]
OTHER_FORMS += [DeltaDeltaNet(first_page=variant(), heads=2, head_width=3) for variant in FirstPage.variants()]
OTHER_FORMS += [DeltaDeltaNet(Silu(), UnitNorm(), heads=2), DeltaDeltaNet(DPFP(), heads=2)]
OTHER_FORMS += [DeltaMLP(depth=2, inner=3, heads=2), DeltaMLP(SoftmaxMap(), Unscaled(), heads=2, head_width=3)]
OTHER_FORMS += [SlowLSTM(read_out=Normalised(), heads=2), SlowLSTM(DPFP(), heads=2, head_width=3)]
FORMS = [*RNN_FORMS, *LSTM_FORMS, *OTHER_FORMS]
RECURRENT = (DeltaDeltaNet, DeltaLSTM, DeltaMLP, DeltaRNN, LSTM, RNN, RecurrentDeltaNet, SlowLSTM)
every_form = pytest.mark.parametrize("spec", FORMS, ids=repr)
every_recurrent_mixer = pytest.mark.parametrize("spec", [mixer() for mixer in RECURRENT], ids=repr)


@every_form
def test_cutting_a_segment_changes_nothing_in_any_form(spec):
    laws.test_cutting_a_segment_anywhere_changes_nothing(spec)


@every_form
def test_the_future_is_not_read_in_any_form(spec):
    laws.test_the_future_is_not_read(spec)


@every_form
def test_rows_do_not_mix_in_any_form(spec):
    laws.test_rows_do_not_mix(spec)


@every_form
def test_no_state_is_the_fresh_state_in_any_form(spec):
    laws.test_no_state_is_the_fresh_state_and_its_first_axis_is_the_row(spec)


@every_form
def test_everything_learned_gets_a_gradient_in_any_form(spec):
    laws.test_everything_learned_gets_a_gradient(spec)


@pytest.mark.parametrize("spec", [*FORMS, *(mixer() for mixer in RECURRENT)], ids=repr)
@pytest.mark.parametrize("carried", (False, True))
def test_the_gradient_of_a_mixer_is_that_of_small_differences(spec, carried):
    mixer = laws.built(spec)
    state = mixer(torch.randn(1, 2, laws.WIDTH))[1] if carried else mixer.initial_state(1)
    changing = [leaf.detach().requires_grad_() for leaf in leaves(state) if leaf.is_floating_point()]

    def segment(x: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        supply = iter(given)
        filled = map_state(lambda leaf: next(supply) if leaf.is_floating_point() else leaf, state)
        y, after = mixer(x, filled)
        return y, *(leaf for leaf in leaves(after) if leaf.requires_grad)

    assert gradcheck(segment, (torch.randn(1, 3, laws.WIDTH, requires_grad=True), *changing), fast_mode=True)


@every_recurrent_mixer
def test_a_segment_longer_than_a_chunk_is_its_tokens(spec):
    laws.check_token_by_token(laws.built(spec), torch.randn(2, 2 * CHUNK + 3, laws.WIDTH))


@every_recurrent_mixer
def test_what_is_fresh_shares_no_memory_with_anything(spec):
    state = laws.built(spec).initial_state(2)
    assert len({leaf.data_ptr() for leaf in leaves(state)}) == len(leaves(state))


@pytest.mark.parametrize("mixer", (DeltaDeltaNet, DeltaLSTM, DeltaMLP, DeltaRNN, RecurrentDeltaNet, SlowLSTM))
def test_a_width_that_the_heads_cannot_share_is_refused(mixer):
    with pytest.raises(UserError, match="a width of 9 cannot be shared by 2 heads"):
        mixer(heads=2).build(9)


@pytest.mark.parametrize("mixer", (DeltaDeltaNet, DeltaLSTM, DeltaMLP, DeltaRNN, SlowLSTM))
def test_what_would_divide_by_a_sum_that_may_be_zero_is_refused(mixer):
    with pytest.raises(UserError, match="SumToOne divides by a sum of features, and Identity has negative ones"):
        mixer(feature_map=Identity())
    if mixer in (DeltaRNN, SlowLSTM):
        with pytest.raises(UserError, match="Normalised divides by a sum of features, and Silu has negative ones"):
            mixer(feature_map=Silu(), key_scale=UnitNorm(), read_out=Normalised())


@pytest.mark.parametrize("mixer", (RNN(inner=7, out=None), LSTM(inner=7, out=None)), ids=repr)
def test_a_state_that_is_not_as_wide_as_the_model_needs_an_out_projection(mixer: Mixer):
    with pytest.raises(UserError, match="without an out projection what is said is as wide as the model, 8; found 7"):
        mixer.build(8)


def test_a_fast_net_without_blocks_is_refused():
    with pytest.raises(UserError, match="depth of DeltaMLP is at least 1; found 0"):
        DeltaMLP(depth=0)


@pytest.mark.parametrize("mixer", (RNN, LSTM, DeltaRNN, DeltaLSTM))
def test_what_is_said_is_dropped_out_before_it_is_projected(mixer):
    module = mixer(out=OutProjection(dropout=0.5)).build(laws.WIDTH)
    x = torch.randn(64, 1, laws.WIDTH)
    torch.nn.init.eye_(module.out.weight)
    dropped = (module(x)[0] == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert not (module.eval()(x)[0] == 0).any()


@pytest.mark.parametrize("mixer", (RNN, LSTM, RecurrentDeltaNet, SlowLSTM))
def test_a_start_is_drawn_from_the_generator_alone(mixer):
    module = mixer().build(laws.WIDTH)
    draws = []
    for seed in (1, 1, 2):
        for part in module.modules():
            if hasattr(part, "initialise"):
                part.initialise(torch.Generator().manual_seed(seed))
        draws.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).clone())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("mixer", [RNN(), LSTM(), SlowLSTM(heads=2)], ids=lambda mixer: type(mixer).__name__)
def test_weights_are_never_put_into_one_buffer(mixer):
    """torch does so when its recurrent nets come to a GPU, and no checkpoint could be written then."""
    nets = [module for module in mixer.build(8).modules() if isinstance(module, torch.nn.RNNBase)]
    assert nets
    assert all(type(net).flatten_parameters is not torch.nn.RNNBase.flatten_parameters for net in nets)
