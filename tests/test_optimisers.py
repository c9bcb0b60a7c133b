"""Adagrad, beside torch's own and beside its formula."""

import pytest
import torch
from closeness import close
from torch import nn

from palimpsest.training.adagrad import ClippedAdagrad
from palimpsest.training.optimisers import Adagrad, Stepper


def parameters():
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in ((4, 3), (5,), (2, 1, 1))]


def give_gradients(to, step):
    torch.manual_seed(step)
    for parameter in to:
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize("settings", [{}, {"rate_decay": 0.1, "weight_decay": 0.01, "initial": 0.1}], ids=repr)
def test_without_a_clip_it_is_torchs_adagrad(settings):
    ours, theirs = parameters(), parameters()
    names = {"rate_decay": "lr_decay", "weight_decay": "weight_decay", "initial": "initial_accumulator_value"}
    optimisers = (
        ClippedAdagrad(ours, 0.05, **settings),
        torch.optim.Adagrad(theirs, 0.05, eps=1e-10, **{names[name]: value for name, value in settings.items()}),
    )
    for step in range(6):
        for them, optimiser in zip((ours, theirs), optimisers, strict=True):
            give_gradients(them, step)
            optimiser.step()
        for one, other in zip(ours, theirs, strict=True):
            close(one.data, other.data, 1e-14)


def test_a_clip_shortens_the_step_of_each_long_tensor_and_not_what_is_remembered():
    ours, clip = parameters(), 2.0
    optimiser = ClippedAdagrad(ours, 0.05, clip=clip)
    by_hand, sums = [parameter.detach().clone() for parameter in ours], [torch.zeros(())] * 3
    shortened = set()
    for step in range(6):
        give_gradients(ours, step)
        optimiser.step()
        for number, parameter in enumerate(ours):
            gradient = parameter.grad
            norm = gradient.square().sum().sqrt().item()
            sums[number] = sums[number] + gradient**2
            rate = 0.05 * clip / (norm + 1e-10) if norm > clip else 0.05
            shortened.add(norm > clip)
            by_hand[number] -= rate * gradient / (sums[number].sqrt() + 1e-10)
            close(parameter.data, by_hand[number], 1e-14)
            close(optimiser.state[parameter]["sum"], sums[number], 1e-14)
    assert shortened == {True, False}, "there is something to see"


def test_a_step_never_asks_the_device_for_a_number():
    meta = [nn.Parameter(torch.ones(3, 2, device="meta"))]
    meta[0].grad = torch.ones(3, 2, device="meta")
    ClippedAdagrad(meta, 0.1, clip=0.5).step()  # a meta tensor has no numbers: it would refuse


def test_what_is_remembered_comes_back_and_settings_stay():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    old, new = Adagrad(rate=0.1, clip=1.0).build(first), Adagrad(rate=0.01, clip=0.5, epsilon=1e-8).build(second)
    give_gradients(first.parameters(), 0)
    old.step()
    new.load_state_dict(old.state_dict())
    assert sums_of(new) == sums_of(old)
    for group in new.groups():
        assert (group["whole_rate"], group["clip"], group["epsilon"]) == (0.01, 0.5, 1e-8)


def sums_of(stepper: Stepper) -> list[list[float]]:
    return [state["sum"].flatten().tolist() for state in stepper.optimisers[0].state.values()]
