"""Sums, whose gradients are sums: held against the definition in float64, however their work is cut."""

import pytest
import torch
from closeness import HALVES
from forms import as_compiled, forgetting
from test_fused_scan import DEVICE, Inputs, all_near, drawn, outcome

from palimpsest.kernels.fused import sums
from palimpsest.kernels.fused.sums import Cut, Settings

NARROW, WIDE, LONG = Cut(16, 16, 1, 2), Cut(16, 64, 2, 2), Cut(32, 32, 2, 2)
CUTS = [(NARROW, NARROW, 1), (LONG, WIDE, 1), (WIDE, LONG, 2), (NARROW, LONG, 3)]


def added(length: int, features: int, width: int) -> Inputs:
    return drawn("all", erase=False, write=False, length=length, features=features, width=width)


@pytest.fixture
def cut(monkeypatch):
    """Work cut as a test wants it."""

    def choose(*settings):
        monkeypatch.setattr(sums, "settings_for", lambda *_: Settings(*settings))
        forgetting(monkeypatch, sums)

    return choose


@pytest.mark.parametrize("settings", CUTS, ids=str)
@pytest.mark.parametrize("length, features, width", [(20, 12, 10), (100, 24, 40)])
def test_a_sum_and_its_gradients_are_the_definition_however_the_work_is_cut(length, features, width, settings, cut):
    cut(*settings)
    inputs = added(length, features, width)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("length, features, width", [(1, 8, 8), (16, 70, 10), (35, 8, 40)])
def test_lengths_and_sizes_need_not_be_round(length, features, width):
    inputs = added(length, features, width)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("parts", (1, 2))
@pytest.mark.parametrize("asked", ("reads", "last memory"))
def test_what_nobody_asks_for_has_no_say(asked, parts, cut):
    cut(LONG, WIDE, parts)
    found, truth = (
        outcome(added(70, 12, 10), backend, dtype, device, asked=[asked])
        for backend, dtype, device in (("fused", torch.float32, DEVICE), ("reference", torch.float64, "cpu"))
    )
    all_near(found, {name: truth.get(name, torch.zeros_like(x).double().cpu()) for name, x in found.items()})


@pytest.mark.parametrize("parts", (1, 2))
def test_a_sum_may_begin_with_nothing(parts, cut):
    cut(LONG, WIDE, parts)
    inputs = added(70, 12, 10)
    bare = {**inputs, "memory": None}
    empty = {**inputs, "memory": torch.zeros_like(inputs["memory"])}
    truth = outcome(empty, "reference", torch.float64)
    truth.pop("gradient of memory")
    all_near(outcome(bare, "fused", torch.float32, DEVICE), truth)


@pytest.mark.parametrize("settings", CUTS[:2], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_costs_no_more_than_rounding_what_comes_out(dtype, settings, cut):
    cut(*settings)
    inputs = {name: None if x is None else x.to(dtype).double() for name, x in added(70, 24, 40).items()}
    truth = outcome(inputs, "reference", torch.float64)
    found = outcome(inputs, "fused", dtype, DEVICE)
    for name, x in truth.items():
        lost, rounding = ((form[name].to(dtype).double().cpu() - x).norm() for form in (found, truth))
        assert lost <= 2 * rounding + 1e-6 * x.norm(), f"{name} is off by {lost:.1e}, rounding costs {rounding:.1e}"


@pytest.mark.parametrize("parts", (1, 2))
def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(parts, cut, monkeypatch):
    cut(LONG, WIDE, parts)
    compiled = as_compiled(monkeypatch, sums, sums.kernels)
    inputs = added(70, 12, 10)
    outcome(inputs, "fused", torch.float32, DEVICE)
    assert not any(kernel.known for kernel in compiled)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))
    assert len([kernel for kernel in compiled if not kernel.known]) == (parts == 1)  # which need not be put together


def test_tensors_may_lie_in_memory_as_they_like():
    inputs = added(20, 12, 10)
    scattered = {
        name: None if x is None else x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in inputs.items()
    }
    all_near(outcome(scattered, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


def test_parts_begin_at_the_same_tokens_whatever_chunks_they_are_read_in(cut):
    cut(NARROW, LONG, 3)
    known = sums.Problem(1, 150, 1, 8, 8, sums.settings_for(), sums.PRECISIONS[torch.float32], {})
    shares = {cut.chunk * known.way(cut, 1, []).numbers[-1] for cut in known.settings[:2]}
    assert len(shares) == 1


@pytest.mark.parametrize("parts", (1, 2))
def test_a_graph_of_one_node(parts, cut):
    from palimpsest.kernels import memory_scan

    cut(NARROW, NARROW, parts)
    given = {name: None if x is None else x.float().to(DEVICE) for name, x in added(70, 12, 10).items()}
    leaf = given["values"].requires_grad_()

    def reads(values):
        return memory_scan(given["queries"], given["keys"], values, memory=given["memory"], backend="fused")[0]

    compiled = torch.compile(reads, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(form(leaf).sin().sum(), leaf)[0] for form in (reads, compiled)]
    all_near({"values": found[1]}, {"values": found[0].double().cpu()})
