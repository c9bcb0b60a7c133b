"""Irie et al. 2021, Going beyond linear Transformers with recurrent fast weight programmers; and their baselines."""

from collections.abc import Callable, Iterator

import pytest
import torch
from by_hand import text, with_large_weights
from closeness import close
from torch import Tensor

from palimpsest.memory.feature_maps import EluPlusOne, Softmax
from palimpsest.memory.key_scales import SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.mixers.delta_delta import DeltaDeltaNet, LearnedPage
from palimpsest.mixers.delta_lstm import BareCandidate, DeltaLSTM, SigmoidCandidate, SkippingCandidate
from palimpsest.mixers.delta_mlp import DeltaMLP
from palimpsest.mixers.delta_rnn import DeltaRNN
from palimpsest.mixers.feedback import SoftmaxFeedback, SoftmaxState
from palimpsest.mixers.lstm import LSTM
from palimpsest.mixers.mixer import MixerModule
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNet
from palimpsest.mixers.rnn import RNN
from palimpsest.mixers.slow_lstm import SlowLSTM


def by_head(mixer: MixerModule, made: Tensor, paper: Callable[[Tensor, int], Iterator[Tensor]]) -> Tensor:
    """`paper(tokens, head)` says what one head makes of its part of `made`, token by token."""
    rows = []
    for row in made:
        heads = row.chunk(mixer.spec.heads, dim=-1)
        rows.append(torch.cat([torch.stack(list(paper(part, head))) for head, part in enumerate(heads)], dim=-1))
    return mixer.out(torch.stack(rows))


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1, then a sum of one."""
    x = torch.nn.functional.elu(x) + 1
    return x / x.sum()


def rewrite(page: Tensor, key: Tensor, value: Tensor, logit: Tensor) -> Tensor:
    """The delta rule: W ← W + σ(β) (v − W k) ⊗ k."""
    return page + torch.outer(logit.sigmoid() * (value - page @ key), key)


def softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum()


def test_the_delta_rnn():
    """y ← W φ(q) + R softmax(y), both matrices rewritten first."""
    mixer, x = with_large_weights(DeltaRNN()), text()

    def paper(tokens, head):
        w = r = torch.zeros(4, 4)
        y = torch.zeros(4)
        for q, k, v, rk, rv, beta, rbeta in (token.split([4] * 5 + [1, 1]) for token in tokens):
            w, r = rewrite(w, phi(k), v, beta), rewrite(r, softmax(rk), rv, rbeta)
            y = w @ phi(q) + r @ softmax(y)
            yield y

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


@pytest.mark.parametrize("normalised", (False, True))
def test_the_delta_rnn_of_softmax_states(normalised):
    """h ← softmax(W softmax(q) + R h); divided by the query's overlap with all keys where it is normalised."""
    read_out = Normalised(scale=0.5, epsilon=1e-5) if normalised else Plain()
    mixer, x = with_large_weights(DeltaRNN(Softmax(), Unscaled(), SoftmaxState(), read_out)), text()

    def paper(tokens, head):
        w = r = torch.zeros(4, 4)
        h, keys = torch.zeros(4), torch.zeros(4)
        for q, k, v, rk, rv, beta, rbeta in (token.split([4] * 5 + [1, 1]) for token in tokens):
            w, r = rewrite(w, softmax(k), v, beta), rewrite(r, softmax(rk), rv, rbeta)
            h, keys = softmax(w @ softmax(q) + r @ h), keys + softmax(k)
            yield 0.5 * h / (keys @ softmax(q) + 1e-5) if normalised else h

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


@pytest.mark.parametrize("candidate", (BareCandidate(), SigmoidCandidate(), SkippingCandidate()), ids=repr)
@pytest.mark.parametrize("feedback", (SoftmaxFeedback(), SoftmaxState()), ids=repr)
def test_the_delta_lstm(feedback, candidate):
    """c ← i u + (1 − i) c and h = o c, every gate of a matrix for the input and one for the past."""
    mixer, x = with_large_weights(DeltaLSTM(feedback=feedback, candidate=candidate, scale=0.7)), text()

    def paper(tokens, head):
        w, r = ([torch.zeros(4, 4)] * 3 for _ in range(2))
        h, c = torch.zeros(4), torch.zeros(4)
        for token in tokens:
            *vectors, betas = token.split([4] * 15 + [6])
            gates, reads = [], []
            heard = h if feedback == SoftmaxState() else softmax(h)
            for g in range(3):
                q, k, v, rk, rv = vectors[5 * g : 5 * g + 5]
                w[g], r[g] = rewrite(w[g], phi(k), v, betas[2 * g]), rewrite(r[g], softmax(rk), rv, betas[2 * g + 1])
                reads.append(w[g] @ phi(q))
                gates.append(reads[g] + r[g] @ heard)
            i, u, o = gates[0].sigmoid(), gates[1], gates[2].sigmoid()
            u = u if candidate == BareCandidate() else u.sigmoid()
            c = i * u + (1 - i) * c
            h = o * c + reads[1] if candidate == SkippingCandidate() else o * c
            h = softmax(h) if feedback == SoftmaxState() else h
            yield 0.7 * h

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


def test_the_recurrent_delta_net():
    """Queries, keys, values and β hear the tanh of the last read."""
    mixer, x = with_large_weights(RecurrentDeltaNet(scale=0.5)), text()

    def paper(tokens, head):
        w, y = torch.zeros(4, 4), torch.zeros(4)
        for token in tokens:
            q, k, v, beta = (token + y.tanh() @ mixer.hear[head]).split([4, 4, 4, 1])
            w = rewrite(w, softmax(k), v, beta)
            y = w @ softmax(q)
            yield 0.5 * y

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


def test_the_delta_delta_net():
    """A delta memory is read for what programs another."""
    mixer, x = with_large_weights(DeltaDeltaNet(first_page=LearnedPage())), text()

    def paper(tokens, head):
        programmer, w = mixer.first_page.page[head].T, torch.zeros(4, 4)
        for q, k, v, beta in (token.split([4, 4, 13, 1]) for token in tokens):
            programmer = rewrite(programmer, phi(k), v, beta)
            fast_q, fast_k, fast_v, fast_beta = (programmer @ phi(q)).split([4, 4, 4, 1])
            w = rewrite(w, phi(fast_k), fast_v, fast_beta)
            yield w @ phi(fast_q)

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


def test_the_delta_mlp():
    """y ← y + W₂ φ(W₁ φ(norm(y))), for every block, from the query on."""
    mixer, x = with_large_weights(DeltaMLP(depth=2, inner=6)), text()

    def paper(tokens, head):
        up, down = [torch.zeros(6, 4)] * 2, [torch.zeros(4, 6)] * 2
        for token in tokens:
            y, *vectors, betas = token.split([4] + [4, 6, 6, 4] * 2 + [4])
            for n, norm in enumerate(mixer.block_norms):
                up_key, down_key, up_value, down_value = vectors[4 * n : 4 * n + 4]
                up[n] = rewrite(up[n], phi(up_key), up_value, betas[2 * n])
                down[n] = rewrite(down[n], phi(down_key), down_value, betas[2 * n + 1])
                y = y + down[n] @ phi(up[n] @ phi(norm(y)))
            yield y

    close(mixer(x)[0], by_head(mixer, mixer.project(x), paper))


@pytest.mark.parametrize("normalised", (False, True))
def test_the_delta_memory_of_a_slow_lstm(normalised):
    """What the LSTM says is query, key, value and β."""
    read_out = Normalised(scale=0.5, epsilon=1e-5) if normalised else Plain()
    mixer, x = with_large_weights(SlowLSTM(EluPlusOne(), SumToOne(), read_out)), text()

    def paper(tokens, head):
        w, keys = torch.zeros(4, 4), torch.zeros(4)
        for q, k, v, beta in (token.split([4, 4, 4, 1]) for token in tokens):
            w, keys = rewrite(w, phi(k), v, beta), keys + phi(k)
            yield 0.5 * w @ phi(q) / (keys @ phi(q) + 1e-5) if normalised else w @ phi(q)

    close(mixer(x)[0], by_head(mixer, lstm(mixer.programmer, x), paper))


def lstm(net: torch.nn.LSTM, x: Tensor) -> Tensor:
    """c ← f c + i g and h = o tanh(c), for every row."""
    rows = []
    for row in x:
        h = c = torch.zeros(net.hidden_size)
        states = []
        for token in row:
            both = net.weight_ih_l0 @ token + net.bias_ih_l0 + net.weight_hh_l0 @ h + net.bias_hh_l0
            i, f, g, o = both.chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        rows.append(torch.stack(states))
    return torch.stack(rows)


def test_the_lstm():
    mixer, x = with_large_weights(LSTM(inner=6)), text()
    close(mixer(x)[0], mixer.out(lstm(mixer.net, x)))


def test_the_rnn():
    """h ← tanh(W x + R h + b)."""
    mixer, x = with_large_weights(RNN(inner=16, out=None)), text()
    net, h, states = mixer.net, torch.zeros(2, 16), []
    for token in x.unbind(1):
        h = (token @ net.weight_ih_l0.T + net.bias_ih_l0 + h @ net.weight_hh_l0.T + net.bias_hh_l0).tanh()
        states.append(h)
    close(mixer(x)[0], torch.stack(states, dim=1))
