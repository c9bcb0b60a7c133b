"""Siems et al. 2025, DeltaProduct: several delta steps for every token, and the gated form of it."""

import pytest
import torch
from by_hand import WIDTH, text, with_large_weights
from closeness import close

from palimpsest.errors import UserError
from palimpsest.kernels import Gates, memory_scan
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import DeltaProduct, FeatureGatedDelta, GatedDelta
from palimpsest.mixers.fast_weight import FastWeight

HEADS, HEAD_WIDTH = 4, WIDTH // 4
every_number = pytest.mark.parametrize("writes", (1, 2, 3))


def unit(x):
    x = x * x.sigmoid()
    return x / x.norm()


def by_hand(mixer, x, alphas):
    """H ← α H, then n times H ← (I − β k kᵀ) H + β k vᵀ with other k, v and β ∈ (0, 2); q reads the last."""
    writes, rule = mixer.spec.update_rule.writes, mixer.update_rule
    q_matrix, k_matrix, v_matrix = mixer.project.weight.split([WIDTH, writes * WIDTH, writes * WIDTH])
    k_matrix, v_matrix = (matrix.view(writes, HEADS, HEAD_WIDTH, WIDTH) for matrix in (k_matrix, v_matrix))
    rows = []
    for row in x:
        pages, outputs = [torch.zeros(HEAD_WIDTH, HEAD_WIDTH)] * HEADS, []
        for token in row:
            reads = []
            for h in range(HEADS):
                pages[h] = alphas(token)[h] * pages[h]
                for j in range(writes):
                    k, v = unit(k_matrix[j, h] @ token), v_matrix[j, h] @ token
                    beta = 2 * rule.beta(token)[j * HEADS + h].sigmoid()
                    turned = (torch.eye(HEAD_WIDTH) - beta * torch.outer(k, k)) @ pages[h]
                    pages[h] = turned + beta * torch.outer(k, v)
                reads.append(unit(q_matrix.view(HEADS, HEAD_WIDTH, WIDTH)[h] @ token) @ pages[h])
            outputs.append(mixer.out.weight @ torch.cat(reads))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


def product_of(rule):
    return with_large_weights(FastWeight(Silu(), UnitNorm(epsilon=0.0), rule, Plain()))


@every_number
def test_our_sentence_is_the_papers_product_of_generalised_householder_matrices(writes):
    mixer, x = product_of(DeltaProduct(writes=writes)), text()
    close(mixer(x)[0], by_hand(mixer, x, lambda token: torch.ones(HEADS)))


@every_number
def test_our_sentence_is_the_papers_gated_product_whose_page_fades_once_a_token(writes):
    mixer, x = product_of(GatedDelta(beta=1.0, limit=2.0, writes=writes)), text()
    rule = mixer.update_rule

    def alphas(token):
        return (-rule.log_rate.exp() * (1 + rule.forget(token).exp()).log()).exp()

    close(mixer(x)[0], by_hand(mixer, x, alphas))


def test_features_may_fade_by_themselves_before_several_writes():
    mixer, x = product_of(FeatureGatedDelta(beta=1.0, limit=2.0, writes=2)), text()
    rule = mixer.update_rule

    def alphas(token):
        paces = (1 + rule.forget(rule.narrow.weight @ token).exp()).log().view(HEADS, HEAD_WIDTH)
        return (-rule.log_rate.exp() * paces).exp()[..., None]

    close(mixer(x)[0], by_hand(mixer, x, alphas))


def test_two_reflections_turn_the_page_and_four_turns_bring_it_back():
    """Mirrors at an angle of 45° turn by 90°, of which one reflection with β = 2 is not capable."""
    upright, slanting = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]).sqrt()
    keys = torch.stack([upright, slanting]).view(1, 2, 1, 2)
    twice = torch.full((1, 2, 1), 2.0)
    page = torch.randn(1, 1, 2, 3)
    turned = [page]
    for _ in range(4):
        _, after = memory_scan(keys, keys, torch.zeros(1, 2, 1, 3), Gates(erase=twice, write=twice), turned[-1])
        turned.append(after)
    close(turned[1][0, 0], torch.tensor([[0.0, -1.0], [1.0, 0.0]]) @ page[0, 0])
    close(turned[4], page)


@pytest.mark.parametrize("rule", (DeltaProduct, GatedDelta))
def test_a_token_that_never_writes_is_refused(rule):
    with pytest.raises(UserError, match="at least once; found 0"):
        rule(writes=0)
