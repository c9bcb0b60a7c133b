"""Fused attention is the definition: all that it reads and every gradient, and nothing that it must not touch."""

from dataclasses import dataclass, replace

import pytest
import torch
from closeness import HALVES, all_close, close, no_worse
from forms import as_compiled
from torch import Tensor

from palimpsest.kernels import BackendRefused, attention_blocked, attention_reference, relative_attention
from palimpsest.kernels.fused import attention
from palimpsest.kernels.fused import attention_kernels as kernels
from palimpsest.kernels.fused.attention import Launch, Settings
from palimpsest.relative import Relative

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 2e-6  # of float32
RAMP = 8

SMALL = Settings(*[Launch(16, 4, 1)] * 3, programs=1)  # so that a few tokens are several tiles, and all share a program
APART = SMALL._replace(programs=1000)


@dataclass(frozen=True)
class Case:
    queries: int
    keys: int
    rows: int = 1
    width: int = 16
    values: int = 16
    reach: int | None = None
    words: str = ""  # "place" and "bias": of distances; "alike": places are asked for by the queries
    spans: tuple[float, ...] = ()  # of the heads
    vectors: int = 0
    empty: str = ""  # "rows" or "documents"
    settings: Settings = SMALL

    @property
    def heads(self) -> int:
        return len(self.spans) or 2

    @property
    def seen(self) -> int:
        return self.keys if self.reach is None else min(self.reach, self.keys)

    def inputs(self) -> dict[str, Tensor]:
        shapes: dict[str, tuple[int, ...]] = {
            "queries": (self.rows, self.queries, self.heads, self.width),
            "keys": (self.rows, self.keys, self.heads, self.width),
            "values": (self.rows, self.keys, self.heads, self.values),
        }
        if "place" in self.words:
            shapes["place"] = shapes["queries"]
        if self.words:
            shapes["table"] = (self.seen, self.heads, self.width)
        if "bias" in self.words:
            shapes["bias"] = (self.seen, self.heads)
        if self.vectors:
            shapes["vector keys"] = (self.heads, self.vectors, self.width)
            shapes["vector values"] = (self.heads, self.vectors, self.values)
        chance = torch.Generator().manual_seed(0)
        made = {name: torch.randn(shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}
        made |= {name: made[name] * self.width**-0.5 for name in ("queries", "place") if name in made}
        if self.spans:
            made["spans"] = torch.tensor(self.spans, dtype=torch.float64)
        return made

    def emptiness(self) -> Tensor | None:
        places = torch.arange(self.keys - self.queries, self.keys)
        if self.empty == "rows":
            return torch.arange(self.rows)[:, None].expand(-1, self.queries) * 5 + 2
        if self.empty == "documents":
            return (places // 11 * 11).expand(self.rows, -1)
        return None

    def run(self, attend, given: dict[str, Tensor], dropout: float = 0.0, **options) -> Tensor:
        relative, mask, empty = None, None, self.emptiness()
        if "table" in given:
            relative = Relative(given.get("place"), given["table"], given.get("bias"))
        if "spans" in given:
            away = torch.arange(self.seen, device=given["spans"].device)
            mask = ((given["spans"][:, None] - away) / RAMP + 1).clamp(0, 1)
        persistent = (given["vector keys"], given["vector values"]) if self.vectors else None
        terms = (self.seen, relative, mask, persistent, None if empty is None else empty.to(given["keys"].device))
        return attend(given["queries"], given["keys"], given["values"], *terms, dropout, **options)

    def outcome(self, attend, inputs: dict[str, Tensor], dtype: torch.dtype, device: str, **options):
        """The reads, and the gradient of a weighted sum of them for everything that goes in."""
        given = {
            name: x.to(device, torch.promote_types(dtype, torch.float32) if name == "spans" else dtype, copy=True)
            for name, x in inputs.items()
        }
        given = {name: x.requires_grad_() for name, x in given.items()}
        reads = self.run(attend, given, **options)
        weights = torch.randn(reads.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        gradients = torch.autograd.grad((reads * weights.to(reads)).sum(), list(given.values()))
        return {name: x.double().cpu() for name, x in zip(["reads", *given], [reads.detach(), *gradients], strict=True)}

    def fused(self, inputs: dict[str, Tensor], dtype=torch.float32, **options) -> dict[str, Tensor]:
        return self.outcome(attention.attend, inputs, dtype, DEVICE, settings=self.settings, **options)

    def defined(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.outcome(attention_reference.attend, inputs, torch.float64, "cpu")


ALL = Case(20, 44, 1, 16, 24, 37, "place bias", (6.0, 70.0), 5, "rows")
SHORT = Case(9, 20, words="place bias")
CASES = {
    "products alone": Case(17, 17, width=8, values=8),
    "one token": Case(1, 1, words="place bias"),
    "one token and a cache": Case(1, 17, 2, words="place", vectors=3, empty="rows"),
    "distances": Case(33, 33, words="place", width=24, values=8),
    "large tiles": Case(40, 40, words="place", settings=Settings(*[Launch(32, 4, 1)] * 3, programs=2)),
    "wide heads": Case(17, 20, width=64, values=32, words="place"),
    "a reach": Case(20, 50, words="place bias", reach=9),
    "documents": Case(20, 36, words="place bias", empty="documents", settings=APART),
    "spans": Case(17, 40, spans=(0.0, 9.0, 30.5), reach=33),  # one ends exactly where a share does
    "spans that see some tiles wholly": Case(20, 70, words="place", spans=(37.5, 20.0), reach=60),
    "queries that ask for distances too": Case(20, 40, words="alike bias", reach=33, empty="rows"),
    "the same, with spans": Case(20, 70, words="alike", spans=(37.5, 20.0), reach=60),
    "much that is not seen": Case(9, 70, 2, words="alike", spans=(3.0, 17.5)),
    "vectors": Case(17, 17, 1, vectors=20),
    "a reach, vectors": Case(40, 54, words="place bias", reach=37, vectors=3),
    "documents, shared": Case(33, 50, words="place", empty="documents", settings=SMALL._replace(programs=8)),
    "all": ALL,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fused_attention_is_the_definition(case: Case):
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", [replace(ALL, queries=9, keys=28), SHORT], ids=["all", "distances"])
def test_halves_are_no_worse_than_in_the_plain_form(case: Case, dtype):
    inputs = {name: x if name == "spans" else x.to(dtype).double() for name, x in case.inputs().items()}
    expected = case.defined(inputs)
    expected.pop("spans", None)  # two numbers tell nothing of an error's size
    plain = case.outcome(attention_blocked.attend, inputs, torch.float16, DEVICE)
    no_worse(case.fused(inputs, dtype), plain, expected, dtype, 1.5)


def test_the_settings_do_not_matter():
    case = replace(SHORT, settings=Settings(Launch(32, 4, 1), Launch(16, 8, 1), Launch(32, 2, 1), programs=2))
    inputs = case.inputs()
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)


def test_a_mask_is_free_to_be_anything_beside_a_whole_share():
    """Where a head sees all, nothing is multiplied; what follows may be whole again, or nothing at all."""
    chance, tokens = torch.Generator().manual_seed(0), (1, 70, 1, 16)
    mask = torch.rand(1, 70, generator=chance, dtype=torch.float64)
    mask[:, :35], mask[:, 40:60] = 1.0, 1.0
    mask[:, 37] = 0.0
    given = [torch.randn(tokens, generator=chance, dtype=torch.float64) for _ in range(3)]

    def outcome(attend, dtype: torch.dtype, device: str, **options) -> dict[str, Tensor]:
        inputs = [x.to(device, dtype, copy=True).requires_grad_() for x in (*given, mask)]
        reads = attend(*inputs[:3], 70, None, inputs[3], None, None, 0.0, **options)
        found = (reads, *torch.autograd.grad(reads.sin().sum(), inputs))
        return {str(number): x.detach().double().cpu() for number, x in enumerate(found)}

    expected = outcome(attention_reference.attend, torch.float64, "cpu")
    all_close(outcome(attention.attend, torch.float32, DEVICE, settings=SMALL), expected, TOLERANCE)


def test_wide_heads_of_float32_are_refused_where_they_do_not_fit(monkeypatch):
    queries = torch.zeros(1, 2, 1, 256, device=DEVICE)
    assert attention.refusal(queries, queries) is None
    monkeypatch.setattr(attention, "room_of", lambda device: 101_376)
    assert "at most 128 here" in attention.refusal(queries, queries)
    assert attention.refusal(queries.half(), queries.half()) is None


def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(monkeypatch):
    case = Case(9, 20, words="place bias", spans=(3.0, 30.0), vectors=2, empty="rows")
    compiled = as_compiled(monkeypatch, attention, kernels)
    inputs = case.inputs()
    case.fused(inputs)
    all_close(case.fused(inputs), case.defined(inputs), TOLERANCE)
    assert all(kernel.known for kernel in compiled)


def test_no_span_and_no_reach_ever_touches_what_is_farther():
    case = Case(17, 84, words="place bias", spans=(3.0, 30.0), reach=38)
    inputs = case.inputs()
    expected = case.defined(inputs)
    for name in ("keys", "values"):
        inputs[name][:, :19] = torch.nan  # a whole tile beyond the reach of the first query, the 68th of all
        inputs[name][:, :51, 0] = torch.nan  # … and beyond the span of the first head
    inputs["table"][32:, 0], inputs["bias"][32:, 0] = torch.nan, torch.nan
    all_close(case.fused(inputs), expected, TOLERANCE)


def test_vectors_need_not_lie_in_one_piece():
    inputs = SHORT.inputs()
    expected = SHORT.defined(inputs)
    strided = {name: x.repeat_interleave(2, -1)[..., ::2] for name, x in inputs.items()}
    strided["keys"] = strided["keys"].transpose(1, 2).contiguous().transpose(1, 2)
    all_close(SHORT.fused(strided), expected, TOLERANCE)


def test_a_gradient_may_be_one_number_for_all():
    given = {name: x.float().to(DEVICE).requires_grad_() for name, x in SHORT.inputs().items()}
    found = torch.autograd.grad(SHORT.run(attention.attend, given, settings=SMALL).sum(), list(given.values()))
    exact = {name: x.requires_grad_() for name, x in SHORT.inputs().items()}
    expected = torch.autograd.grad(SHORT.run(attention_reference.attend, exact).sum(), list(exact.values()))
    for name, one, other in zip(given, found, expected, strict=True):
        close(one.cpu(), other, 20 * TOLERANCE, name)  # little is left of what is added up here


def test_a_tensor_may_be_used_twice():
    inputs = SHORT.inputs()
    inputs["place"] = inputs["queries"]
    expected = SHORT.defined(inputs)

    def attend(queries, keys, values, reach, relative, *others, **options) -> Tensor:
        twice = relative._replace(queries=queries + 0 * relative.queries)
        return attention.attend(queries, keys, values, reach, twice, *others, **options)

    found = SHORT.outcome(attend, inputs, torch.float32, DEVICE, settings=SMALL)
    close(found["queries"], expected["queries"] + expected["place"], TOLERANCE)


def test_dropped_weights_are_dropped_in_both_directions():
    case, dropout = Case(9, 28, values=32, words="place", spans=(9.5, 40.0), vectors=4), 0.25
    inputs = case.inputs()
    marks = torch.eye(32, dtype=torch.float64)  # a value for each key: what is read are the weights
    inputs["values"], inputs["vector values"] = marks[:28, None].expand(1, -1, 2, -1), marks[28:].expand(2, -1, -1)

    def weights(attend, inputs, dtype, device, dropout, **options) -> Tensor:
        torch.manual_seed(3)
        given = {name: x.to(device, dtype) for name, x in inputs.items()}
        return case.run(attend, given, dropout, **options).double().cpu()

    whole = weights(attention_reference.attend, inputs, torch.float64, "cpu", 0.0)
    left = weights(attention.attend, inputs, torch.float32, DEVICE, dropout, settings=SMALL)
    keeps = (left > 0) / (1 - dropout)
    close(left, whole * keeps, TOLERANCE)
    seen = whole > 0
    spread = (dropout / (1 - dropout) / seen.sum()).sqrt()
    assert (keeps[seen].mean() - 1).abs() < 4 * spread
    assert not torch.equal(keeps[:, :, 0], keeps[:, :, 1])

    inputs["values"], inputs["vector values"] = case.inputs()["values"], case.inputs()["vector values"]

    def kept(queries, keys, values, reach, relative, mask, persistent, empty, dropout) -> Tensor:
        """The reference's weights, those dropped that were dropped above."""
        vectors = (persistent[0], marks[28:].expand(2, -1, -1))
        terms = (reach, relative, mask, vectors, empty, 0.0)
        found = attention_reference.attend(queries, keys, marks[:28, None].expand(1, -1, 2, -1), *terms)
        together = torch.cat([values.transpose(1, 2), persistent[1][None]], dim=2)
        return torch.einsum("bths,bhsv->bthv", found * keeps, together)

    torch.manual_seed(3)
    found = case.fused(inputs, dropout=dropout)
    all_close(found, case.outcome(kept, inputs, torch.float64, "cpu"), TOLERANCE)


def test_torch_knows_the_shapes_and_the_gradients_without_computing():
    case = Case(2, 9, words="place bias", spans=(3.0, 9.0), vectors=2, empty="rows")
    given = {name: x.float().to(DEVICE) for name, x in case.inputs().items()}
    mask = torch.rand(2, 9, device=DEVICE)
    inputs = [given[name] for name in ("queries", "keys", "values", "place", "table", "bias")]
    inputs += [mask, given["vector keys"], given["vector values"]]
    others = (torch.tensor([[1, 1]], device=DEVICE), None, 9, 0.0, SMALL.numbers())
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        torch.ops.palimpsest.relative_attention.default,
        (*(x.requires_grad_() for x in inputs), *others),
        test_utils=tests,
    )


def through_the_door(queries, keys, values, reach, relative, mask, persistent, empty, dropout) -> Tensor:
    return relative_attention(queries, keys, values, relative=relative, reach=reach, backend="fused")


def test_the_door_leads_here_where_that_is_asked_for():
    inputs = SHORT.inputs()
    all_close(SHORT.outcome(through_the_door, inputs, torch.float32, DEVICE), SHORT.defined(inputs), TOLERANCE)


def test_a_graph_holds_attention_as_one_node():
    inputs = SHORT.inputs()
    compiled = torch.compile(through_the_door, backend="aot_eager", fullgraph=True)
    all_close(SHORT.outcome(compiled, inputs, torch.float32, DEVICE), SHORT.defined(inputs), TOLERANCE)


def test_under_autocast_products_are_halves():
    given = {name: x.float().to(DEVICE) for name, x in SHORT.inputs().items()}
    with torch.autocast(DEVICE, torch.float16):
        assert SHORT.run(attention.attend, given, settings=SMALL).dtype == torch.float16


def test_what_cannot_be_done_is_said_in_words():
    queries, wide = torch.zeros(1, 2, 1, 8, device=DEVICE), torch.zeros(1, 2, 1, 300, device=DEVICE)
    assert attention.refusal(queries, queries) is None
    with pytest.raises(BackendRefused, match="at most 256 here; found 8 and 300"):
        relative_attention(queries, queries, wide, backend="fused")
    with pytest.raises(BackendRefused, match="found float64"):
        relative_attention(*[queries.double()] * 3, backend="fused")
