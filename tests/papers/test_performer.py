"""Choromanski et al. 2021, Rethinking attention with Performers: FAVOR+."""

from dataclasses import replace

import torch
from by_hand import by_hand, text, with_large_weights
from closeness import close

from palimpsest.memory.feature_maps import Favor, StabilisedFavor
from palimpsest.memory.key_scales import Unscaled
from palimpsest.memory.read_outs import Normalised
from palimpsest.memory.update_rules import Sum
from palimpsest.mixers.fast_weight import FastWeight

PERFORMER = FastWeight(Favor(directions=6, epsilon=1e-4), Unscaled(), Sum(), Normalised(epsilon=1e-6))


def test_our_sentence_is_the_papers_attention_with_positive_random_features():
    mixer, x = with_large_weights(PERFORMER), text()
    directions = mixer.feature_map.matrix.T

    def features(z):
        """exp(−|z|²/2) times exp(ω·z) and exp(−ω·z) for every direction ω; the ε is that of the authors' code."""
        waves = [(sign * (omega @ z) - z @ z / 2).exp() for sign in (1, -1) for omega in directions]
        return (torch.stack(waves) + 1e-4) / len(waves) ** 0.5

    def attention(queries, keys, values, row, head):
        for i, query in enumerate(queries):
            weights = [features(query) @ features(keys[j]) for j in range(i + 1)]
            yield sum(weight * values[j] for j, weight in enumerate(weights)) / (sum(weights) + 1e-6)

    close(mixer(x)[0], by_hand(mixer, x, attention))


def test_the_stabilised_sentence_is_the_same_attention():
    """Each query's largest exponent may be taken out, and of all keys so far the largest: both cancel."""
    read_out = Normalised(epsilon=0.0)
    mixer = with_large_weights(replace(PERFORMER, feature_map=StabilisedFavor(6, epsilon=0.0), read_out=read_out))
    x, directions = text(), mixer.feature_map.matrix.T

    def attention(queries, keys, values, row, head):
        for i, query in enumerate(queries):
            weights = [
                sum(
                    (sign * (omega @ (query + key)) - (query @ query + key @ key) / 2).exp()
                    for sign in (1, -1)
                    for omega in directions
                )
                for key in keys[: i + 1]
            ]
            yield sum(weight * values[j] for j, weight in enumerate(weights)) / sum(weights)

    close(mixer(x)[0], by_hand(mixer, x, attention))
