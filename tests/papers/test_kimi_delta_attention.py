"""Kimi Team 2025, Kimi Linear: Kimi Delta Attention, whose page fades at another pace in every feature of the key."""

import torch
from by_hand import LENGTH, WIDTH, text, with_large_weights
from closeness import close

from palimpsest.memory.convolutions import ShortConvolution
from palimpsest.memory.feature_maps import DPFP, Silu
from palimpsest.memory.key_scales import SumToOne, UnitNorm
from palimpsest.memory.read_outs import Plain, SigmoidGatedNorm
from palimpsest.memory.update_rules import FeatureGatedDelta
from palimpsest.mixers.fast_weight import FastWeight

HEADS, HEAD_WIDTH = 4, WIDTH // 4
KIMI_DELTA_ATTENTION = FastWeight(
    Silu(),
    UnitNorm(),
    FeatureGatedDelta(),
    SigmoidGatedNorm(),
    convolution=ShortConvolution(4),
    value_map=Silu(),
)


def silu(x):
    return x * x.sigmoid()


def unit(x):
    return x / (x @ x + 1e-6).sqrt()


def convolved(row, taps):
    """Each channel over its own last four tokens, the present one last."""
    padded = torch.cat([torch.zeros(3, row.shape[1]), row])
    return torch.stack([(padded[t : t + 4].T * taps).sum(-1) for t in range(len(row))])


def test_our_sentence_is_the_papers_attention():
    """S ← (I − β k kᵀ) Diag(α) S + β k vᵀ; what q reads is normed, and gated by sigmoid of a narrow projection."""
    mixer, x = with_large_weights(KIMI_DELTA_ATTENTION), text()
    rule, read_out = mixer.update_rule, mixer.read_out
    rows = []
    for row in x:
        projected = silu(convolved(row @ mixer.project.weight.T, mixer.convolution.taps))
        q, k, v = projected.view(LENGTH, 3, HEADS, HEAD_WIDTH).unbind(1)
        paces = (1 + (rule.forget.weight @ rule.narrow.weight @ row.T + rule.forget.bias[:, None]).exp()).log()
        alphas = (-rule.log_rate.exp() * paces.T.view(LENGTH, HEADS, HEAD_WIDTH)).exp()
        betas = rule.beta(row).sigmoid()
        gates = (row @ read_out.narrow.weight.T @ read_out.gate.weight.T + read_out.gate.bias).sigmoid()
        heads = []
        for h in range(HEADS):
            page, reads = torch.zeros(HEAD_WIDTH, HEAD_WIDTH), []
            for t in range(LENGTH):
                key = unit(k[t, h])
                page = alphas[t, h].diag() @ page
                page = (torch.eye(HEAD_WIDTH) - betas[t, h] * torch.outer(key, key)) @ page
                page = page + betas[t, h] * torch.outer(key, v[t, h])
                read = unit(q[t, h]) @ page
                reads.append(read / (read.square().mean() + 1e-5).sqrt() * read_out.norm.weight)
            heads.append(torch.stack(reads))
        rows.append((torch.cat(heads, dim=-1) * gates) @ mixer.out.weight.T)
    close(mixer(x)[0], torch.stack(rows))


def test_before_training_every_feature_keeps_what_was_asked_for():
    rule = FeatureGatedDelta(beta=0.25, keep=0.9).build(width=8, heads=2, features=3)
    log_keep, erase, write, _ = rule(torch.zeros(1, 1, 8)).opened()
    close(log_keep.exp(), torch.full((1, 1, 2, 3), 0.9))
    close(erase, torch.full((1, 1, 2), 0.25))
    close(write, erase)


def test_there_is_a_pace_for_each_feature_however_many_the_map_makes_of_a_key():
    mixer = FastWeight(DPFP(nu=2), SumToOne(), FeatureGatedDelta(rank=3), Plain()).build(WIDTH)
    assert mixer.update_rule.narrow.weight.shape == (3, WIDTH)
    assert mixer.update_rule(text()).log_keep.shape == (2, LENGTH, HEADS, 4 * HEAD_WIDTH)
