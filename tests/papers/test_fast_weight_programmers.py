"""Schlag, Irie and Schmidhuber 2021, Linear transformers are secretly fast weight programmers."""

import pytest
import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import DPFP
from palimpsest.memory.key_scales import SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.memory.update_rules import Delta, NormalisedDelta
from palimpsest.mixers.fast_weight import FastWeight

every_nu = pytest.mark.parametrize("nu", (1, 2, 3))


def dpfp(x, nu):
    """Features r_i r_(i+j) for j = 1 … nu, where r = relu([x, −x]) and i is counted in a circle."""
    r = torch.cat([x, -x]).relu()
    return torch.stack([r[i] * r[(i + j) % len(r)] for j in range(1, nu + 1) for i in range(len(r))])


def sum_to_one(features):
    return features / features.sum()


@every_nu
def test_our_sentence_is_the_papers_delta_rule_with_sum_normalisation(nu):
    mixer, x = with_large_weights(FastWeight(DPFP(nu), SumToOne(), Delta(), Plain())), text()

    def delta_rule(queries, keys, values, row, head):
        """W ← W + β (v − v̄) ⊗ φ(k), where v̄ = W φ(k) is what the key recalls; then y = W φ(q)."""
        betas = mixer.update_rule.beta(row)[:, head].sigmoid()
        fast = torch.zeros(values.shape[1], 2 * nu * keys.shape[1])
        for query, key, value, beta in zip(queries, keys, values, betas, strict=True):
            key, query = sum_to_one(dpfp(key, nu)), sum_to_one(dpfp(query, nu))
            fast = fast + beta * torch.outer(value - fast @ key, key)
            yield fast @ query

    close(mixer(x)[0], by_hand(mixer, x, delta_rule))


def with_attention_normalisation(mixer, nu, scaled):
    def delta_rule(queries, keys, values, row, head):
        """As the authors' code has it: the key is divided by κ, how much was written under it, and β multiplied."""
        betas = mixer.update_rule.beta(row)[:, head].sigmoid()
        fast, written = torch.zeros(values.shape[1], 2 * nu * keys.shape[1]), None
        for query, key, value, beta in zip(queries, keys, values, betas, strict=True):
            key, query = scaled(dpfp(key, nu)), scaled(dpfp(query, nu))
            kappa = torch.tensor(1.0) if written is None else written @ key
            divided = key / (kappa + 1e-5)
            fast = fast + beta * kappa * torch.outer(value - fast @ divided, divided)
            written = key if written is None else written + key
            yield 0.5 * (fast @ query) / (written @ query + 1e-5)

    return delta_rule


@every_nu
def test_our_sentence_is_the_delta_rule_with_attention_normalisation(nu):
    rule, read_out = NormalisedDelta(epsilon=1e-5), Normalised(scale=0.5, epsilon=1e-5)
    mixer, x = with_large_weights(FastWeight(DPFP(nu), SumToOne(), rule, read_out)), text()
    close(mixer(x)[0], by_hand(mixer, x, with_attention_normalisation(mixer, nu, sum_to_one)))


def test_attention_normalisation_is_exact_for_long_keys_that_overlap_with_none_before():
    rule, read_out = NormalisedDelta(epsilon=1e-5), Normalised(scale=0.5, epsilon=1e-5)
    mixer, x = with_large_weights(FastWeight(DPFP(nu=3), Unscaled(), rule, read_out)), 10 * text()
    close(mixer(x)[0], by_hand(mixer, x, with_attention_normalisation(mixer, 3, lambda features: features)))
