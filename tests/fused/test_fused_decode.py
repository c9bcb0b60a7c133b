"""One token of the fused memory scan without gradients, held against the definition in float64: read and page.

Without a GPU the kernel runs in Triton's interpreter, in float32 and float16.
"""

from itertools import product

import pytest
import torch
from closeness import close
from forms import as_compiled
from torch import Tensor

from palimpsest.kernels import Gates, counted_scan, memory_scan
from palimpsest.kernels.fused import decode
from palimpsest.kernels.fused import scan as fused
from palimpsest.look import Look
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor, Identity, Silu
from palimpsest.memory.key_scales import SumToOne, UnitNorm, Unscaled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEEPS = ("all", "heads", "features")
Inputs = dict[str, Tensor | None]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """How often the kernel was; what is made empty holds no numbers until it was."""
    counted, usual = [], decode.launch

    def launch(compiled, purpose, kernel, arguments, way):
        for x in arguments[8:11]:
            x.fill_(torch.nan)
        counted.append(purpose)
        usual(compiled, purpose, kernel, arguments, way)

    monkeypatch.setattr(decode, "launch", launch)
    return counted


def drawn(keep="all", erase=True, write=True, *, rows=2, length=1, features=12, width=10, counted=False) -> Inputs:
    """Numbers that are the same in every precision."""
    chance = torch.Generator().manual_seed(features + width)
    tokens = (rows, length, 2)

    def uniform(*shape):
        return torch.rand(shape, generator=chance).half().double()

    def normal(*shape):
        return torch.randn(shape, generator=chance).half().double()

    return {
        "queries": normal(*tokens, features),
        "keys": torch.nn.functional.normalize(normal(*tokens, features), dim=-1).half().double(),
        "values": normal(*tokens, width),
        "log_keep": None if keep == "all" else -uniform(*tokens, *([features] if keep == "features" else [])),
        "erase": uniform(*tokens) if erase else None,
        "write": uniform(*tokens) if write else None,
        "memory": normal(rows, 2, features, width),
        "column": uniform(rows, 2, features, 1) if counted else None,
    }


def outcome(inputs: Inputs, backend: str, dtype=torch.float32, device: str = DEVICE, limit=None, look=None):
    whole = torch.promote_types(dtype, torch.float32)
    kinds = {"memory": whole, "column": whole}
    given = {name: None if x is None else x.to(device, kinds.get(name, dtype)) for name, x in inputs.items()}
    gates = Gates(given["log_keep"], given["erase"], given["write"], limit)
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    with torch.inference_mode():
        if given["column"] is None:
            return memory_scan(*arguments, look=look, backend=backend)
        return counted_scan(*arguments, given["column"], look=look, backend=backend)


def defined(inputs: Inputs, **options):
    return outcome(inputs, "reference", torch.float64, "cpu", **options)


def all_near(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-6) -> None:
    for x, truth in zip(found, expected, strict=True):
        assert x.shape == truth.shape
        error = (x.double().cpu() - truth).norm() / truth.norm()
        assert error <= tolerance, f"off by {error:.1e}"


@pytest.mark.parametrize("keep, erase, write", list(product(KEEPS, (False, True), (False, True))), ids=str)
def test_a_token_is_read_and_written_as_the_definition_says(keep, erase, write, launched):
    inputs = drawn(keep, erase, write)
    all_near(outcome(inputs, "fused"), defined(inputs))
    assert len(launched) == 1


def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(monkeypatch):
    (compiled,) = as_compiled(monkeypatch, decode, decode)
    inputs = drawn("heads")
    outcome(inputs, "fused")
    all_near(outcome(inputs, "fused"), defined(inputs))
    assert compiled.known == 1


@pytest.mark.parametrize("width", (7, 10, 16, 32))
@pytest.mark.parametrize("keep, erase", [("all", False), ("heads", False), ("features", True)])
def test_keys_are_counted_beside_the_page(keep, erase, width, launched):
    inputs = drawn(keep, erase, keep != "all", length=2, width=width, counted=True)
    all_near(outcome(inputs, "fused"), defined(inputs))
    assert len(launched) == 1


def test_mass_is_as_exact_as_the_column():
    inputs = drawn("heads", False, counted=True)
    found = outcome(inputs, "fused", torch.float16)
    assert [x.dtype for x in found] == [torch.float16, torch.float32, torch.float32, torch.float32]
    all_near(found[1:], defined(inputs)[1:])


@pytest.mark.parametrize("features, width", [(1, 1), (40, 1), (8, 8), (33, 17), (64, 100), (200, 33), (256, 256)])
def test_sizes_need_not_be_round(features, width):
    inputs = drawn("features", rows=1, features=features, width=width)
    all_near(outcome(inputs, "fused"), defined(inputs))


@pytest.mark.parametrize("settings", [(16, 1), (32, 2), (64, 4)], ids=str)
@pytest.mark.parametrize("keep", KEEPS)
def test_how_the_page_is_cut_does_not_matter(settings, keep, monkeypatch):
    monkeypatch.setattr(decode, "settings_for", lambda *_: decode.Settings(*settings))
    inputs = drawn(keep, rows=1, features=24, width=50)
    all_near(outcome(inputs, "fused"), defined(inputs))


@pytest.mark.parametrize("keep", KEEPS)
def test_a_token_may_write_several_times(keep, launched):
    inputs = drawn(keep, length=decode.TOKENS)
    all_near(outcome(inputs, "fused"), defined(inputs))
    assert len(launched) == 1


def test_several_gates_may_come_as_logits():
    inputs = drawn("heads")
    logits = torch.randn(2, 2, 1, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for erase, write in ((logits[0], logits[0]), (logits[0], logits[1]), (None, logits[1]), (logits[0], None)):
        inputs |= {"erase": erase, "write": write}
        all_near(outcome(inputs, "fused", limit=2.0), defined(inputs, limit=2.0))


LOOKS = [(map, scale) for map in (Identity(), Silu()) for scale in (Unscaled(), UnitNorm())]
LOOKS += [(EluPlusOne(), SumToOne()), (EluPlusOne(), Unscaled())]
LOOKS += [(DPFP(nu=nu), SumToOne()) for nu in (1, 3)] + [(Favor(directions=10), SumToOne()), (Favor(), Unscaled())]


@pytest.mark.parametrize("width", (5, 20))
@pytest.mark.parametrize("map, scale", LOOKS, ids=lambda part: type(part).__name__)
def test_features_are_made_on_chip_as_they_are_beside_it(map, scale, width):
    module = map.build(width)
    names, matrix = (type(map).__name__, type(scale).__name__), getattr(module, "matrix", None)
    look = Look(lambda x: scale(module.to(x)(x)), matrix, *names, **map.numbers(), **scale.numbers())
    inputs = drawn("heads", rows=1, features=width)
    inputs["memory"] = torch.randn(1, 2, map.features(width), 10).double()
    expected = defined(inputs, look=look)
    moved = look._replace(matrix=None if matrix is None else matrix.to(DEVICE))
    all_near(outcome(inputs, "fused", look=moved), expected, 2e-6)


@pytest.mark.parametrize("keep", KEEPS)
def test_half_precision_costs_no_more_than_rounding_the_read(keep):
    inputs = drawn(keep)
    truth, page = defined(inputs)
    found, after = outcome(inputs, "fused", torch.float16)
    assert found.dtype == torch.float16
    assert (found.double().cpu() - truth).norm() <= 1.001 * (truth.half().double() - truth).norm()
    all_near((after, after), (page, page))


@pytest.mark.parametrize("keep", ("heads", "features"))
def test_a_text_that_begins_finds_an_empty_page(keep):
    inputs = drawn(keep)
    inputs["log_keep"] = inputs["log_keep"].masked_fill(torch.ones((), dtype=torch.bool), -torch.inf)
    found = outcome(inputs, "fused")
    all_near(found, defined(inputs))
    all_near(found, defined(inputs | {"memory": 0 * inputs["memory"]}))


def test_tensors_may_lie_in_memory_as_they_like():
    inputs = drawn("features", length=2)
    scattered = {
        name: None if x is None else x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in inputs.items()
    }
    all_near(outcome(scattered, "fused"), defined(inputs))
    shared = inputs | {"values": inputs["values"][:, :, :1].expand(-1, -1, 2, -1)}
    all_near(outcome(shared, "fused"), defined(shared))


def test_the_memory_that_was_given_stays_as_it_was():
    inputs = drawn("heads")
    memory = inputs["memory"].float().to(DEVICE)
    before = memory.clone()
    outcome(inputs | {"memory": memory}, "fused")
    assert torch.equal(memory, before)


def test_whoever_wants_gradients_gets_them_from_the_scan(launched):
    inputs = {name: None if x is None else x.float().to(DEVICE) for name, x in drawn("heads", rows=1).items()}
    for name in ("queries", "log_keep", "memory"):
        given = inputs | {name: inputs[name].clone().requires_grad_()}
        gates = Gates(given["log_keep"], given["erase"], given["write"])
        arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
        assert fused.kernel_for(*arguments) == "memory_scan"
        with torch.no_grad():
            assert fused.kernel_for(*arguments) == "memory_decode"
    reads, _ = memory_scan(*arguments, backend="fused")
    assert torch.autograd.grad(reads.sum(), given["memory"])[0].isfinite().all()
    assert not launched


def test_longer_segments_are_the_scans(launched):
    inputs = drawn(length=decode.TOKENS + 1)
    all_near(outcome(inputs, "fused"), defined(inputs), 2e-6)
    assert not launched


def test_tokens_one_by_one_are_the_whole_text():
    inputs = drawn("heads", length=6)
    whole, last = defined(inputs)
    reads, memory = [], inputs["memory"]
    for token in range(6):
        one = {name: x[:, token : token + 1] for name, x in inputs.items() if name not in ("memory", "column")}
        read, memory = outcome(one | {"memory": memory, "column": None}, "fused")
        reads.append(read)
    all_near((torch.cat(reads, dim=1), memory), (whole, last), 2e-6)


def test_a_graph_of_one_node():
    inputs = {name: None if x is None else x.float().to(DEVICE) for name, x in drawn("heads").items()}

    def step(values, memory):
        gates = Gates(inputs["log_keep"], inputs["erase"], inputs["erase"])
        return memory_scan(inputs["queries"], inputs["keys"], values, gates, memory, backend="fused")

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found, expected = (form(inputs["values"], inputs["memory"]) for form in (compiled, step))
    close(found[0], expected[0])
    close(found[1], expected[1])
