"""Relative attention on a GPU: every form, held against float64 on the CPU, gradients included."""

import pytest
import torch

from palimpsest.attention.positions import SharedRelative, SinusoidalRelative
from palimpsest.attention.spans import Adaptive, SegmentCache
from palimpsest.kernels import Relative, relative_attention
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


@pytest.mark.parametrize("queries, keys", [(1, 40), (64, 64), (130, 200), (513, 1100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_blocked_form_is_as_close_to_float64_as_the_reference_in_the_same_precision(dtype, queries, keys):
    squares = {"reference": [], "blocked": []}
    for _ in range(8):  # the gradient of the spans is three numbers, which one draw may happen to get right
        rounded = [x.to(dtype) for x in draw(queries, keys)[:-1]] + [torch.tensor([0.0, keys / 3, keys])]
        truth = outcome([x.double() for x in rounded], "blocked")  # in float64 it is the reference: the laws say so
        for form, found in squares.items():
            found.append([error**2 for error in errors(outcome([x.cuda() for x in rounded], form), truth)])
    found, allowed = (torch.tensor(squares[form]).mean(0).sqrt() for form in ("blocked", "reference"))
    assert (found <= 2 * allowed + 1e-6).all(), (found, allowed)


@pytest.mark.parametrize(
    "spec",
    [
        SoftmaxAttention(SinusoidalRelative(), SegmentCache(48)),
        SoftmaxAttention(SharedRelative(256), Adaptive(limit=256, ramp=16, initial=0.3)),
    ],
    ids=["SegmentCache", "Adaptive"],
)
def test_a_memory_is_read_on_the_device_as_on_the_cpu(spec):
    mixer = spec.build(64).double()
    for name, parameter in mixer.named_parameters():
        if not name.endswith("ratio"):
            torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 96, 64, dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        moved, state, outputs = mixer.to(device), None, []
        for piece in x.to(device).split(32, dim=1):
            y, state = moved(piece, state)
            outputs.append(y)
        found.append(torch.cat(outputs, dim=1).detach().cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
