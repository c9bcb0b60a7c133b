"""Relative attention on a GPU: every form, held against float64 on the CPU, gradients included."""

import pytest
import torch

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.kernels import Relative, relative_attention
from palimpsest.kernels.attention import choose_backend
from palimpsest.mixers import SoftmaxAttention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
ROWS, HEADS, WIDTH, VECTORS = 2, 3, 16, 5


def draw(queries: int, keys: int) -> list[torch.Tensor]:
    shapes = [(ROWS, queries, HEADS, WIDTH), (ROWS, keys, HEADS, WIDTH), (ROWS, keys, HEADS, WIDTH)]
    shapes += [(ROWS, queries, HEADS, WIDTH), (keys, HEADS, WIDTH), (keys, HEADS)]
    shapes += [(HEADS, VECTORS, WIDTH), (HEADS, VECTORS, WIDTH)]
    spans = torch.tensor([0.0, keys / 3, keys], dtype=torch.float64)
    return [*(torch.randn(shape, dtype=torch.float64) for shape in shapes), spans]


def outcome(inputs: list[torch.Tensor], backend: str) -> list[torch.Tensor]:
    inputs = [x.detach().requires_grad_() for x in inputs]
    queries, keys, values, place, table, bias, vector_keys, vector_values, spans = inputs
    away = torch.arange(keys.shape[1], device=keys.device)
    mask = ((spans[:, None] - away) / 8 + 1).clamp(0, 1).to(keys.dtype)
    reads = relative_attention(
        queries * 0.25, keys, values, relative=Relative(place * 0.25, table, bias), mask=mask,
        persistent=(vector_keys, vector_values), empty=torch.tensor([0, 3], device=keys.device), backend=backend,
    )  # fmt: skip
    return [x.detach() for x in (reads, *torch.autograd.grad(reads.float().sin().sum(), inputs))]


def errors(actual, expected):
    return [float((a.double().cpu() - e).norm() / e.norm()) for a, e in zip(actual, expected, strict=True)]


def assert_close_as_the_reference(form: str, dtype: torch.dtype, queries: int, keys: int) -> None:
    """All results, to those of float64 on the CPU: at most twice what the reference loses in the same precision."""
    squares = {"reference": [], form: []}
    for _ in range(8):  # the gradient of the spans is three numbers, which one draw may happen to get right
        rounded = [x.to(dtype) for x in draw(queries, keys)[:-1]] + [torch.tensor([0.0, keys / 3, keys])]
        truth = outcome([x.double() for x in rounded], "blocked")  # in float64 it is the reference: the laws say so
        for name, found in squares.items():
            found.append([error**2 for error in errors(outcome([x.cuda() for x in rounded], name), truth)])
    found, allowed = (torch.tensor(squares[name]).mean(0).sqrt() for name in (form, "reference"))
    assert (found <= 2 * allowed + 1e-6).all(), (found, allowed)


@pytest.mark.parametrize("queries, keys", [(1, 40), (64, 64), (130, 200), (513, 1100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", ["blocked", "fused"])
def test_every_form_is_as_close_to_float64_as_the_reference_in_the_same_precision(form, dtype, queries, keys):
    assert_close_as_the_reference(form, dtype, queries, keys)


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_number_of_warps_does_not_matter(monkeypatch, dtype, warps):
    from palimpsest.kernels.fused import attention

    *launches, programs = attention.settings_for(WIDTH, dtype)
    settings = attention.Settings(*(launch._replace(warps=warps) for launch in launches), programs)
    monkeypatch.setattr(attention, "settings_for", lambda *_, **__: settings)
    assert_close_as_the_reference("fused", dtype, 130, 200)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_by_groups_of_warps_are_right(monkeypatch, dtype, warps, stages):
    from palimpsest.kernels.fused import attention

    launch = attention.Launch(64, warps, stages)
    settings = attention.settings_for(64, dtype)._replace(queries=launch, keys=launch)
    monkeypatch.setattr(attention, "settings_for", lambda *_, **__: settings)
    shapes = [(2, 150, 3, 64), (2, 300, 3, 64), (2, 300, 3, 64), (2, 150, 3, 64), (300, 3, 64)]
    rounded = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]

    def gradients(inputs: list[torch.Tensor], backend: str) -> list[torch.Tensor]:
        queries, keys, values, place, table = inputs = [x.detach().requires_grad_() for x in inputs]
        relative = Relative(place * 0.125, table, None)
        reads = relative_attention(queries * 0.125, keys, values, relative=relative, backend=backend)
        return [x.detach() for x in (reads, *torch.autograd.grad(reads.float().sin().sum(), inputs))]

    truth = gradients([x.double() for x in rounded], "blocked")
    found, allowed = (errors(gradients([x.cuda() for x in rounded], form), truth) for form in ("fused", "reference"))
    assert all(ours <= 2 * theirs for ours, theirs in zip(found, allowed, strict=True)), (found, allowed)


def test_a_kernel_that_is_launched_again_gives_the_same_bits():
    inputs = [x.bfloat16().cuda() for x in draw(130, 200)]
    first = outcome(inputs, "fused")  # compiled, and remembered
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(outcome(inputs, "fused"), first, strict=True))
    elsewhere = [x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x) for x in inputs]  # at odd addresses
    for one, other in zip(outcome(elsewhere, "fused"), first, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * other.abs().max().item())


def test_the_fused_form_is_taken_on_a_gpu_where_there_is_more_than_products():
    half = torch.zeros(1, 2, 1, 16, device="cuda", dtype=torch.bfloat16)
    assert choose_backend(False, half, half) == "fused"
    assert choose_backend(True, half, half) == "plain"
    assert choose_backend(False, half.double(), half.double()) == "blocked"
    assert choose_backend(False, half.cpu(), half.cpu()) == "blocked"


@pytest.mark.parametrize(
    "spec",
    [
        SoftmaxAttention(SinusoidalRelative(), SegmentCache(48)),
        SoftmaxAttention(SharedRelative(256), Adaptive(limit=256, ramp=16, initial=0.3)),
    ],
    ids=["SegmentCache", "Adaptive"],
)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"])
def test_a_memory_is_read_on_the_device_as_on_the_cpu(spec, dtype, tolerance):
    mixer = spec.build(64).double()
    if isinstance(spec.span, Adaptive):
        with torch.no_grad():
            mixer.span.ratio.copy_(torch.linspace(0, 0.6, spec.heads))
    for name, parameter in mixer.named_parameters():
        if not name.endswith("ratio"):
            torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 96, 64, dtype=torch.float64)
    found = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        moved, state, outputs = mixer.to(device, kind), None, []
        for piece in x.to(device, kind).split(32, dim=1):
            y, state = moved(piece, state)
            outputs.append(y)
        found.append(torch.cat(outputs, dim=1).detach().double().cpu())
    largest = 1.0 if dtype == torch.float64 else found[0].abs().max().item()
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance * largest)
