"""The cross-entropy of a vocabulary on a GPU: every form, held against float64 on the CPU, gradients included."""

import pytest
import torch
from torch import Tensor

from palimpsest.kernels.cross_entropy import choose_backend, linear_cross_entropy
from palimpsest.models.embeddings import AdaptiveEmbedding
from palimpsest.models.heads import AdaptiveSoftmax

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
SHAPES = [(1, 3000, 128), (300, 1500, 16), (513, 2049, 128), (513, 2049, 200), (100, 70_001, 64)]


@pytest.fixture(autouse=True)
def _nothing_is_left_unwritten():
    """Whatever is made empty holds no numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(rows: int, tokens: int, width: int) -> list[Tensor]:
    """Hidden states, weight, bias, and what the nats are weighted by."""
    shapes = [(rows, width), (tokens, width), (tokens,), (rows,)]
    hidden, weight, bias, share = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return [hidden, weight / width**0.5, bias, share]


def outcome(inputs: list[Tensor], form: str, bias: bool, some: bool, z_loss: float = 1e-2) -> list[Tensor]:
    *given, share = inputs
    given = [x.detach().requires_grad_() for x in (given if bias else given[:2])]
    row = torch.arange(len(share), device=share.device)
    counted = row % 3 == 0 if some else None
    targets = row * 7919 % len(given[1])
    options = {"counted": counted, "z_loss": z_loss, "smoothing": 0.1, "backend": form}
    nats = linear_cross_entropy(given[0], given[1], given[2] if bias else None, targets, **options)
    return [x.detach() for x in (nats, *torch.autograd.grad((nats * share.to(nats)).sum(), given))]


def errors(actual: list[Tensor], expected: list[Tensor]) -> Tensor:
    return torch.tensor([(a.double().cpu() - e).norm() / e.norm() for a, e in zip(actual, expected, strict=True)])


def assert_close_as_the_plain_form(dtype: torch.dtype, shape: tuple[int, int, int], bias: bool, some: bool) -> None:
    """All results, to those of float64 on the CPU: at most twice what the plain form loses in the same precision."""
    rounded = [x.to(dtype) for x in draw(*shape)]
    truth = outcome([x.double() for x in rounded], "reference", bias, some)
    found, allowed = (
        errors(outcome([x.cuda() for x in rounded], form, bias, some), truth) for form in ("fused", "pieces")
    )
    assert (found <= 2 * allowed + 1e-6).all(), (found, allowed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias, some", [(True, False), (False, True)], ids=["every row", "some rows"])
def test_the_fused_form_is_as_close_to_float64_as_the_plain_one(dtype, shape, bias, some):
    assert_close_as_the_plain_form(dtype, shape, bias, some)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("some", [False, True])
def test_wide_halves_too(dtype, some):
    assert_close_as_the_plain_form(dtype, (300, 1500, 410), True, some)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("width", [16, 64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_warps_does_not_matter(monkeypatch, dtype, width, warps):
    from palimpsest.kernels.fused import cross_entropy

    *launches, programs = cross_entropy.settings_for(width, dtype)
    settings = cross_entropy.Settings(*(launch._replace(warps=warps) for launch in launches), programs)
    monkeypatch.setattr(cross_entropy, "settings_for", lambda *_: settings)
    assert_close_as_the_plain_form(dtype, (700, 1300, width), True, True)


def test_a_kernel_that_is_launched_again_gives_the_same_bits():
    inputs = [x.bfloat16().cuda() for x in draw(700, 5000, 128)]
    first = outcome(inputs, "fused", True, True)  # compiled, and remembered
    for _ in range(3):
        assert all(map(torch.equal, outcome(inputs, "fused", True, True), first))


def test_no_logits_are_ever_in_memory():
    rows, tokens, width = 8192, 50_000, 128
    inputs = [x.bfloat16().cuda() for x in draw(rows, tokens, width)]
    outcome(inputs, "fused", True, False)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    outcome(inputs, "fused", True, False)
    assert torch.cuda.max_memory_allocated() - before < rows * tokens * 2 / 4  # of the bytes of all logits


def test_the_fused_form_is_taken_where_logits_are_many_or_rows_are_picked():
    hidden, many = torch.zeros(4, 128, device="cuda"), torch.zeros(2000, 128, device="cuda")
    counted = torch.ones(4, dtype=torch.bool, device="cuda")
    assert choose_backend(hidden, many, None) == "fused"
    assert choose_backend(hidden, many[:200], None) == "pieces"
    assert choose_backend(hidden, many[:200], counted) == "fused"
    assert choose_backend(hidden.double(), many.double(), counted) == "pieces"
    wide = torch.zeros(2000, 400, device="cuda", dtype=torch.bfloat16)
    assert choose_backend(wide, wide, None) == "pieces"
    assert choose_backend(wide, wide, counted) == "fused"


@pytest.mark.parametrize("divisor", [1, 4])
def test_an_adaptive_vocabulary_never_waits_for_the_device_and_can_be_recorded(divisor):
    embedding = AdaptiveEmbedding((2000, 4000), divisor).build(9000, 128).cuda()
    head = AdaptiveSoftmax((2000, 4000), divisor, z_loss=1e-3).build(9000, 128, embedding).cuda()
    tokens, places = torch.randint(9000, (4, 65), device="cuda"), torch.arange(64, device="cuda").expand(4, -1)
    learned = [*embedding.parameters(), *head.parameters()]

    def step() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            nats = head(embedding(tokens[:, :-1], places), tokens[:, 1:])
        return [nats.detach(), *torch.autograd.grad(nats.mean(), learned)]

    step()  # kernels are tried and compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(aside):
        step()
    torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.graph(graph):
        recorded = step()
    tokens.copy_(torch.randint(2000, (4, 65)) + torch.randint(2, (4, 65)) * 5000)  # other clusters, of other sizes
    graph.replay()
    for one, other in zip(recorded, step(), strict=True):
        torch.testing.assert_close(one, other)
