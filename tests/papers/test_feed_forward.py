"""Shazeer 2020, GLU variants improve Transformer; So et al. 2021, Primer; Hendrycks and Gimpel 2016, GELU."""

from math import sqrt

import pytest
import torch
from closeness import close

from palimpsest.models.feed_forward import GatedSilu, Gelu, Relu, SquaredRelu


def swiglu(x, up, down):
    """(swish(x W) ⊙ x V) W₂"""
    (w, v), (b, c) = up.weight.chunk(2), up.bias.chunk(2)
    gate = x @ w.T + b
    return (gate / (1 + (-gate).exp()) * (x @ v.T + c)) @ down.weight.T + down.bias


def squared_relu(x, up, down):
    """max(x W, 0)² W₂"""
    return (x @ up.weight.T + up.bias).clamp(min=0) ** 2 @ down.weight.T + down.bias


def relu(x, up, down):
    """max(x W + b, 0) W₂ + b₂"""
    return (x @ up.weight.T + up.bias).clamp(min=0) @ down.weight.T + down.bias


def gelu(x, up, down):
    """x Φ(x), where Φ is the normal distribution"""
    inner = x @ up.weight.T + up.bias
    return (inner * (1 + torch.erf(inner / sqrt(2))) / 2) @ down.weight.T + down.bias


@pytest.mark.parametrize("spec, paper", [(GatedSilu, swiglu), (SquaredRelu, squared_relu), (Relu, relu), (Gelu, gelu)])
def test_our_part_is_the_papers(spec, paper):
    module, x = spec(inner=12).build(8), 3 * torch.randn(2, 5, 8)
    close(module(x), paper(x, module.up, module.down))
