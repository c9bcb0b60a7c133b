"""Katharopoulos et al. 2020, Transformers are RNNs: fast autoregressive transformers with linear attention."""

import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close
from torch.nn.functional import elu

from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers.fast_weight import FastWeight

LINEAR_TRANSFORMER = FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised(epsilon=1e-6))


def attention(queries, keys, values, row, head):
    """A weighted mean of the values so far, each weight the kernel φ(q)·φ(k); the ε is that of the authors' code."""
    for i, query in enumerate(queries):
        weights = [(elu(query) + 1) @ (elu(keys[j]) + 1) for j in range(i + 1)]
        yield sum(weight * values[j] for j, weight in enumerate(weights)) / (sum(weights) + 1e-6)


def recurrence(queries, keys, values, row, head):
    """The same as a recurrent network, with the attention memory s and the normaliser memory z."""
    s, z = torch.zeros(keys.shape[1], values.shape[1]), torch.zeros(keys.shape[1])
    for query, key, value in zip(queries, keys, values, strict=True):
        s = s + torch.outer(elu(key) + 1, value)
        z = z + elu(key) + 1
        yield (elu(query) + 1) @ s / ((elu(query) + 1) @ z + 1e-6)


def test_our_sentence_is_the_papers_attention_and_its_recurrence():
    mixer, x = with_large_weights(LINEAR_TRANSFORMER), text()
    y, _ = mixer(x)
    close(y, by_hand(mixer, x, attention))
    close(y, by_hand(mixer, x, recurrence))
