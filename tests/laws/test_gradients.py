"""Every memory that can be said has the gradient that small steps show: map × rule × read-out, fresh and carried."""

from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from torch.autograd import gradcheck

from palimpsest.memory.feature_maps import FeatureMap
from palimpsest.memory.key_scales import UnitNorm
from palimpsest.memory.read_outs import ReadOut
from palimpsest.memory.update_rules import UpdateRule
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.spec import Spec
from palimpsest.state import leaves, refill

WIDTH, HEADS, LENGTH = 8, 2, 3  # heads of four: products of fewer numbers are often all zero


def smooth(part: Spec) -> Spec:
    """Where something is divided by a sum that may be zero, small steps must be small beside the epsilon."""
    return replace(part, epsilon=0.1) if "epsilon" in {field.name for field in fields(part)} else part


PARTS = product(*([smooth(variant()) for variant in kind.variants()] for kind in (FeatureMap, UpdateRule, ReadOut)))
MEMORIES = [
    FastWeight(feature_map, UnitNorm(), rule, read_out, heads=HEADS)
    for feature_map, rule, read_out in PARTS
    if feature_map.non_negative or not (rule.counts_keys or read_out.counts_keys)
]


def brief(memory: FastWeight) -> str:
    return " ".join(type(part).__name__ for part in (memory.feature_map, memory.update_rule, memory.read_out))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["fresh", "carried"])
@pytest.mark.parametrize("spec", MEMORIES, ids=brief)
def test_the_gradient_is_what_small_steps_show(spec, page):
    mixer = spec.build(WIDTH)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, LENGTH, WIDTH, requires_grad=True)
    before = None if page == "fresh" else mixer(torch.randn(1, 2, WIDTH))[1]
    numbers = [] if before is None else [leaf.detach() for leaf in leaves(before)]
    given = [number.requires_grad_() if number.is_floating_point() else number for number in numbers]
    learned = list(mixer.parameters())

    def outcome(x, *others):
        y, after = mixer(x, None if before is None else refill(before, others[: len(given)]))
        return (y, *(leaf for leaf in leaves(after) if leaf.is_floating_point()))

    assert gradcheck(outcome, (x, *given, *learned), fast_mode=True)
