"""Sun et al. 2023, Retentive network: a memory that fades at a constant rate in each head."""

import torch
from by_hand import LENGTH, by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import Identity
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Plain
from palimpsest.memory.update_rules import Decay
from palimpsest.mixers.fast_weight import FastWeight

RETENTION = FastWeight(Identity(), Unscaled(), Decay(), Plain())


def test_our_sentence_is_the_papers_parallel_and_recurrent_retention():
    mixer, x = with_large_weights(RETENTION), text()
    rates = mixer.update_rule.keep.sigmoid()

    def parallel(queries, keys, values, row, head):
        """(Q Kᵀ ⊙ D) V, where D_nm = γⁿ⁻ᵐ for n ≥ m and zero elsewhere."""
        distances = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        fading = torch.where(distances >= 0, rates[head] ** distances.clamp(min=0), 0.0)
        yield from (queries @ keys.T * fading) @ values

    def recurrent(queries, keys, values, row, head):
        """S ← γ S + kᵀ v, read by q."""
        s = torch.zeros(keys.shape[1], values.shape[1])
        for query, key, value in zip(queries, keys, values, strict=True):
            s = rates[head] * s + torch.outer(key, value)
            yield query @ s

    y, _ = mixer(x)
    close(y, by_hand(mixer, x, parallel))
    close(y, by_hand(mixer, x, recurrent))


def test_before_training_heads_forget_at_rates_from_the_shortest_to_the_longest_lifetime():
    rule = Decay(shortest=4.0, longest=64.0).build(width=8, heads=3, features=4)
    close(rule.keep.sigmoid() ** torch.tensor([4.0, 16.0, 64.0]), torch.full((3,), 1 / torch.e))
