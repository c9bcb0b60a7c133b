"""Parts of a sequence that start at once: what they are put together to is the definition, however they are cut."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from forms import forgetting
from test_fused_scan import DEVICE, KEEPS, USUAL, all_near, as_good_as_rounded, drawn, outcome
from torch import Tensor

from palimpsest.kernels.fused import scan
from palimpsest.kernels.fused.parts import parts_kernel, way_between

# tokens in chunks of 16, and parts: the last one is shorter, or empty
CUTS = [(40, 3), pytest.param(70, 4, marks=pytest.mark.slow), (36, 4)]
RULES = [rule for rule in product(KEEPS, (False, True)) if rule != ("all", False)]


@pytest.fixture
def cut(monkeypatch):
    def choose(parts: int) -> None:
        monkeypatch.setattr(scan, "settings_for", lambda *about: replace(USUAL(*about), chunk=16, parts=parts))
        forgetting(monkeypatch, scan)

    return choose


def one_after_the_other(first: Tensor | None, turning: Tensor | None, pages: Tensor, reversed: bool) -> Tensor:
    if reversed:
        turning = None if turning is None else turning.mT.flip(1)
        return one_after_the_other(first, turning, pages.flip(1), False).flip(1)
    _, own, *others = pages.unbind(1)
    found = [torch.zeros_like(own) if first is None else first, own]
    for number, each in enumerate(others, 1):
        found.append(each + (found[-1] if turning is None else turning[:, number] @ found[-1]))
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("precision, lost", [("ieee", 1e-6), ("tf32x3", 1e-6), ("split", 2e-5)])
@pytest.mark.parametrize("reversed", (False, True))
@pytest.mark.parametrize(
    "features, columns, parts",
    [(12, 10, 4), (40, 33, 3), pytest.param(130, 17, 5, marks=pytest.mark.slow), (16, 16, 2)],
)
def test_each_part_starts_from_what_those_before_it_made_of_the_first_page(
    features, columns, parts, reversed, precision, lost
):
    chance = torch.Generator().manual_seed(0)
    first, turning, pages = (
        torch.randn(shape, generator=chance)
        for shape in [(2, features, columns), (2, parts - 1, features, features), (2, parts, features, columns)]
    )
    turning /= features**0.5
    turning[:, 0] = torch.nan  # what the first and the last part do to other pages than they are given, nobody asks
    after = torch.cat([turning, turning[:, :1]], dim=1)
    for given, turns in product((None, first), (None, turning)):
        truth = one_after_the_other(
            *(None if x is None else x.double() for x in (given, None if turns is None else after, pages)), reversed
        )
        found = pages.to(DEVICE)
        grid, numbers, constants, warps, stages = way_between(found, precision, reversed)
        told = (None if x is None else x.to(DEVICE) for x in (given, turns))
        parts_kernel[grid](*told, found, *numbers, **constants, num_warps=warps, num_stages=stages)
        assert (found.cpu() - truth).norm() <= lost * truth.norm()


@pytest.mark.parametrize("keep, erase", RULES, ids=str)
@pytest.mark.parametrize("length, parts", CUTS)
def test_a_sequence_in_parts_is_the_definition(length, parts, keep, erase, cut):
    cut(parts)
    inputs = drawn(keep, erase, True, length=length)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("keep, counted", [("all", True), ("heads", True), ("features", False)])
def test_a_sequence_in_parts_may_begin_and_end_with_nothing(keep, counted, cut):
    """Without a page at its start, and without anybody who asks for that at its end."""
    cut(4)
    inputs = drawn(keep, not counted, True, length=60, counted=counted)
    inputs |= {name: None if x is None else torch.zeros_like(x) for name, x in inputs.items() if name in STATE}
    asked = ["reads", "mass"] if counted else ["reads"]
    truth = outcome(inputs, "reference", torch.float64, asked=asked)
    bare = inputs | ({} if counted else {"memory": None})
    found = outcome(bare, "fused", torch.float32, DEVICE, asked=asked)
    all_near(found, {name: truth[name] for name in found})


STATE = ("memory", "column")


@pytest.mark.slow
@pytest.mark.parametrize("keep, erase", [("all", True), ("heads", True), ("features", False)])
def test_parts_cost_half_precision_no_more_than_rounding_what_comes_out(keep, erase, cut):
    cut(4)
    exact = drawn(keep, erase, True, length=60)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in exact.items()}
    as_good_as_rounded(inputs, torch.bfloat16, 1e-6)


def test_what_no_part_asks_for_is_not_found(cut, monkeypatch):
    grids, usual = [], scan.launch
    monkeypatch.setattr(
        scan, "launch", lambda known, name, *rest: grids.append((name, rest[-1]().grid[0])) or usual(known, name, *rest)
    )
    for parts in (2, 3):
        cut(parts)
        outcome(drawn(length=40), "fused", torch.float32, DEVICE)
    found = [programs for name, programs in grids if name[0] in ("carry", "back")]
    lines, page, turned = 2, 1, 1  # slices
    assert found == [
        *[lines * page, lines * 2 * page, lines * page, lines * 2 * page],
        *[lines * 2 * (page + turned), lines * 3 * page, lines * 2 * page, lines * 3 * page],
    ]
