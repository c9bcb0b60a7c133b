"""Yang et al. 2024, Parallelizing linear transformers with the delta rule over sequence length."""

import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import Delta
from palimpsest.mixers.fast_weight import FastWeight

DELTA_NET = FastWeight(Silu(), UnitNorm(epsilon=0.0), Delta(), Plain())


def unit(x):
    """silu, then length one."""
    x = x * x.sigmoid()
    return x / x.norm()


def test_our_sentence_is_the_papers_product_of_householder_matrices():
    mixer, x = with_large_weights(DELTA_NET), text()

    def delta_net(queries, keys, values, row, head):
        """S ← S (I − β k kᵀ) + β v kᵀ, o = S q."""
        betas = mixer.update_rule.beta(row)[:, head].sigmoid()
        s = torch.zeros(values.shape[1], keys.shape[1])
        for query, key, value, beta in zip(queries, keys, values, betas, strict=True):
            key = unit(key)
            s = s @ (torch.eye(len(key)) - beta * torch.outer(key, key)) + beta * torch.outer(value, key)
            yield s @ unit(query)

    close(mixer(x)[0], by_hand(mixer, x, delta_net))


def test_our_sentence_is_the_papers_pseudo_values_under_a_mask():
    mixer, x = with_large_weights(DELTA_NET), text()

    def delta_net(queries, keys, values, row, head):
        """u_t = β_t (v_t − Σ_{i<t} (k_i·k_t) u_i), o_t = Σ_{i≤t} (q_t·k_i) u_i."""
        betas = mixer.update_rule.beta(row)[:, head].sigmoid()
        keys = [unit(key) for key in keys]
        pseudo = []
        for t, query in enumerate(queries):
            known = sum(((keys[i] @ keys[t]) * pseudo[i] for i in range(t)), torch.zeros_like(values[t]))
            pseudo.append(betas[t] * (values[t] - known))
            yield sum((unit(query) @ keys[i]) * pseudo[i] for i in range(t + 1))

    close(mixer(x)[0], by_hand(mixer, x, delta_net))
