"""Habits on a GPU: what is done again without a question gives the same bits, on any stream and in recorded graphs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from palimpsest.attention.spans import shares
from palimpsest.kernels import Gates, Relative, memory_scan
from palimpsest.look import Look

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOKENS = (2, 70, 4, 16)
ELU = Look(map="EluPlusOne", scale="SumToOne")


def scanned(keep: bool, look: Look | None = None) -> Callable[..., Tensor]:
    def door(queries: Tensor, keys: Tensor, values: Tensor, beta: Tensor, log_keep: Tensor) -> Tensor:
        gates = Gates(log_keep if keep else None, beta, beta)
        return memory_scan(queries, keys, values, gates, look=look, backend="fused")[0]

    return door


def summed(queries: Tensor, keys: Tensor, values: Tensor, beta: Tensor, log_keep: Tensor) -> Tensor:
    return memory_scan(queries, keys, values, backend="fused")[0]


def attended(queries: Tensor, keys: Tensor, values: Tensor, beta: Tensor, log_keep: Tensor) -> Tensor:
    from palimpsest.kernels.fused import attention

    mask = shares(log_keep[0, :4, 0].float().exp(), 70, 8, 70)
    table = 2 * keys[0]
    return attention.attend(queries, keys, values, 70, Relative(None, table), mask, None, None, 0.0)


DOORS = {
    "delta": scanned(False),
    "delta, ELU on chip": scanned(False, ELU),
    "gated delta": scanned(True),
    "sum": summed,
    "attention": attended,
}


def drawn(seed: int) -> list[Tensor]:
    chance = torch.Generator("cuda").manual_seed(seed)
    vectors = [torch.randn(TOKENS, generator=chance, device="cuda") / 4 for _ in range(3)]
    beta, log_keep = (torch.rand(TOKENS[:3], generator=chance, device="cuda") for _ in range(2))
    return [x.bfloat16().requires_grad_() for x in (*vectors, beta, -log_keep)]


def outcome(door: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    reads = door(*given)
    found = torch.autograd.grad(reads, given, reads.detach().clone(), allow_unused=True)
    return [reads.detach(), *(x for x in found if x is not None)]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.fixture(params=DOORS)
def door(request) -> Callable[..., Tensor]:
    return DOORS[request.param]


@pytest.fixture
def expected(door) -> list[list[Tensor]]:
    """Of the first draws, step by step: nothing is known before each."""
    from palimpsest.kernels.fused.launching import known_of

    found = []
    for seed in range(3):
        known_of.cache_clear()
        found.append(outcome(door, drawn(seed)))
    known_of.cache_clear()
    return found


@pytest.fixture
def followed(door, expected, monkeypatch) -> list[int]:
    """A habit of the door; how many tensors each pass that followed it was given."""
    from palimpsest.kernels.fused import habits

    for _ in range(4):
        same(outcome(door, drawn(0)), expected[0])
    usual, counts = habits.apply, []

    def counted(*given):
        counts.append(len(given))
        return usual(*given)

    monkeypatch.setattr(habits, "apply", counted)
    return counts


def test_other_numbers_of_the_same_layout_go_by_habit_and_give_the_same_bits(door, expected, followed):
    for _ in range(2):
        for seed, each in enumerate(expected):
            same(outcome(door, drawn(seed)), each)
    assert len(followed) == 6


@pytest.mark.parametrize("learns", [True, False])
def test_what_was_left_on_the_cpu_is_refused_however_often_it_went_well_before(door, expected, followed, learns):
    queries, keys, *others = drawn(1)
    with torch.set_grad_enabled(learns):
        for _ in range(4):
            door(queries, keys, *others)
        with pytest.raises(ValueError, match="cannot be accessed"):
            door(queries, keys.detach().cpu(), *others)
    same(outcome(door, drawn(0)), expected[0])


def test_a_habit_follows_the_stream(door, expected, followed):
    given, stream = drawn(1), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = outcome(door, given)
    torch.cuda.current_stream().wait_stream(stream)
    same(found, expected[1])
    assert followed


def test_a_habit_is_recorded_in_a_graph_and_replayed_with_other_numbers(door, expected, followed):
    given = drawn(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outcome(door, given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = outcome(door, given)
    for seed in (1, 2):
        with torch.no_grad():
            for x, y in zip(given, drawn(seed), strict=True):
                x.copy_(y)
        graph.replay()
        same(found, expected[seed])
    assert followed
