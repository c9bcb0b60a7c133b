"""Operations of torch: who follows all that is done sees them as such, and everyone else gets the same without."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from palimpsest.kernels import BackendRefused, Gates, Relative, memory_scan, relative_attention
from palimpsest.kernels.convolution import short_convolution
from palimpsest.kernels.cross_entropy import linear_cross_entropy
from palimpsest.kernels.fused.launching import Noted, Way, compile_ahead, in_line, known_of, layout_of, rehearsal

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Following(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.seen.add(operation.name())
        return operation(*arguments, **(options or {}))


def scan(queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
    gates = Gates(-gate.square(), gate, gate)
    return memory_scan(queries, keys, values, gates, memory, backend="fused")


def attention(queries: Tensor, keys: Tensor, values: Tensor, place: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    return (relative_attention(queries, keys, values, relative=Relative(place, table, None), backend="fused"),)


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    targets = torch.arange(len(hidden), device=DEVICE) % len(weight)
    return (linear_cross_entropy(hidden, weight, bias, targets, backend="fused"),)


def convolution(x: Tensor, recent: Tensor, taps: Tensor) -> tuple[Tensor, ...]:
    return (short_convolution(x, recent, taps, backend="fused"),)


TOKENS = (1, 18, 2, 16)
DOORS = {
    "memory_scan": (scan, [TOKENS, TOKENS, TOKENS, TOKENS[:3], (1, 2, 16, 16)]),
    "relative_attention": (attention, [TOKENS, TOKENS, TOKENS, TOKENS, (18, 2, 16)]),
    "linear_cross_entropy": (cross_entropy, [(20, 16), (33, 16), (33,)]),
    "short_convolution": (convolution, [(2, 9, 5), (2, 3, 5), (5, 4)]),
}


@pytest.mark.parametrize("name", DOORS)
def test_who_follows_operations_sees_ours_and_the_same_results(name):
    door, shapes = DOORS[name]
    given = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]

    def outcome() -> list[Tensor]:
        found = door(*given)
        return [*found, *torch.autograd.grad(found, given, [torch.ones_like(x) for x in found])]

    with Following() as following:
        seen = outcome()
    assert {f"palimpsest::{name}", f"palimpsest::{name}_backward"} <= following.seen
    for one, other in zip(outcome(), seen, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", DOORS)
def test_what_nobody_asks_for_has_no_gradient(name):
    door, shapes = DOORS[name]
    given = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    *some, last = given
    (found, *_) = door(*some, last.detach())
    assert all(x is not None for x in torch.autograd.grad(found.sum(), some))
    with torch.no_grad():
        assert torch.equal(door(*given)[0], found)


@pytest.mark.parametrize("name", DOORS)
def test_gradients_are_the_same_where_a_graph_of_them_is_asked_for_and_cannot_be_differentiated_again(name):
    door, shapes = DOORS[name]
    given = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    plain, graphed = (
        torch.autograd.grad(door(*given)[0].square().sum(), given, create_graph=each) for each in (False, True)
    )
    for one, other in zip(plain, graphed, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        graphed[0].sum().backward()


@pytest.mark.parametrize("name", DOORS)
def test_a_rehearsal_notes_what_would_be_launched_there_and_back_and_launches_nothing(name):
    door, shapes = DOORS[name]
    given = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes]
    known_of.cache_clear()
    with rehearsal() as noted:
        made = door(*given)
        there = len(noted)
        torch.autograd.grad(made[0].sum(), given)
        with ThreadPoolExecutor(1) as another:  # which does as always
            elsewhere = another.submit(lambda: door(*given)[0]).result()
    assert 1 <= there < len(noted)
    assert made[0].isnan().all()  # nobody wrote there
    assert torch.equal(elsewhere, door(*given)[0])


@pytest.mark.parametrize("learns", [True, False])
def test_what_is_asked_for_is_compiled_beside_the_trial_there_and_back(learns):
    from palimpsest.kernels.scan import there_and_back
    from palimpsest.look import Look

    shapes = [(2, 20, 2, 16)] * 3 + [(2, 20, 2)]
    queries, keys, values, beta = (torch.randn(shape, device=DEVICE).requires_grad_() for shape in shapes)
    asked = queries, keys, values, Gates(erase=beta, write=beta, limit=1.0), None, Look(map="Silu", scale="UnitNorm")
    known_of.cache_clear()
    with rehearsal() as expected, torch.set_grad_enabled(learns):
        reads, _ = memory_scan(*asked[:5], look=asked[5], backend="fused")
        if learns:
            torch.autograd.grad(reads, (queries, keys, values, beta), torch.ones_like(reads))
    known_of.cache_clear()
    with rehearsal() as noted:
        there_and_back(*asked, learns)
    assert [each.kind for each in noted] == [each.kind for each in expected]
    assert len(noted) == (4 if learns else 2)
    assert all(x.grad is None for x in (queries, keys, values, beta))


def test_what_was_noted_is_compiled_once_each_and_who_fails_stops_nobody(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    compiled = []

    class Kernel:
        def warmup(self, *arguments, grid, **options):
            compiled.append((len(arguments), options["num_warps"]))
            if options["num_warps"] == 8:
                raise RuntimeError("out of registers")

    kernel, x = Kernel(), torch.zeros(4)
    ways = [Way((1, 1, 1), (4,), {"SIZE": 16}, warps, 1) for warps in (8, 4, 4, 2)]
    compile_ahead([Noted(kernel, (x, (x, 1)), way) for way in ways], torch.device("cuda"))
    assert sorted(compiled) == [(3, 2), (3, 4), (3, 8)]


def added(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    return memory_scan(queries, keys, values, backend="fused")


def sizes(rows: int, length: int) -> dict[str, tuple]:
    """The doors, and the shapes of what they are given for so many rows and tokens."""
    tokens, lines = (rows, length, 2, 16), rows * length
    return {
        "memory_scan": (scan, [*[tokens] * 3, tokens[:3], (rows, 2, 16, 16)]),
        "memory_sum": (added, [tokens] * 3),
        "relative_attention": (attention, [*[tokens] * 4, (40, 2, 16)]),
        "linear_cross_entropy": (cross_entropy, [(lines, 16), (33, 16), (33,)]),
        "short_convolution": (convolution, [(rows, length, 5), (rows, 3, 5), (5, 4)]),
    }


@pytest.mark.parametrize("name", sizes(1, 1))
def test_what_is_compiled_may_come_with_other_numbers_of_rows_and_tokens(name):
    torch._dynamo.reset()
    door, _ = sizes(1, 1)[name]

    def first(*given: Tensor) -> Tensor:
        return door(*given)[0]

    compiled = torch.compile(first, fullgraph=True, backend="aot_eager")
    for numbers in ((2, 6), (3, 9), (2, 20)):
        given = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in sizes(*numbers)[name][1]]
        reads = [form(*given) for form in (first, compiled)]
        slopes = [torch.autograd.grad(each.sin().sum(), given) for each in reads]
        for one, other in zip((reads[0], *slopes[0]), (reads[1], *slopes[1]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", sizes(1, 1))
def test_a_transform_of_functions_is_refused_as_nothing_here_can_be_transformed(name):
    door, shapes = sizes(2, 6)[name]
    given = [torch.randn(shape, device=DEVICE) for shape in shapes]
    with pytest.raises(BackendRefused, match=r"torch\.func transforms no fused form"):
        torch.func.grad(lambda first: door(first, *given[1:])[0].sum())(given[0])


def test_a_layout_is_of_one_place():
    here, there = torch.zeros(2, 3), torch.zeros(2, 3, device="meta")
    assert layout_of([here, None, here]) == layout_of([here, None, here.clone()]) != layout_of([here, None, there])


def test_what_lies_too_far_apart_for_offsets_of_32_bits_is_put_in_one_piece():
    def spread(*steps: int) -> Tensor:
        return torch.empty_strided((1, 20, 20, 16), (0, *steps, 1), device="meta")

    for near in (spread(320, 16), spread(2**26, 2**26)):
        assert in_line(near) is near
    for far in (spread(2**27, 16), spread(16, 2**27), spread(320, 16).mT):
        assert in_line(far).is_contiguous()
    single = torch.empty_strided((1, 1, 20, 16), (0, 2**40, 16, 1), device="meta")
    assert in_line(single).is_contiguous()
