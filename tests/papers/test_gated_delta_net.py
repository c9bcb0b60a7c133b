"""Yang, Kautz and Hatamizadeh 2025, Gated delta networks: the rule by itself, then the whole of it."""

from dataclasses import replace

import pytest
import torch
from by_hand import LENGTH, by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import GatedNorm
from palimpsest.memory.update_rules import GatedDelta
from palimpsest.mixers.fast_weight import FastWeight

CORE = FastWeight(Silu(), UnitNorm(epsilon=1e-6), GatedDelta(), GatedNorm(epsilon=1e-5))
GATED_DELTA_NET = replace(CORE, convolution=ShortConvolution(4), value_map=Silu())


def unit(x):
    x = x * x.sigmoid()
    return x / (x @ x + 1e-6).sqrt()


def test_our_sentence_is_the_papers_gated_delta_rule():
    mixer, x = with_large_weights(CORE), text()
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
    rule = GatedDelta(beta=0.25, keep=0.9).build(width=8, heads=2, features=4)
    log_keep, erase, write, _ = rule(torch.zeros(1, 1, 8)).opened()
    close(log_keep.exp(), torch.full((1, 1, 2), 0.9))
    close(erase, torch.full((1, 1, 2), 0.25))
    close(write, erase)


def silu(x):
    return x * x.sigmoid()


@pytest.mark.parametrize(
    "sizes",
    (
        {},
        {"head_width": 3, "value_width": 6},  # as the paper has it: keys of three quarters, values twice as wide
        {"key_heads": 2},  # grouped value heads
        {"key_heads": 1, "head_width": 5, "value_width": 2},
    ),
    ids=repr,
)
def test_our_sentence_is_the_papers_layer(sizes):
    """Projections, convolutions, silu of all three, unit keys and queries, the gated rule, norm and gate."""
    mixer, x = with_large_weights(replace(GATED_DELTA_NET, **sizes)), text()
    rule, read_out, heads, key_heads = mixer.update_rule, mixer.read_out, 4, sizes.get("key_heads", 4)
    wide, deep = sizes.get("head_width", 4), sizes.get("value_width", sizes.get("head_width", 4))
    rows = []
    for row in x:
        padded = torch.cat([torch.zeros(3, mixer.project.out_features), row @ mixer.project.weight.T])
        taps = mixer.convolution.taps
        convolved = torch.stack([(padded[t : t + 4].T * taps).sum(-1) for t in range(LENGTH)])
        q, k, v = silu(convolved).split([key_heads * wide, key_heads * wide, heads * deep], dim=-1)
        q, k, v = q.view(LENGTH, key_heads, wide), k.view(LENGTH, key_heads, wide), v.view(LENGTH, heads, deep)
        alphas = (-rule.log_rate.exp() * (1 + rule.forget(row).exp()).log()).exp()
        betas, gates = rule.beta(row).sigmoid(), silu(row @ read_out.gate.weight.T).view(LENGTH, heads, deep)
        outputs = []
        for h in range(heads):
            s, reads, group = torch.zeros(deep, wide), [], h * key_heads // heads
            for t in range(LENGTH):
                key, query = (z[t, group] / (z[t, group].square().sum() + 1e-6).sqrt() for z in (k, q))
                s = s @ (alphas[t, h] * (torch.eye(wide) - betas[t, h] * torch.outer(key, key)))
                s = s + betas[t, h] * torch.outer(v[t, h], key)
                read = s @ query
                normed = read / (read.square().mean() + 1e-5).sqrt() * read_out.norm.weight
                reads.append(normed * gates[t, h])
            outputs.append(torch.stack(reads))
        rows.append(torch.cat(outputs, dim=-1) @ mixer.out.weight.T)
    close(mixer(x)[0], torch.stack(rows))
