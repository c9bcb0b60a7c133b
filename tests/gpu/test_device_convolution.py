"""Short convolutions on a GPU: the fused form held against float64 on the CPU, gradients included."""

import pytest
import torch
from torch import Tensor

from palimpsest.kernels.convolution import choose_backend, short_convolution
from palimpsest.memory.convolutions import ShortConvolution

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
SHAPES = [  # taps, rows, tokens, channels
    (1, 2, 300, 384),
    (2, 150, 33, 1),
    (4, 1, 1, 384),
    (4, 3, 2, 40),
    (4, 2, 700, 257),
    (4, 4, 1000, 768),
    (4, 1, 20_000, 64),
    (9, 2, 500, 96),
    (16, 3, 11, 96),
]


@pytest.fixture(autouse=True)
def _nothing_is_left_unwritten():
    """Whatever is made empty holds no numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(size: int, rows: int, length: int, channels: int) -> list[Tensor]:
    """Tokens, those before them, taps, and what the results are weighted by."""
    shapes = [(rows, length, channels), (rows, size - 1, channels), (channels, size), (rows, length, channels)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def outcome(inputs: list[Tensor], form: str) -> list[Tensor]:
    *given, slope = inputs
    given = [x.detach().requires_grad_() for x in given]
    y = short_convolution(*given, backend=form)
    found = torch.autograd.grad(y, given, slope, materialize_grads=True)
    return [x.detach() for x in (y, *found) if x.numel()]


def errors(actual: list[Tensor], expected: list[Tensor]) -> Tensor:
    return torch.tensor([(a.double().cpu() - e).norm() / e.norm() for a, e in zip(actual, expected, strict=True)])


def assert_close_as_the_plain_form(dtype: torch.dtype, size: int, *shape: int) -> None:
    """All results, to those of float64 on the CPU: at most twice what the plain form loses in the same precision."""
    rounded = [x.to(dtype) for x in draw(size, *shape)]
    truth = outcome([x.double() for x in rounded], "reference")
    found, allowed = (errors(outcome([x.cuda() for x in rounded], form), truth) for form in ("fused", "plain"))
    assert (found <= 2 * allowed + 1e-6).all(), (found, allowed)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_fused_form_is_as_close_to_float64_as_the_plain_one(dtype, shape):
    assert_close_as_the_plain_form(dtype, *shape)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("size, channels", [(4, 2048), (4, 301), (16, 512)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_number_of_warps_does_not_matter(monkeypatch, dtype, size, channels, warps):
    from palimpsest.kernels.fused import convolution

    usual = convolution.settings_for(channels, size, dtype)
    wider = convolution.Settings(*(launch._replace(channels=launch.channels * warps, warps=warps) for launch in usual))
    monkeypatch.setattr(convolution, "settings_for", lambda *_: wider)
    assert_close_as_the_plain_form(dtype, size, 3, 333, channels)


def test_a_kernel_that_is_launched_again_gives_the_same_bits():
    inputs = [x.bfloat16().cuda() for x in draw(4, 8, 700, 768)]
    first = outcome(inputs, "fused")  # compiled, and remembered
    for _ in range(3):
        assert all(map(torch.equal, outcome(inputs, "fused"), first))


@pytest.mark.parametrize("shape", [(1100, 2048, 1024), (1, 1100 * 2048, 1024)], ids=["rows", "tokens"])
def test_there_may_be_more_numbers_than_32_bits_can_count(shape):
    """The last tokens are what they would be alone."""
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_().requires_grad_()
    taps, recent = torch.randn(1024, 4, device="cuda"), x.new_zeros(shape[0], 3, 1024)
    y = short_convolution(x, recent, taps, backend="fused")
    (of_x,) = torch.autograd.grad(y, x, x)
    end = x[-1:, -100:].detach().requires_grad_()
    alone = short_convolution(end, x[-1:, -103:-100].detach(), taps, backend="fused")
    assert x.numel() > 2**31
    assert torch.equal(y[-1:, -100:], alone)
    assert torch.equal(of_x[-1:, -100:], *torch.autograd.grad(alone, end, end))


def test_a_slice_of_wider_tokens_is_not_copied():
    wide = torch.randn(4, 512, 3 * 512, dtype=torch.bfloat16, device="cuda")
    recent, taps = torch.zeros(4, 3, 512, dtype=torch.bfloat16, device="cuda"), torch.randn(512, 4, device="cuda")
    part = wide[..., 512:1024]
    expected = short_convolution(part.contiguous(), recent, taps, backend="fused")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = short_convolution(part, recent, taps, backend="fused")
    assert torch.cuda.max_memory_allocated() - before < 1.5 * found.nbytes
    assert torch.equal(found, expected)


def test_the_fused_form_is_taken_where_it_can_be():
    x, recent, taps = (z.float().cuda() for z in draw(4, 2, 9, 16)[:3])
    assert choose_backend(x, recent, taps) == "fused"
    assert choose_backend(x.bfloat16(), recent, taps) == "fused"
    assert choose_backend(x.double(), recent, taps) == "plain"
    assert choose_backend(x, recent.repeat(1, 9, 1)[:, :19], taps.repeat(1, 5)) == "plain"


@pytest.mark.parametrize("length", [2, 50])
def test_a_layer_compiled_or_recorded_is_the_layer(length):
    layer = ShortConvolution(4).build(192).cuda()
    torch.nn.init.normal_(layer.taps)
    x = torch.randn(3, length, 192, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    recent = torch.randn(3, 3, 192, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    slopes = torch.randn_like(x), torch.randn_like(recent)
    compiled = torch.compile(layer, fullgraph=True)

    def step(layer) -> list[Tensor]:
        found = layer(x, recent)
        return [*(z.detach() for z in found), *torch.autograd.grad(found, (x, recent, layer.taps), slopes)]

    expected = step(layer)  # kernels are tried and compiled
    for one, other in zip(step(compiled), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(aside):
        step(layer)
    torch.cuda.current_stream().wait_stream(aside)
    with torch.cuda.graph(graph):
        recorded = step(layer)
    x.data.copy_(torch.randn_like(x))
    graph.replay()
    for one, other in zip(recorded, step(layer), strict=True):
        assert torch.equal(one, other)
