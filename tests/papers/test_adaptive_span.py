"""Sukhbaatar et al. 2019: adaptive attention span, and all-attention with persistent vectors."""

import torch
from closeness import close

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.attention.positions import SharedRelative
from palimpsest.attention.spans import Adaptive, Unlimited
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.mixers import SoftmaxAttention

WIDTH, HEADS, HEAD_WIDTH, LIMIT, RAMP, LENGTH, VECTORS = 6, 2, 3, 10, 4, 14, 5


def built(spec):
    mixer = spec.build(WIDTH)
    for name, parameter in mixer.named_parameters():
        torch.nn.init.normal_(parameter, std=0.6)
        if name.endswith("ratio"):
            parameter.data = torch.tensor([0.13, 0.42])
    return mixer


def soft_mask(distance, z):
    """m_z(x) = min(max((R + z − x) / R, 0), 1)"""
    return min(max((RAMP + z - distance) / RAMP, 0.0), 1.0)


def by_hand(mixer, x, score, mask, vectors=None):
    w_q, w_k, w_v = mixer.project.weight.unflatten(0, (3, HEADS, HEAD_WIDTH))
    out = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            q = w_q[h] @ x[i]
            weights = [mask(h, i - j) * (score(q, w_k[h] @ x[j], i - j) / HEAD_WIDTH**0.5).exp() for j in range(i + 1)]
            values = [w_v[h] @ x[j] for j in range(i + 1)]
            if vectors is not None:
                keys, more = vectors
                weights += [(q @ key / HEAD_WIDTH**0.5).exp() for key in keys[h]]
                values += list(more[h])
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
        out.append(mixer.out.weight @ torch.cat(heads))
    return torch.stack(out)


def place_score(mixer):
    table = mixer.positions.vectors.table
    return lambda q, k, distance: q @ k + q @ table[min(distance, len(table) - 1)]


def test_our_sentence_is_the_papers_attention_with_a_soft_mask():
    mixer, x = (
        built(SoftmaxAttention(SharedRelative(LIMIT), Adaptive(LIMIT, RAMP), heads=HEADS)),
        torch.randn(1, LENGTH, WIDTH),
    )
    spans = mixer.span.ratio * LIMIT
    close(
        mixer(x)[0][0],
        by_hand(mixer, x[0], place_score(mixer), lambda h, d: soft_mask(d, spans[h]) if d < LIMIT else 0.0),
    )


def test_our_sentence_is_the_papers_all_attention():
    mixer = built(SoftmaxAttention(SharedRelative(LIMIT), Unlimited(), PersistentVectors(VECTORS), heads=HEADS))
    x = torch.randn(1, LENGTH, WIDTH)
    # as kept, the vectors are smaller: by the root of the width, and of their number
    vectors = mixer.persistent.keys * HEAD_WIDTH**0.5, mixer.persistent.values * VECTORS**0.5
    close(mixer(x)[0][0], by_hand(mixer, x[0], place_score(mixer), lambda h, d: 1.0, vectors))


def test_the_penalty_is_the_mean_span_in_tokens():
    mixer = built(SoftmaxAttention(SharedRelative(LIMIT), Adaptive(LIMIT, RAMP, penalty=0.01), heads=HEADS))
    close(mixer.span.penalty(), 0.01 * (mixer.span.ratio * LIMIT).mean())


def test_the_gradient_pulls_a_span_through_its_ramp():
    mixer = built(SoftmaxAttention(SharedRelative(LIMIT), Adaptive(LIMIT, RAMP), heads=HEADS))
    mixer(torch.randn(1, LENGTH, WIDTH))[0].square().sum().backward()
    assert (mixer.span.ratio.grad != 0).all()


def test_the_original_differs_only_in_its_own_token_and_its_empty_slots():
    """Where the cache is full and nothing weighs on the tokens the two see differently, they agree."""
    ours = built(SoftmaxAttention(SharedRelative(LIMIT), Adaptive(LIMIT, RAMP), heads=HEADS))
    theirs = AdaptivePastAttention(LIMIT, heads=HEADS, ramp=RAMP).build(WIDTH)
    names = ("queries", "keys", "values")
    theirs.load_state_dict(
        {
            **{f"{name}.weight": weight for name, weight in zip(names, ours.project.weight.chunk(3), strict=True)},
            "out.weight": ours.out.weight,
            "vectors.table": ours.positions.vectors.table,
            "ratio": ours.span.ratio,
        }
    )
    x = torch.randn(1, LENGTH, WIDTH)
    past = x[0, :-1]  # the last query of the original sees these, at distances from one on, as ours from zero on
    query = theirs.queries.weight @ x[0, -1]
    y, _ = theirs(x)
    spans = ours.span.ratio * LIMIT

    w_k, w_v = ours.project.weight.unflatten(0, (3, HEADS, HEAD_WIDTH))[1:]
    heads = []
    for h in range(HEADS):
        q = query.unflatten(0, (HEADS, HEAD_WIDTH))[h]
        distances = range(LIMIT)
        tokens = [past[-1 - d] for d in distances]
        scores = [
            (q @ (w_k[h] @ token) + q @ ours.positions.vectors.table[d]) / HEAD_WIDTH**0.5
            for d, token in zip(distances, tokens, strict=True)
        ]
        weights = [soft_mask(d, spans[h]) * score.exp() for d, score in zip(distances, scores, strict=True)]
        heads.append(sum(w * (w_v[h] @ token) for w, token in zip(weights, tokens, strict=True)) / sum(weights))
    close(y[0, -1], theirs.out.weight @ torch.cat(heads), 1e-7)  # the original adds a hundred-millionth to the sum
