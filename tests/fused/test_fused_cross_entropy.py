"""The fused cross-entropy is the definition: nats and every gradient, of the rows that count and of no others."""

from dataclasses import dataclass, replace

import pytest
import torch
from closeness import HALVES, all_close, close, no_worse
from forms import as_compiled
from torch import Tensor

from palimpsest.kernels import BackendRefused
from palimpsest.kernels.cross_entropy import linear_cross_entropy, pieces, reference
from palimpsest.kernels.fused import cross_entropy
from palimpsest.kernels.fused import cross_entropy_kernels as kernels
from palimpsest.kernels.fused.cross_entropy import Launch, Settings

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-6  # of float32

SMALL = Settings(*[Launch(16, 16, 4, 1)] * 3, programs=1)  # so that a few tokens are several tiles of one run
APART = SMALL._replace(programs=12)


@dataclass(frozen=True)
class Case:
    rows: int
    tokens: int
    width: int = 16
    bias: bool = True
    counted: float | None = None  # share of rows
    z_loss: float = 0.0
    smoothing: float = 0.0
    settings: Settings | None = SMALL

    def inputs(self) -> dict[str, Tensor]:
        chance = torch.Generator().manual_seed(0)
        shapes = {"hidden": (self.rows, self.width), "weight": (self.tokens, self.width)}
        shapes |= {"bias": (self.tokens,)} if self.bias else {}
        drawn = {name: torch.randn(shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}
        # logits of a few units, however wide: of one of 40 float32 knows 4e-6, and how much of that is lost depends on
        # the order in which a processor adds
        drawn["hidden"] *= min(1.0, 4 * self.width**-0.5)
        return drawn

    def targets(self) -> Tensor:
        return torch.randint(self.tokens, (self.rows,), generator=torch.Generator().manual_seed(1))

    def counts(self) -> Tensor | None:
        chance = torch.Generator().manual_seed(2)
        return None if self.counted is None else torch.rand(self.rows, generator=chance) < self.counted

    def run(self, form, given: dict[str, Tensor], **options) -> Tensor:
        device, counted = given["hidden"].device, self.counts()
        targets = self.targets()
        if counted is not None:
            targets, counted = targets.where(counted, -5).to(device), counted.to(device)
        where = (targets.to(device), counted, self.z_loss, self.smoothing)
        return form(given["hidden"], given["weight"], given.get("bias"), *where, **options)

    def outcome(self, form, inputs: dict[str, Tensor], dtype: torch.dtype, device: str, **options):
        """Nats, and the gradient of a weighted sum of them for everything that goes in."""
        given = {name: x.to(device, dtype, copy=True).requires_grad_() for name, x in inputs.items()}
        nats = self.run(form, given, **options)
        weights = torch.randn(nats.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        gradients = torch.autograd.grad((nats * weights.to(nats)).sum(), list(given.values()))
        return {name: x.double().cpu() for name, x in zip(["nats", *given], [nats.detach(), *gradients], strict=True)}

    def fused(self, inputs: dict[str, Tensor], dtype=torch.float32) -> dict[str, Tensor]:
        return self.outcome(cross_entropy.nats_of, inputs, dtype, DEVICE, settings=self.settings)

    def defined(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.outcome(reference, inputs, torch.float64, "cpu")


SHORT = Case(19, 37)
ALL = Case(37, 100, 24, True, 0.6, 0.1, 0.2, APART)
CASES = {
    "short": SHORT,
    "one row": Case(1, 150, 8, False, settings=APART),
    "one token": Case(5, 1),
    "one number": Case(5, 20, 1),
    "whole tiles": Case(32, 64, bias=False),
    "several runs": Case(17, 200, bias=False, settings=SMALL._replace(programs=1000)),
    "z loss": Case(19, 37, bias=False, z_loss=0.3),
    "smoothing": Case(19, 37, smoothing=0.3),
    "no row counts": Case(20, 70, counted=0.0, settings=APART),
    "every row counts": Case(20, 70, counted=1.0, settings=APART),
    "few rows count": Case(40, 200, 8, False, 0.1, 0.1, settings=APART),
    "as on a device": Case(70, 140, 40, True, 0.5, settings=None),
    "wide, as on a device": Case(20, 40, 200, settings=None),
    "all": ALL,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fused_cross_entropy_is_the_definition(case: Case):
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", [ALL, SHORT], ids=["all", "short"])
def test_halves_are_no_worse_than_in_the_plain_form(case: Case, dtype):
    inputs = {name: x.to(dtype).double() for name, x in case.inputs().items()}
    plain = case.outcome(pieces, inputs, torch.float16, DEVICE, rows=1000)
    no_worse(case.fused(inputs, dtype), plain, case.defined(inputs), dtype, 1.5)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_is_certain_is_learned_as_exactly_as_in_the_plain_form(dtype):
    """A gradient is a small difference there, which halves would lose if it were not taken before they round."""
    inputs = {name: x.to(dtype).double() for name, x in SHORT.inputs().items()}
    certain = 8 * inputs["hidden"] / inputs["hidden"].norm(dim=1, keepdim=True)
    inputs["weight"][SHORT.targets()] = certain.to(dtype).double()
    expected = SHORT.defined(inputs)
    assert (expected["nats"] < 0.01).sum() > 3
    plain = SHORT.outcome(pieces, inputs, torch.float16, DEVICE, rows=1000)
    no_worse(SHORT.fused(inputs, dtype), plain, expected, dtype, 1.5)


def test_the_settings_do_not_matter():
    settings = Settings(Launch(32, 16, 4, 1), Launch(16, 64, 8, 1), Launch(64, 16, 2, 1), programs=5)
    case = replace(ALL, settings=settings)
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(monkeypatch):
    compiled = as_compiled(monkeypatch, cross_entropy, kernels)
    inputs = ALL.inputs()
    ALL.fused(inputs)
    all_close(ALL.fused(inputs), ALL.defined(inputs), TOLERANCE)
    assert all(kernel.known for kernel in compiled)


def test_rows_that_do_not_count_are_never_touched():
    inputs = ALL.inputs()
    expected = ALL.defined(inputs)
    inputs["hidden"][~ALL.counts()] = torch.nan
    all_close(ALL.fused(inputs), expected, TOLERANCE)


def test_vectors_need_not_lie_in_one_piece():
    inputs = SHORT.inputs()

    def strided(hidden, weight, bias, *rest, **options) -> Tensor:
        return cross_entropy.nats_of(hidden.repeat(1, 2)[:, :16], weight.T.contiguous().T, bias, *rest, **options)

    found = SHORT.outcome(strided, inputs, torch.float32, DEVICE, settings=SMALL)
    all_close(found, SHORT.defined(inputs), TOLERANCE)


def test_a_gradient_may_be_one_number_for_all():
    given = {name: x.float().to(DEVICE).requires_grad_() for name, x in SHORT.inputs().items()}
    found = torch.autograd.grad(SHORT.run(cross_entropy.nats_of, given, settings=SMALL).sum(), list(given.values()))
    exact = {name: x.requires_grad_() for name, x in SHORT.inputs().items()}
    expected = torch.autograd.grad(SHORT.run(reference, exact).sum(), list(exact.values()))
    for name, one, other in zip(given, found, expected, strict=True):
        close(one.cpu(), other, TOLERANCE, name)


def test_torch_knows_the_shapes_and_the_gradients_without_computing():
    given = {name: x.float().to(DEVICE).requires_grad_() for name, x in SHORT.inputs().items()}
    order, count = torch.arange(SHORT.rows, device=DEVICE), torch.tensor(7, device=DEVICE)
    for bias, some in ((given["bias"], (order, count)), (None, (None, None))):
        tensors = (given["hidden"], given["weight"], bias, SHORT.targets().to(DEVICE), *some)
        torch.library.opcheck(
            torch.ops.palimpsest.linear_cross_entropy.default,
            (*tensors, 0.1, 0.1, torch.float32, SMALL.numbers()),
            test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
        )


def through_the_door(hidden, weight, bias, targets, counted, z_loss, smoothing) -> Tensor:
    shares = {"z_loss": z_loss, "smoothing": smoothing}
    return linear_cross_entropy(hidden, weight, bias, targets, counted=counted, **shares, backend="fused")


def test_the_door_leads_here_where_that_is_asked_for():
    inputs = ALL.inputs()
    all_close(ALL.outcome(through_the_door, inputs, torch.float32, DEVICE), ALL.defined(inputs), TOLERANCE)


def test_a_graph_holds_it_whole():
    inputs = ALL.inputs()
    compiled = torch.compile(through_the_door, backend="aot_eager", fullgraph=True)
    all_close(ALL.outcome(compiled, inputs, torch.float32, DEVICE), ALL.defined(inputs), TOLERANCE)


def test_under_autocast_products_are_halves_and_gradients_are_not():
    inputs = {name: x.half().double() for name, x in ALL.inputs().items()}
    inputs["weight"] += 1e-6  # which no half shows
    given = {name: x.float().to(DEVICE).requires_grad_() for name, x in inputs.items()}
    with torch.autocast(DEVICE, torch.float16):
        nats = ALL.run(cross_entropy.nats_of, given, settings=SMALL)
    rounded = {name: x.half().to(DEVICE) for name, x in inputs.items()}
    close(nats.detach(), ALL.run(cross_entropy.nats_of, rounded, settings=SMALL), 1e-7)
    gradients = torch.autograd.grad(nats.sum(), list(given.values()))
    assert {x.dtype for x in gradients} == {torch.float32}
    assert not torch.equal(gradients[1], gradients[1].half().float())


@pytest.mark.parametrize("stranger", [-1, -100, 40])
def test_the_target_of_a_row_that_counts_is_a_token(stranger):
    """The plain form says so, and the fused one, which waits for nothing, has no number for it."""
    given = [torch.randn(3, 8, device=DEVICE), torch.randn(40, 8, device=DEVICE), torch.randn(40, device=DEVICE)]
    targets = torch.tensor([1, stranger, 3], device=DEVICE)
    nats = linear_cross_entropy(*given, targets, backend="fused")
    assert nats.isnan().tolist() == [False, True, False]
    if DEVICE == "cpu":  # a GPU stops at such a target, for good
        with pytest.raises(IndexError, match="out of bounds"):
            linear_cross_entropy(*given, targets, backend="pieces")


def test_what_cannot_be_done_is_said_in_words():
    narrow, wide = torch.zeros(3, 8, device=DEVICE), torch.zeros(3, 600, device=DEVICE)
    targets = torch.zeros(3, dtype=torch.long, device=DEVICE)
    assert cross_entropy.refusal(narrow, narrow) is None
    with pytest.raises(BackendRefused, match="1 to 256 float32 numbers; found 600"):
        linear_cross_entropy(wide, wide, None, targets, backend="fused")
    with pytest.raises(BackendRefused, match="1 to 512 bfloat16 numbers; found 600"):
        linear_cross_entropy(wide.bfloat16(), wide.bfloat16(), None, targets, backend="fused")
    with pytest.raises(BackendRefused, match="found float64, float64"):
        linear_cross_entropy(narrow.double(), narrow.double(), None, targets, backend="fused")
    with pytest.raises(BackendRefused, match="rows and tokens; found 0 and 3"):
        linear_cross_entropy(narrow[:0], narrow, None, targets[:0], backend="fused")
