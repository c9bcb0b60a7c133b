"""Peng et al. 2021, Random feature attention: the gated variant, with one gate for keeping and writing."""

import pytest
import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import Favor
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.memory.update_rules import GatedSum
from palimpsest.mixers.fast_weight import FastWeight


@pytest.mark.parametrize("read_out", (Plain(), Normalised(epsilon=0.0)), ids=repr)
def test_our_sentence_is_the_papers_gated_recurrence(read_out):
    mixer, x = with_large_weights(FastWeight(Favor(directions=6), Unscaled(), GatedSum(), read_out)), text()
    features = mixer.feature_map

    def gated(queries, keys, values, row, head):
        """S ← g S + (1 − g) φ(k) ⊗ v and z ← g z + (1 − g) φ(k); φ(q) reads S, and is divided by φ(q)·z."""
        gates = mixer.update_rule.keep(row)[:, head].sigmoid()
        s, z = torch.zeros(12, values.shape[1]), torch.zeros(12)
        for query, key, value, gate in zip(features(queries), features(keys), values, gates, strict=True):
            s = gate * s + (1 - gate) * torch.outer(key, value)
            z = gate * z + (1 - gate) * key
            yield query @ s / (query @ z if isinstance(read_out, Normalised) else 1)

    close(mixer(x)[0], by_hand(mixer, x, gated))
