"""Su et al. 2021, RoFormer: enhanced transformer with rotary position embedding."""

import torch
from by_hand import LENGTH, by_hand, text, with_large_weights
from closeness import close

from palimpsest.attention.positions import Rotary
from palimpsest.attention.spans import Unlimited
from palimpsest.mixers.softmax_attention import SoftmaxAttention


def turned(x, place):
    """x as d/2 complex numbers, the i-th multiplied by exp(i · place · 10000^(−2i/d)); pairs are one half apart."""
    half = len(x) // 2
    angles = place * 10000.0 ** (-torch.arange(half) / half)
    return torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half), angles)


def attention(queries, keys, values, row, head):
    """Scores are the real part of ⟨q, k*⟩."""
    for i, query in enumerate(queries):
        scores = [(turned(query, i) * turned(keys[j], j).conj()).sum().real for j in range(i + 1)]
        yield (torch.stack(scores) / len(query) ** 0.5).softmax(0) @ values[: i + 1]


def test_our_sentence_is_the_papers_attention_in_complex_numbers():
    mixer, x = with_large_weights(SoftmaxAttention(Rotary(), Unlimited())), text()
    close(mixer(x)[0], by_hand(mixer, x, attention))


def test_scores_depend_on_distances_only():
    query, key = torch.randn(2, 1, 1, 1, 8)
    for distance in range(LENGTH):
        places, turn = torch.arange(0, 10_000, 1_111), Rotary().build(8, heads=1, head_width=8).turn
        scores = [(turn(query, place.view(1, 1) + distance) * turn(key, place.view(1, 1))).sum() for place in places]
        close(torch.stack(scores), scores[0].expand(len(scores)))
