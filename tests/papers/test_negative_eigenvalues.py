"""Grazzi et al. 2025, Unlocking state-tracking in linear RNNs through negative eigenvalues: β up to two."""

import pytest
import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.errors import UserError
from palimpsest.kernels import Gates, memory_scan
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import Delta, GatedDelta
from palimpsest.mixers.fast_weight import FastWeight


def unit(x):
    x = x * x.sigmoid()
    return x / x.norm()


def test_our_sentence_is_the_papers_delta_net_with_twice_the_beta():
    mixer, x = with_large_weights(FastWeight(Silu(), UnitNorm(epsilon=0.0), Delta(limit=2.0), Plain())), text()

    def delta_net(queries, keys, values, row, head):
        """H ← (I − 2σ(b) k kᵀ) H + 2σ(b) k vᵀ, read by q."""
        betas = 2 / (1 + (-mixer.update_rule.beta(row)[:, head]).exp())
        page = torch.zeros(keys.shape[1], values.shape[1])
        for query, key, value, beta in zip(queries, keys, values, betas, strict=True):
            key = unit(key)
            page = (torch.eye(len(key)) - beta * torch.outer(key, key)) @ page + beta * torch.outer(key, value)
            yield unit(query) @ page

    close(mixer(x)[0], by_hand(mixer, x, delta_net))


def test_a_page_can_tell_odd_from_even():
    """Parity, which no β below one can follow: each one turns the sign over, a zero leaves it."""
    bits = torch.randint(2, (1, 100, 1))
    keys = torch.ones(1, 100, 1, 1)
    beta = 2.0 * bits
    reads, _ = memory_scan(keys, keys, torch.zeros_like(keys), Gates(erase=beta, write=beta), torch.ones(1, 1, 1, 1))
    close(reads.flatten(), (-1.0) ** bits.flatten().cumsum(0))


@pytest.mark.parametrize("rule", (Delta, GatedDelta))
@pytest.mark.parametrize("beta, limit", ((0.5, 1.0), (0.5, 2.0), (1.0, 2.0), (1.9, 2.0)))
def test_before_training_beta_is_what_was_asked_for_and_it_stays_below_its_limit(rule, beta, limit):
    module = rule(beta=beta, limit=limit).build(width=8, heads=2, features=4)
    gates = module(torch.zeros(1, 1, 8)).opened()
    close(gates.erase, torch.full((1, 1, 2), beta))
    close(gates.write, gates.erase)
    far = module(1e4 * torch.randn(1, 50, 8)).opened().erase
    assert far.min() >= 0
    assert far.max() <= limit
    assert far.max() > 0.99 * limit


@pytest.mark.parametrize("beta, limit", ((0.0, 1.0), (1.0, 1.0), (2.5, 2.0)))
def test_a_beta_beyond_its_limit_is_refused(beta, limit):
    with pytest.raises(UserError, match=f"between 0 and its limit of {limit}; found {beta}"):
        Delta(beta=beta, limit=limit)
