"""Parts of a sequence that start at once: what they are put together to is the definition, however they are cut."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from forms import forgetting
from test_fused_scan import DEVICE, KEEPS, USUAL, Inputs, all_near, as_good_as_rounded, drawn, outcome
from torch import Tensor

from palimpsest.kernels import Gates, memory_scan
from palimpsest.kernels.fused import scan, scan_launches
from palimpsest.kernels.fused.parts import parts_kernel, way_between
from palimpsest.look import Look
from palimpsest.memory.feature_maps import DPFP

# tokens in chunks of 16, and parts: the last one is shorter, or empty
CUTS = [(40, 3), pytest.param(70, 4, marks=pytest.mark.slow), (36, 4), (24, 2), (16, 2)]
RULES = [rule for rule in product(KEEPS, (False, True)) if rule != ("all", False)]


@pytest.fixture
def cut(monkeypatch):
    def choose(parts: int, **changes: int) -> None:
        changes = {"chunk": 16, "parts": parts} | changes
        monkeypatch.setattr(scan, "settings_for", lambda *about: replace(USUAL(*about), **changes))
        forgetting(monkeypatch, scan)

    return choose


def read_alone(inputs: Inputs) -> tuple[Tensor, ...]:
    """What comes out where nobody asks for gradients."""
    given = [None if x is None else x.float().to(DEVICE) for x in inputs.values()]
    queries, keys, values, log_keep, erase, write, memory, _ = given
    return memory_scan(queries, keys, values, Gates(log_keep, erase, write), memory, backend="fused")


def one_after_the_other(first: Tensor | None, turning: Tensor | None, pages: Tensor, reversed: bool) -> Tensor:
    """From the start, what the first part makes it made of `first`; from the end, nobody made anything of it yet."""
    if turning is None:
        turning = torch.eye(pages.shape[2]).to(pages).expand(len(pages), pages.shape[1] - 1, -1, -1)
    if reversed:
        pages, turning = pages.flip(1), turning.mT.flip(1)
    else:
        turning = torch.cat([torch.zeros_like(turning[:, :1]), turning], dim=1)
    found = [torch.zeros_like(pages[:, 0]) if first is None else first]
    for own, turns in zip(pages.unbind(1)[1:], turning.unbind(1), strict=False):
        found.append(own + turns @ found[-1])
    found = torch.stack(found, dim=1)
    return found.flip(1) if reversed else found


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
    unknown = turning.clone()
    unknown[:, -1] = torch.nan  # what the last part does to a page only that from the end asks
    for given, turns in product((None, first), (None, turning)):
        truth = one_after_the_other(*(None if x is None else x.double() for x in (given, turns, pages)), reversed)
        if turns is not None and (given is None or not reversed):
            turns = unknown
        found = pages.to(DEVICE)
        way = way_between(found, precision, reversed)
        told = (None if x is None else x.to(DEVICE) for x in (given, turns))
        parts_kernel[way.grid](*told, found, *way.numbers, **way.constants, **way.options)
        assert (found.cpu() - truth).norm() <= lost * truth.norm()


@pytest.mark.parametrize("keep, erase", RULES, ids=str)
@pytest.mark.parametrize("length, parts", CUTS)
def test_a_sequence_in_parts_is_the_definition(length, parts, keep, erase, cut):
    cut(parts)
    inputs = drawn(keep, erase, True, length=length)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize(
    "keep, counted, parts",
    [("all", True, 4), ("heads", True, 4), ("features", False, 4), ("all", False, 2), ("heads", False, 3)],
)
def test_a_sequence_in_parts_may_begin_and_end_with_nothing(keep, counted, parts, cut):
    """Without a page at its start, and without anybody who asks for that at its end."""
    cut(parts)
    inputs = drawn(keep, not counted, True, length=60, counted=counted)
    inputs |= {name: None if x is None else torch.zeros_like(x) for name, x in inputs.items() if name in STATE}
    asked = ["reads", "mass"] if counted else ["reads"]
    truth = outcome(inputs, "reference", torch.float64, asked=asked)
    bare = inputs | ({} if counted else {"memory": None})
    found = outcome(bare, "fused", torch.float32, DEVICE, asked=asked)
    all_near(found, {name: truth[name] for name in found})


STATE = ("memory", "column")


def test_the_gradient_of_a_first_page_lies_as_compilers_are_told_it_does(cut):
    cut(2)
    given = [None if x is None else x.float().to(DEVICE) for x in drawn("heads", length=60).values()]
    queries, keys, values, log_keep, erase, write, memory, _ = given
    memory.requires_grad_()
    reads, _ = memory_scan(queries, keys, values, Gates(log_keep, erase, write), memory, backend="fused")
    (found,) = torch.autograd.grad(reads.sum(), [memory])
    assert found.stride() == memory.stride()


@pytest.mark.parametrize("parts, asked", [*product((2, 3), ("reads", "last memory"))])
def test_a_sequence_in_parts_may_begin_with_a_page_and_be_asked_for_one_thing_alone(parts, asked, cut):
    cut(parts)
    inputs = drawn("heads", length=40, packed=True)
    found = outcome(inputs, "fused", torch.float32, DEVICE, asked=[asked])
    expected = outcome(inputs, "reference", torch.float64, asked=[asked])
    all_near(found, {name: expected.get(name, torch.zeros_like(x).double().cpu()) for name, x in found.items()})


@pytest.mark.parametrize("keep, erase, parts", [("all", True, 2), ("heads", False, 3), ("features", True, 4)])
def test_parts_are_the_same_where_nobody_asks_for_gradients(keep, erase, parts, cut):
    cut(parts)
    inputs = drawn(keep, erase, True, length=60)
    expected = outcome(inputs, "fused", torch.float32, DEVICE)
    for found, name in zip(read_alone(inputs), ("reads", "last memory"), strict=True):
        assert torch.equal(found, expected[name])


@pytest.mark.parametrize("columns, keep, erase", [(10, "all", True), (40, "all", False), (40, "heads", True)])
def test_programs_of_a_part_may_have_a_slice_of_what_is_handed_back(columns, keep, erase, cut):
    """More features than values, or fewer, in several slices of the page and of what a part does to it."""
    cut(3, columns=16)
    inputs = drawn(keep, erase, True, length=60, features=20, width=columns)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("keep, erase", [("all", False), ("all", True), ("heads", False)])
def test_features_are_made_on_chip_in_parts(keep, erase, cut):
    """Where parts only add to a page, its gradient is found from raw queries, else from what they ask of it."""
    cut(3)
    inputs = drawn(keep, erase, True, length=40, features=8)
    look = Look(DPFP(nu=2).map, map="DPFP", nu=2)
    inputs["memory"] = torch.randn(1, 2, look.features(8), 10, generator=torch.Generator().manual_seed(0)).double()
    inputs |= {name: inputs[name] / 4 for name in ("queries", "keys")}
    expected = outcome(inputs, "chunked", torch.float64, look=look)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE, look=look), expected, 5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("parts, length", [(2, 60), (4, 60), (3, 150)])
@pytest.mark.parametrize("keep, erase", [("all", True), ("heads", True), ("features", False), ("features", True)])
def test_parts_cost_half_precision_no_more_than_rounding_what_comes_out(keep, erase, parts, length, cut):
    cut(parts)
    exact = drawn(keep, erase, True, length=length)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in exact.items()}
    as_good_as_rounded(inputs, torch.bfloat16, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gate", (0.05, 0.9))
def test_what_is_not_forgotten_costs_half_precision_no_more_than_rounding_what_comes_out(gate, cut):
    """One gate for both, so small that all of a page arrives at its end, or so large that none of it does."""
    cut(3)
    exact = drawn(length=300, features=24)
    exact["erase"] = exact["write"] = exact["erase"] * 0.1 + gate
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in exact.items()}
    inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, torch.bfloat16, 1e-6)


@pytest.mark.parametrize(
    "keep, length, parts", [("all", 100, 2), ("heads", 150, 3), pytest.param("all", 300, 3, marks=pytest.mark.slow)]
)
def test_wide_heads_in_parts_cost_half_precision_no_more_than_rounding_what_comes_out(keep, length, parts, cut):
    """All that they leave for backward lies as it was multiplied, and parts need not end with what is read at once."""
    cut(parts, chunk=32)
    exact = drawn(keep, length=length, features=72, width=12)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in exact.items()}
    inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, torch.bfloat16, 1e-6)


@pytest.fixture
def stops(monkeypatch):
    """For how many chunks each part but the first asked for each slice of its page, looked at after every one."""
    found, usual = [], scan_launches.launch

    def launch(known, purpose, kernel, arguments, way):
        if purpose == "read back":
            found.append(arguments[1])
        usual(known, purpose, kernel, arguments, way)

    monkeypatch.setattr(scan_launches, "ROUND", 1)
    monkeypatch.setattr(scan_launches, "launch", launch)
    return found


@pytest.mark.parametrize(
    "keep, erase, fading, expected",
    [
        ("all", True, 0.0, [4, 2]),
        ("heads", False, 0.1, [4, 2]),
        ("heads", True, 2.0, [1, 1]),
        ("features", False, 0.5, [3, 2]),
        ("features", True, 2.0, [1, 1]),
    ],
)
def test_a_part_ends_where_nothing_is_left_of_its_page(keep, erase, fading, expected, cut, stops):
    cut(3)
    inputs = drawn(keep, erase, True, length=160)
    if keep != "all":
        inputs["log_keep"] = torch.full_like(inputs["log_keep"], -fading)
    if erase:
        inputs["erase"] = inputs["erase"] / 10
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))
    assert [part.tolist() for part in stops] == [[[[count] for count in expected]] * 2]


@pytest.mark.parametrize("keep, erase", RULES[1:], ids=str)
def test_what_a_part_forgets_has_no_gradient(keep, erase, cut, stops):
    """The second of three forgets, and the last page alone is asked for: nothing comes back to the first page."""
    cut(3)
    inputs = drawn(keep, erase, True, length=160)
    forgetting = (torch.arange(160) // 64 == 1).view(1, 160, 1, *[1] * (inputs["log_keep"].ndim - 3))
    inputs["log_keep"] = torch.full_like(inputs["log_keep"], -1.25) * forgetting
    if erase:
        inputs["erase"] = inputs["erase"] / 10
    truth = outcome(inputs, "reference", torch.float64, asked=["last memory"])
    found = outcome(inputs, "fused", torch.float32, DEVICE, asked=["last memory"])
    all_near({name: found[name] for name in truth}, truth)
    assert [part.tolist() for part in stops] == [[[[1], [2]]] * 2]
    assert not found["gradient of memory"].any()


def test_keys_that_erase_all_of_a_page_end_its_part(cut, stops):
    """Every feature in its turn, from the ninth: the second slice, of eight, is through before the first."""
    cut(2)
    inputs = drawn(length=160, features=24)
    inputs["keys"] = torch.eye(24).double()[torch.arange(160) % 24].view(1, 160, 1, 24).expand(1, 160, 2, 24)
    inputs["erase"] = torch.ones_like(inputs["erase"])
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))
    assert stops[0].tolist() == [[[2, 1]], [[2, 1]]]


@pytest.mark.parametrize("erase", (False, True))
def test_each_slice_of_a_page_has_its_own_end(erase, cut, stops):
    cut(2, columns=16)
    inputs = drawn("features", erase, True, length=160, features=20, width=20)
    if erase:  # no slice hears of another, where a key is of one alone
        first = (torch.arange(160) % 2 == 0).view(1, 160, 1, 1)
        inputs["keys"] = inputs["keys"].where(first == (torch.arange(20) < 16), 0.0)
    inputs["log_keep"] = torch.where(torch.arange(20) < 16, -0.3, -1.5).double().expand(1, 160, 2, 20)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))
    assert stops[0].tolist() == [[[4, 1]], [[4, 1]]]


@pytest.mark.slow
@pytest.mark.parametrize("keep, features, fading", [("heads", 72, 0.4), ("features", 24, 0.8), ("heads", 24, 0.8)])
def test_what_is_left_out_costs_half_precision_no_more_than_rounding_what_comes_out(keep, features, fading, cut, stops):
    cut(2, chunk=32)
    exact = drawn(keep, length=250, features=features)
    exact["log_keep"] = torch.full_like(exact["log_keep"], -fading)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in exact.items()}
    inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, torch.bfloat16, 1e-6)
    assert stops[0].max() < 4


def test_what_no_part_asks_for_is_not_found(cut, monkeypatch):
    grids, usual = [], scan_launches.launch
    monkeypatch.setattr(
        scan_launches,
        "launch",
        lambda known, name, *rest: grids.append((name, rest[-1]().grid[0])) or usual(known, name, *rest),
    )

    def programs(parts: int, run) -> dict[str, int]:
        cut(parts)
        grids.clear()
        run()
        return {name: count for name, count in grids if name in ("own", "turning", "carry", "read back", "back")}

    lines = 2  # of one slice each
    for parts in (2, 3):
        others = lines * (parts - 1)
        there = {"own": others, "turning": others, "carry": lines * parts}
        back = {"read back": others, "back": lines * parts}
        assert programs(parts, lambda: outcome(drawn(length=40), "fused", torch.float32, DEVICE)) == there | back
    inputs = drawn(length=40)
    assert programs(2, lambda: read_alone(inputs)) == {"own": lines, "carry": lines * 2}
    assert programs(3, lambda: read_alone(inputs)) == {"own": lines * 2, "turning": lines, "carry": lines * 3}
