"""The search for faster settings: it prefers what is faster, and whatever it could propose is right."""

from itertools import count
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from palimpsest.errors import UserError
from palimpsest.gates import Gates
from palimpsest.kernels import candidates, tuning
from palimpsest.kernels.fused import attention, cross_entropy, scan, sums, tuned
from palimpsest.kernels.fused.launching import known_of
from palimpsest.kernels.tuning import Failed, Off, descend, improve, noting, replay, tune, with_numbers
from palimpsest.relative import Relative

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16


class Cut(NamedTuple):
    columns: int
    warps: int


SHIPPED = Cut(32, 4)
CHOICES = {"columns": [16, 32], "warps": [1, 2, 4, 8]}


def never():
    return False


def test_the_fastest_settings_are_found_one_number_at_a_time():
    times = {(columns, warps): columns + abs(warps - 2) for columns in (16, 32) for warps in (1, 2, 4, 8)}
    found, tried = descend(SHIPPED, CHOICES, times.__getitem__, never)
    assert found == Cut(16, 2)
    assert SHIPPED not in tried
    assert len({*tried}) == len(tried)


def test_numbers_that_help_only_together_with_a_later_one_are_found_in_another_round():
    times = {SHIPPED: 10.0, Cut(32, 8): 9.0, Cut(16, 8): 5.0}
    found, _ = descend(SHIPPED, CHOICES, lambda settings: times.get(settings, 20.0), never)
    assert found == Cut(16, 8)


def test_what_fails_or_is_off_is_passed_over():
    def measure(settings):
        if settings.columns == 16:
            raise Failed
        if settings.warps == 8:
            raise Off
        return 10.0 / settings.warps

    found, tried = descend(Cut(32, 1), CHOICES, measure, never)
    assert found == Cut(32, 4)
    assert {Cut(16, 1), Cut(32, 8)} < {*tried}


def test_a_gain_that_may_be_chance_is_none():
    found, _ = descend(SHIPPED, CHOICES, lambda settings: 10.0 if settings == SHIPPED else 9.9, never)
    assert found == SHIPPED


def test_once_the_time_is_over_nothing_new_is_begun():
    measured = []

    def measure(settings):
        measured.append(settings)
        return 1.0 / len(measured)

    found, tried = descend(SHIPPED, CHOICES, measure, lambda: len(measured) > 1)
    assert (found, tried) == (Cut(16, 4), [Cut(16, 4)])


def test_all_of_a_number_are_told_before_the_first_is_measured():
    told = []
    descend(SHIPPED, CHOICES, lambda settings: 1.0, never, told.append)
    assert told == [[Cut(16, 4)], [Cut(32, 1), Cut(32, 2), Cut(32, 8)]]


# -------------------------------------------------------------------------------------------- the kernels


def scanned(dtype: torch.dtype, width: int = 8) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    queries, keys, values = (drawn(chance, 1, 18, 1, width, dtype=dtype) for _ in range(3))
    beta = torch.rand(1, 18, 1, generator=chance).to(DEVICE, dtype).requires_grad_()
    keys = torch.nn.functional.normalize(keys, dim=-1)
    return scan.scan(queries, keys, values, Gates(erase=beta, write=beta), None)[0]


def summed(dtype: torch.dtype, width: int = 8) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    return scan.scan(*(drawn(chance, 1, 18, 1, width, dtype=dtype) for _ in range(3)), Gates(), None)[0]


def attended(dtype: torch.dtype, width: int = 8) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    queries, keys, values, places = (drawn(chance, 1, 18, 1, width, dtype=dtype) for _ in range(4))
    table = drawn(chance, 18, 1, width, dtype=dtype)
    return attention.attend(queries, keys, values, 18, Relative(places, table, None), None, None, None, 0.0)


def scored(dtype: torch.dtype, width: int = 8) -> Tensor:
    chance = torch.Generator().manual_seed(0)
    hidden, weight = drawn(chance, 20, width, dtype=dtype), drawn(chance, 50, width, dtype=dtype)
    targets = torch.arange(20, device=DEVICE)
    return cross_entropy.nats_of(hidden, weight, None, targets, None, 0.0, 0.0)


def drawn(chance: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=chance).to(DEVICE, dtype).requires_grad_()


ASKED = {
    "memory_scan": scanned,
    "memory_sum": summed,
    "relative_attention": attended,
    "linear_cross_entropy": scored,
}


WIDTHS = {
    "memory_scan": 17,
    "memory_sum": 17,
    "relative_attention": 16,
    "linear_cross_entropy": 16,
}  # in two tiles, in one


def call_of(kernel: str, dtype: torch.dtype = torch.float32, width: int = 8) -> tuning.Call:
    with noting() as calls:
        ASKED[kernel](dtype, width).sum().backward()
    ((asked, _),) = calls
    assert asked == kernel
    return next(iter(calls.values()))


def test_what_can_be_tuned_is_what_the_doctor_looks_for():
    assert {*tuned.KERNELS} == {*candidates.TUNABLE} == {*ASKED}


def test_calls_are_noted_once_of_each_kind_and_do_what_they_always_do():
    usual = scanned(torch.float32)
    with noting() as calls:
        for _ in range(2):
            assert torch.equal(scanned(torch.float32), usual)
        scanned(torch.float32, width=16)
        attended(torch.float32).sum().backward()
    assert [(call.kernel, call.count, call.grads is None) for call in calls.values()] == [
        ("memory_scan", 2, True),
        ("memory_scan", 1, True),
        ("relative_attention", 1, False),
    ]
    assert not any(x.requires_grad for call in calls.values() for x in call.inputs if isinstance(x, Tensor))
    scanned(torch.float32, width=8)
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("kernel", ASKED)
def test_every_number_that_could_be_proposed_gives_the_same(kernel, dtype):
    call = call_of(kernel, dtype, width=WIDTHS[kernel])
    tunable = candidates.TUNABLE[kernel]
    shipped = tunable.shipped(call.inputs)
    expected, choices = replay(call, shipped), tunable.choices(call.inputs, shipped)
    assert len(expected.results) > 1
    launched = [name for name in choices if name.endswith(("warps", "stages"))]  # words, in the interpreter
    different = {with_numbers(shipped, {name: choices[name][-1] for name in launched})}
    for name in choices.keys() - {*launched}:
        different |= {with_numbers(shipped, {name: number}) for number in choices[name]}
    for settings in different - {shipped}:
        tuning.compare(replay(call, settings), expected, call.allowed)


def test_settings_that_leave_other_shapes_for_backward_are_not_to_be_had():
    call = call_of("memory_scan")
    shipped = candidates.scan_shipped(call.inputs)
    expected = replay(call, shipped)
    with pytest.raises(Failed):
        tuning.compare(replay(call, with_numbers(shipped, {"chunk": 32})), expected, call.allowed)


def test_results_may_differ_by_what_the_coarsest_type_loses():
    assert call_of("memory_scan").allowed == tuning.ALLOWED[torch.float32]
    assert call_of("relative_attention", HALF).allowed == tuning.ALLOWED[HALF]
    with noting() as calls, torch.autocast(DEVICE, HALF):
        scored(torch.float32)
    (call,) = calls.values()
    assert call.allowed == tuning.ALLOWED[HALF]  # of its products


def test_the_scan_is_offered_whole_bands_and_no_more_columns_than_there_are():
    for dtype in (torch.float32, HALF):
        for width in (16, 64):
            with noting() as calls:
                scanned(dtype, width)
            (call,) = calls.values()
            shipped = candidates.scan_shipped(call.inputs)
            choices = candidates.scan_choices(call.inputs, shipped)
            assert choices["chunk"] == [shipped.chunk]
            for name in ("columns", "gradient_columns"):
                assert all(number % 16 == 0 and number <= width for number in choices[name])


def settings_in_use(call):
    return attention.Problem({}, *call.inputs).settings


def test_the_faster_of_those_that_are_right_wins(monkeypatch):
    call = call_of("relative_attention")
    shipped = attention.Settings.of(call.inputs[-1])
    times = {4: 0.9, 2: 0.5, 1: 0.1}

    operation = attention.relative_attention
    usual = operation.forward

    def spoiled(*inputs):
        if settings_in_use(call).forward.warps == 2:
            raise RuntimeError("out of resource: shared memory")
        reads, *rest = usual(*inputs)
        return [reads + 1.0 if settings_in_use(call).forward.warps == 1 else reads, *rest]

    def time_of(run):
        return times.get(settings_in_use(call).forward.warps, 1.0)

    monkeypatch.setattr(operation, "forward", spoiled)
    only = candidates.TUNABLE["relative_attention"]._replace(choices=lambda *_: {"forward.warps": [1, 2, 4, 8]})
    monkeypatch.setitem(candidates.TUNABLE, "relative_attention", only)
    found = improve(call, never, time_of, lambda line: None)
    assert found.found == with_numbers(shipped, {"forward.warps": 4})
    assert (found.tried, found.failed, found.off) == (3, 1, 1)
    assert found.times_faster == pytest.approx(1 / 0.9)
    assert found.changes == {"forward.warps": (8, 4)}


def test_what_is_found_is_remembered_and_used_from_then_on(monkeypatch):
    call, remembered = call_of("memory_scan"), []
    monkeypatch.setattr(tuning, "remember", lambda *given, **told: remembered.append((given, told)))
    only = candidates.TUNABLE["memory_scan"]._replace(choices=lambda *_: {"carry_warps": [1, 2]})
    monkeypatch.setitem(candidates.TUNABLE, "memory_scan", only)

    def time_of(run):
        return {1: 2.0, 2: 1.0}.get(scan.problem({}, scan.Inputs(*call.inputs)).settings.carry_warps, 4.0)

    (found,) = tune([call], 60.0, time_of=time_of)
    assert (found.found.carry_warps, found.times_faster) == (2, 4.0)
    (((kernel, inputs, settings), told),) = remembered
    assert (kernel, settings, told) == ("memory_scan", found.found, {"shipped": 4.0, "milliseconds": 1.0})
    monkeypatch.setitem(tuned.TABLES, (kernel, call.device), {tuned.problem_of(inputs): tuned.numbers_of(settings)})
    known_of.cache_clear()
    assert scan.known_problem(scan.Inputs(*call.inputs)).settings == found.found
    known_of.cache_clear()


def test_where_nothing_is_faster_nothing_is_changed(monkeypatch):
    call, remembered = call_of("linear_cross_entropy"), []
    monkeypatch.setattr(tuning, "remember", lambda kernel, inputs, settings, **told: remembered.append(settings))
    only = candidates.TUNABLE["linear_cross_entropy"]._replace(choices=lambda *_: {"programs": [1, 2]})
    monkeypatch.setitem(candidates.TUNABLE, "linear_cross_entropy", only)
    (found,) = tune([call], 60.0, time_of=lambda run: 1.0)
    assert (found.changes, found.times_faster, remembered) == ({}, 1.0, [None])


def test_every_call_has_its_share_of_the_time(monkeypatch):
    calls = [call_of("linear_cross_entropy"), call_of("relative_attention")]
    monkeypatch.setattr(tuning, "remember", lambda *given, **told: None)
    seconds, shares = count(), []

    def looking(call, over, *rest):
        shares.append(sum(not over() for _ in range(200)))
        return tuning.Improvement(call, SHIPPED, SHIPPED, 1.0, 1.0)

    monkeypatch.setattr(tuning, "improve", looking)
    assert len([*tune(calls, 300.0, clock=lambda: next(seconds))]) == 2
    assert shares == pytest.approx([150, 100], abs=10)  # the first goes on for 50 more


def test_a_call_that_cannot_be_timed_as_shipped_is_told():
    def no_room(run):
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(UserError, match=r"linear_cross_entropy as it is shipped cannot be timed here .*out of memory"):
        next(tune([call_of("linear_cross_entropy")], 60.0, time_of=no_room))


def test_settings_are_asked_for_once_for_a_layout(monkeypatch):
    asked = []

    def counted(kernel, inputs, shipped):
        asked.append(kernel)
        return shipped

    doors = zip((scan, sums, attention, cross_entropy), ASKED.values(), strict=True)
    for module, door in doors:
        monkeypatch.setattr(module, "tuned", counted)
        known_of.cache_clear()
        for _ in range(3):
            door(torch.float32).sum().backward()
    assert asked == [kernel for kernel in ASKED for _ in ("there", "back")]
