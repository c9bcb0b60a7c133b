"""What is held between bounds has a gradient at them, whatever torch thinks of its own clamp."""

import pytest
import torch

from palimpsest.attention.spans import shares
from palimpsest.bounds import bounded
from palimpsest.memory.feature_maps import EluPlusOne
from palimpsest.memory.key_scales import SumToOne

NUMBERS = [-2.0, -0.0, 0.0, 0.3, 1.0, 1.5, float("inf"), float("nan")]


def slope(door, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(door(x).sum(), x)[0]


@pytest.mark.parametrize("bounds", [{"least": 0.0}, {"most": 1.0}, {"least": 0.0, "most": 1.0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_numbers_are_clamped(bounds, dtype):
    x = torch.tensor(NUMBERS, dtype=dtype)
    expected = x.clamp(bounds.get("least"), bounds.get("most"))
    torch.testing.assert_close(bounded(x, **bounds), expected, rtol=0, atol=0, equal_nan=True)


def test_at_a_bound_there_is_a_gradient_and_beyond_it_none():
    x = torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.1])
    assert slope(lambda x: bounded(x, least=0.0, most=1.0), x).tolist() == [0, 1, 1, 1, 0]
    assert slope(lambda x: bounded(x, least=0.0), x).tolist() == [0, 1, 1, 1, 1]
    assert slope(lambda x: bounded(x, most=1.0), x).tolist() == [1, 1, 1, 1, 0]


def test_a_span_of_nothing_may_grow_and_a_whole_one_shrink():
    ratios, weights = torch.tensor([0.0, 1.0]), torch.rand(2, 40, dtype=torch.float64)

    def weighed(ratios):
        return (shares(ratios, 32, 8, 40) * weights).sum()

    ratios = ratios.double()
    learned = slope(weighed, ratios)
    assert learned.gt(0).all()
    torch.testing.assert_close(torch.func.grad(weighed)(ratios), learned)


def test_features_of_nothing_have_the_slope_of_both_sides():
    assert slope(EluPlusOne().map, torch.zeros(3)).tolist() == [1, 1, 1]
    least = torch.full((2,), SumToOne().floor / 2)
    assert slope(lambda x: SumToOne()(x)[0], least)[1] < 0  # a sum that is the least there may be is one
