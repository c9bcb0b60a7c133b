"""Yang, Kautz and Hatamizadeh 2025, Gated delta networks: the core, without its short convolutions."""

import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import GatedNorm
from palimpsest.memory.update_rules import GatedDelta
from palimpsest.mixers.fast_weight import FastWeight

GATED_DELTA_NET = FastWeight(Silu(), UnitNorm(epsilon=1e-6), GatedDelta(), GatedNorm(epsilon=1e-5))


def unit(x):
    x = x * x.sigmoid()
    return x / (x @ x + 1e-6).sqrt()


def test_our_sentence_is_the_papers_gated_delta_rule():
    mixer, x = with_large_weights(GATED_DELTA_NET), text()
    rule, read_out = mixer.update_rule, mixer.read_out

    def gated_delta_net(queries, keys, values, row, head):
        """S ← S α (I − β k kᵀ) + β v kᵀ; what q reads is normed and gated by silu of the input."""
        mine = slice(head * mixer.head_width, (head + 1) * mixer.head_width)
        betas = rule.beta(row)[:, head].sigmoid()
        alphas = (-rule.log_rate[head].exp() * (1 + rule.forget(row)[:, head].exp()).log()).exp()
        gates = (row @ read_out.gate.weight.T)[:, mine]
        s = torch.zeros(values.shape[1], keys.shape[1])
        for t, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
            key = unit(key)
            s = s @ (alphas[t] * (torch.eye(len(key)) - betas[t] * torch.outer(key, key)))
            s = s + betas[t] * torch.outer(value, key)
            read = s @ unit(query)
            normed = read / (read.square().mean() + 1e-5).sqrt() * read_out.norm.weight
            yield normed * gates[t] * gates[t].sigmoid()

    close(mixer(x)[0], by_hand(mixer, x, gated_delta_net))


def test_before_training_the_page_keeps_what_was_asked_for():
    rule = GatedDelta(beta=0.25, keep=0.9).build(width=8, heads=2)
    log_keep, erase, write = rule(torch.zeros(1, 1, 8))
    close(log_keep.exp(), torch.full((1, 1, 2), 0.9))
    close(erase, torch.full((1, 1, 2), 0.25))
    close(write, erase)
