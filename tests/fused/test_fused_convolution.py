"""The fused short convolution is the definition: results and every gradient, however tokens and channels are cut."""

from dataclasses import dataclass, replace

import pytest
import torch
from closeness import HALVES, all_close, close, no_worse
from forms import as_compiled
from torch import Tensor

from palimpsest.kernels import BackendRefused, short_convolution
from palimpsest.kernels.convolution import plain, reference
from palimpsest.kernels.fused import convolution
from palimpsest.kernels.fused import convolution_kernels as kernels
from palimpsest.kernels.fused.convolution import Launch, Settings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-6  # of float32

SMALL = Settings(*[Launch(16, 4, 1, 99)] * 2)  # so that a few tokens are several runs


@dataclass(frozen=True)
class Case:
    size: int
    length: int
    channels: int = 5
    rows: int = 1
    settings: Settings | None = SMALL

    def inputs(self) -> dict[str, Tensor]:
        chance = torch.Generator().manual_seed(0)
        shapes = {
            "x": (self.rows, self.length, self.channels),
            "recent": (self.rows, self.size - 1, self.channels),
            "taps": (self.channels, self.size),
        }
        return {name: torch.randn(shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}

    def outcome(self, form, inputs: dict[str, Tensor], dtype: torch.dtype, device: str, **options):
        """The result, and the gradient of a weighted sum of it for everything that goes in."""
        given = {name: x.to(device, dtype, copy=True).requires_grad_() for name, x in inputs.items()}
        y = form(*given.values(), **options)
        slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        gradients = torch.autograd.grad(y, list(given.values()), slope.bfloat16().to(y))
        return {name: x.double().cpu() for name, x in zip(["y", *given], [y.detach(), *gradients], strict=True)}

    def fused(self, inputs: dict[str, Tensor], dtype=torch.float32) -> dict[str, Tensor]:
        return self.outcome(convolution.convolved, inputs, dtype, DEVICE, settings=self.settings)

    def defined(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.outcome(reference, inputs, torch.float64, "cpu")


USUAL = Case(4, 18, 18, rows=2)
CASES = {
    "one tap": Case(1, 21),
    "two taps": Case(2, 37),
    "four taps": USUAL,
    "nine taps": Case(9, 21),
    "sixteen taps": Case(16, 34),
    "one token": Case(4, 1, rows=3),
    "fewer tokens than are remembered": Case(4, 2),
    "many fewer": Case(9, 3),
    "one channel": Case(4, 5, 1),
    "whole runs": Case(3, 32, 16),
    "as on a device": Case(4, 19, 300, settings=None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_fused_convolution_is_the_definition(case: Case):
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_halves_are_no_worse_than_in_the_plain_form(size, dtype):
    case = replace(USUAL, size=size, rows=1)
    inputs = {name: x.to(dtype).double() for name, x in case.inputs().items()}
    theirs = case.outcome(plain, inputs, torch.float16, DEVICE)
    no_worse(case.fused(inputs, dtype), theirs, case.defined(inputs), dtype, 1.1)


def test_exact_taps_of_halves_are_not_rounded():
    inputs = {name: x.half().double() if name == "x" else x for name, x in USUAL.inputs().items()}

    def with_halves(x, recent, taps, **options) -> Tensor:
        return convolution.convolved(x.half(), recent, taps, **options)

    found = USUAL.outcome(with_halves, inputs, torch.float32, DEVICE, settings=SMALL)
    expected = USUAL.defined(inputs)
    close(found["y"], expected["y"].half().double(), 1e-3)
    for name in ("recent", "taps"):
        close(found[name], expected[name], TOLERANCE, name)


def test_the_settings_do_not_matter():
    case = replace(USUAL, length=40, settings=Settings(Launch(32, 8, 2, 1), Launch(8, 3, 4, 2)))
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(monkeypatch):
    compiled = as_compiled(monkeypatch, convolution, kernels)
    inputs = USUAL.inputs()
    USUAL.fused(inputs)
    all_close(USUAL.fused(inputs), USUAL.defined(inputs), TOLERANCE)
    assert all(kernel.known for kernel in compiled)


@pytest.mark.parametrize("strided", [lambda x: x.repeat(1, 1, 2)[..., x.shape[2] :], lambda x: x.mT.contiguous().mT])
def test_numbers_need_not_lie_in_one_piece(strided):
    inputs = USUAL.inputs()

    def apart(x, recent, taps, **options) -> Tensor:
        return strided(convolution.convolved(strided(x), strided(recent), taps.mT.contiguous().mT, **options))

    found = USUAL.outcome(apart, inputs, torch.float32, DEVICE, settings=SMALL)
    all_close(found, USUAL.defined(inputs), TOLERANCE)


def test_a_gradient_may_be_one_number_for_all():
    given = {name: x.float().to(DEVICE).requires_grad_() for name, x in USUAL.inputs().items()}
    found = torch.autograd.grad(convolution.convolved(*given.values(), settings=SMALL).sum(), list(given.values()))
    exact = {name: x.requires_grad_() for name, x in USUAL.inputs().items()}
    expected = torch.autograd.grad(reference(*exact.values()).sum(), list(exact.values()))
    for name, one, other in zip(given, found, expected, strict=True):
        close(one.cpu(), other, TOLERANCE, name)


@pytest.mark.parametrize("case", [USUAL, Case(1, 5)], ids=["four taps", "one tap"])
def test_torch_knows_the_shapes_and_the_gradients_without_computing(case):
    given = [x.float().to(DEVICE).requires_grad_() for x in case.inputs().values()]
    torch.library.opcheck(
        torch.ops.palimpsest.short_convolution.default,
        (*given, SMALL.numbers()),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    slope = torch.ones_like(given[0])
    torch.library.opcheck(
        torch.ops.palimpsest.short_convolution_backward.default,
        ([slope], [], *(x.detach() for x in given), SMALL.numbers()),
        test_utils=("test_schema", "test_faketensor"),
    )


def through_the_door(*given) -> Tensor:
    return short_convolution(*given, backend="fused")


def test_the_door_leads_here_where_that_is_asked_for():
    inputs = USUAL.inputs()
    all_close(USUAL.outcome(through_the_door, inputs, torch.float32, DEVICE), USUAL.defined(inputs), TOLERANCE)


def test_a_graph_holds_it_whole():
    inputs = USUAL.inputs()
    compiled = torch.compile(through_the_door, backend="aot_eager", fullgraph=True)
    all_close(USUAL.outcome(compiled, inputs, torch.float32, DEVICE), USUAL.defined(inputs), TOLERANCE)


def test_what_cannot_be_done_is_said_in_words():
    x, recent, taps = (z.float().to(DEVICE) for z in USUAL.inputs().values())
    assert convolution.refusal(x, recent, taps) is None
    with pytest.raises(BackendRefused, match="found float64, float32, float32"):
        short_convolution(x.double(), recent, taps, backend="fused")
    with pytest.raises(BackendRefused, match="1 to 16 taps; found 17"):
        short_convolution(x, recent.repeat(1, 6, 1)[:, :16], taps.repeat(1, 5)[:, :17], backend="fused")
    with pytest.raises(BackendRefused, match=r"rows, tokens and channels; found the shape \(2, 0, 18\)"):
        short_convolution(x[:, :0], recent, taps, backend="fused")
