"""Dai et al. 2019, Transformer-XL: the four terms of the relative score, and the memory of the segment before."""

import torch
from closeness import close
from torch import Tensor

from palimpsest.attention.positions import LearnedRelative, SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.mixers import SoftmaxAttention
from palimpsest.state import detach

WIDTH, HEADS, HEAD_WIDTH, MEMORY, LENGTH = 8, 2, 3, 5, 4


def built(positions, **cache):
    mixer = SoftmaxAttention(positions, SegmentCache(MEMORY, **cache), heads=HEADS, head_width=HEAD_WIDTH).build(WIDTH)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return mixer


def sinusoid(distance: int) -> Tensor:
    frequencies = 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    return torch.cat([(distance * frequencies).sin(), (distance * frequencies).cos()])


def by_hand(x: Tensor, memory: Tensor, mixer, score, sees) -> Tensor:
    """One row: for each query the softmax over memory and segment, summed in the order of the paper."""
    context = torch.cat([memory, x])
    w_q, w_k, w_v = mixer.project.weight.unflatten(0, (3, HEADS, HEAD_WIDTH))
    out = []
    for i, token in enumerate(x):
        place, heads = len(memory) + i, []
        for h in range(HEADS):
            q = w_q[h] @ token
            keys = [j for j in range(place + 1) if sees(place - j)]
            scores = torch.stack([score(h, q, w_k[h] @ context[j], place - j) for j in keys]) / HEAD_WIDTH**0.5
            heads.append(sum(a * (w_v[h] @ context[j]) for a, j in zip(scores.softmax(0), keys, strict=True)))
        out.append(mixer.out.weight @ torch.cat(heads))
    return torch.stack(out)


def check(mixer, score, sees=lambda distance: True):
    """Three segments: no memory yet, then one that is not full, then one that has forgotten the first."""
    memory, state = torch.zeros(0, WIDTH), None
    for length in (LENGTH, LENGTH - 1, LENGTH):
        x = torch.randn(1, length, WIDTH)
        y, state = mixer(x, state)
        close(y[0], by_hand(x[0], memory, mixer, score, sees))
        memory = torch.cat([memory, x[0]])[-MEMORY:]
        close(state.hidden[0, MEMORY - len(memory) :], memory)


def relative_score(mixer, clamp=None):
    u, v = mixer.positions.biases.content, mixer.positions.biases.place
    w_r = mixer.positions.project.weight.unflatten(0, (HEADS, HEAD_WIDTH))

    def score(h, q, k, distance):
        r = w_r[h] @ sinusoid(distance if clamp is None else min(distance, clamp))
        return q @ k + q @ r + u[h] @ k + v[h] @ r  # (a) + (b) + (c) + (d)

    return score


def test_our_sentence_is_the_papers_attention_with_memory():
    mixer = built(SinusoidalRelative())
    check(mixer, relative_score(mixer))


def test_clamped_distances_look_like_the_largest():
    mixer = built(SinusoidalRelative(clamp=2))
    check(mixer, relative_score(mixer, clamp=2))


def test_with_same_length_every_query_sees_the_same_number_of_tokens():
    mixer = built(SinusoidalRelative(), same_length=True)
    check(mixer, relative_score(mixer), sees=lambda distance: distance < MEMORY)


def test_a_learned_vector_and_bias_for_each_distance():
    mixer = built(LearnedRelative(reach=3))
    table, bias, content = mixer.positions.table, mixer.positions.bias, mixer.positions.content

    def score(h, q, k, distance):
        row = min(distance, 2)
        return (q + content[h]) @ k + q @ table[row, h] + bias[row, h]

    check(mixer, score)


def test_tokens_that_are_read_again_are_not_kept():
    mixer = built(SinusoidalRelative(), extra=2)
    x = torch.randn(1, 9, WIDTH)
    once, state = mixer(x[:, :4])
    again, state = mixer(x[:, 2:], state)
    assert int(state.seen) == 7
    close(state.hidden[0], x[0, 2:7])
    close(again[:, :2], once[:, 2:])  # the same tokens in the same context


def test_the_projections_learn_from_the_memory_too():
    mixer, x = built(SinusoidalRelative()), torch.randn(1, 8, WIDTH)
    _, state = mixer(x[:, :4])
    y, _ = mixer(x[:, 4:], detach(state))
    y.square().sum().backward()
    ours = mixer.project.weight.grad.clone()
    mixer.zero_grad()
    by_hand(x[0, 4:], x[0, :4], mixer, relative_score(mixer), lambda distance: True).square().sum().backward()
    close(ours, mixer.project.weight.grad)
