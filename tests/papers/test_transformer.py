"""Vaswani et al. 2017, Attention is all you need; Beltagy et al. 2020, Longformer, for the sliding window."""

from math import cos, sin

import pytest
import torch
from by_hand import LENGTH, WIDTH, by_hand, text, with_large_weights
from closeness import close

from palimpsest.attention.positions import NoPositions, Sinusoidal
from palimpsest.attention.spans import Fixed, Unlimited
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.embeddings import TokenEmbedding


def position(place):
    """PE(place, 2i) = sin(place / 10000^(2i/d)), PE(place, 2i + 1) = its cosine; here the sines come first."""
    angles = [place / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return torch.tensor([sin(angle) for angle in angles] + [cos(angle) for angle in angles])


def attention_within(window):
    """softmax(Q Kᵀ / √d) V over the last `window` tokens."""

    def attention(queries, keys, values, row, head):
        for i, query in enumerate(queries):
            seen = range(max(0, i + 1 - window), i + 1)
            weights = [(query @ keys[j] / len(query) ** 0.5).exp() for j in seen]
            yield sum(weight * values[j] for weight, j in zip(weights, seen, strict=True)) / sum(weights)

    return attention


def test_our_sentence_is_the_papers_attention_under_the_causal_mask():
    mixer, x = with_large_weights(SoftmaxAttention(NoPositions(), Unlimited())), text()
    close(mixer(x)[0], by_hand(mixer, x, attention_within(LENGTH)))


def test_our_sentence_is_the_papers_attention_of_inputs_with_positions():
    mixer, x = with_large_weights(SoftmaxAttention(Sinusoidal(), Unlimited())), text()
    placed = x + torch.stack([position(place) for place in range(LENGTH)])
    close(mixer(x)[0], by_hand(mixer, placed, attention_within(LENGTH)))


@pytest.mark.parametrize("window", (1, 2, 3, LENGTH, LENGTH + 1))
def test_a_fixed_span_is_a_sliding_window(window):
    mixer, x = with_large_weights(SoftmaxAttention(NoPositions(), Fixed(window))), text()
    close(mixer(x)[0], by_hand(mixer, x, attention_within(window)))


def test_our_embedding_is_the_papers():
    """√d times the learned vector, plus the position."""
    module = TokenEmbedding(scale=WIDTH**0.5, positions=Sinusoidal()).build(tokens=11, width=WIDTH)
    tokens = torch.randint(11, (1, LENGTH))
    expected = [WIDTH**0.5 * module.table.weight[token] + position(place) for place, token in enumerate(tokens[0])]
    close(module(tokens, torch.arange(LENGTH)[None])[0], torch.stack(expected))
