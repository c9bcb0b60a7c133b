"""Grave et al. 2017, Efficient softmax approximation for GPUs; Baevski and Auli 2019, Adaptive input embeddings."""

from itertools import product

import pytest
import torch
from closeness import close

from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.heads import AdaptiveSoftmax

TOKENS, WIDTH = 13, 8
CUTOFFS = (4, 6, 11)
RANGES = [range(4), range(4, 6), range(6, 11), range(11, 13)]

shapes = pytest.mark.parametrize("divisor, inner", list(product((1, 2), (None, 12))))


def built(divisor, inner):
    embedding = AdaptiveEmbedding(CUTOFFS, divisor, inner).build(TOKENS, WIDTH)
    head = AdaptiveSoftmax(CUTOFFS, divisor, inner).build(TOKENS, WIDTH, embedding)
    for parameter in (*embedding.parameters(), *head.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    return embedding, head


def cluster_of(token):
    return next(number for number, tokens in enumerate(RANGES) if token in tokens)


def row_of(module, token):
    """Where the token's vector is: in its cluster's table, or in the only one."""
    if len(module.tables) == 1:
        return module.tables[0], token
    return module.tables[cluster_of(token)], token - RANGES[cluster_of(token)][0]


def projected(module, hidden, cluster):
    return module.projections[cluster].weight.T @ hidden if len(module.projections) else hidden


def score(head, hidden, token):
    table, row = row_of(head, token)
    return (table.weight[row] @ projected(head, hidden, cluster_of(token)) + table.bias[row]).exp()


def cluster_score(head, hidden, cluster):
    return (head.clusters.weight[cluster - 1] @ projected(head, hidden, 0) + head.clusters.bias[cluster - 1]).exp()


def probability(head, hidden, token):
    """p(token) in the head; p(its cluster) · p(token | its cluster) in a tail."""
    frequent = sum(score(head, hidden, other) for other in RANGES[0])
    first = frequent + sum(cluster_score(head, hidden, cluster) for cluster in (1, 2, 3))
    cluster = cluster_of(token)
    if cluster == 0:
        return score(head, hidden, token) / first
    tail = sum(score(head, hidden, other) for other in RANGES[cluster])
    return cluster_score(head, hidden, cluster) / first * score(head, hidden, token) / tail


@shapes
def test_our_head_is_the_papers_two_levels(divisor, inner):
    _, head = built(divisor, inner)
    hidden = torch.randn(2, TOKENS, WIDTH)
    targets = torch.stack([torch.arange(TOKENS), torch.randperm(TOKENS)])
    expected = [
        [-probability(head, state, token).log() for state, token in zip(states, tokens, strict=True)]
        for states, tokens in zip(hidden, targets.tolist(), strict=True)
    ]
    close(head(hidden, targets), torch.stack([torch.stack(row) for row in expected]))


@shapes
def test_our_prediction_is_the_papers_two_levels(divisor, inner):
    _, head = built(divisor, inner)
    hidden = torch.randn(3, WIDTH)
    expected = [torch.stack([probability(head, state, token) for token in range(TOKENS)]) for state in hidden]
    close(head.log_probabilities(hidden).exp(), torch.stack(expected))


@shapes
def test_our_embedding_is_the_papers(divisor, inner):
    """A vector of the cluster's size, through the cluster's projection; times √width, as in the first Transformer."""
    embedding, _ = built(divisor, inner)
    tokens = torch.stack([torch.arange(TOKENS), torch.randperm(TOKENS)])

    def vector(token):
        table, row = row_of(embedding, token)
        projections = [projection.weight for projection in embedding.projections]
        short = table.weight[row]
        return WIDTH**0.5 * (projections[cluster_of(token) * (divisor > 1)] @ short if projections else short)

    expected = torch.stack([torch.stack([vector(token) for token in row]) for row in tokens.tolist()])
    close(embedding(tokens, torch.zeros_like(tokens)), expected)


def test_vectors_become_shorter_from_cluster_to_cluster():
    embedding, head = built(divisor=2, inner=12)
    assert [tuple(table.weight.shape) for table in embedding.tables] == [(4, 12), (2, 6), (5, 3), (2, 1)]
    assert [tuple(table.weight.shape) for table in head.tables] == [(4, 12), (2, 6), (5, 3), (2, 1)]
    assert [tuple(projection.weight.shape) for projection in head.projections] == [(8, 12), (8, 6), (8, 3), (8, 1)]
