"""One token of the memory scan on a GPU, without gradients: held against float64, and used where it should be."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from palimpsest.kernels import Gates, choose_backend, counted_scan, memory_scan
from palimpsest.kernels.trust import trusted
from palimpsest.look import Look
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor, Silu
from palimpsest.memory.key_scales import SumToOne, UnitNorm, Unscaled
from palimpsest.models.language_model import LanguageModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = [(40, 1), (8, 8), (16, 64), (33, 17), (64, 100), (128, 128), (200, 33), (256, 256)]
LOOKS = [(Silu(), UnitNorm()), (EluPlusOne(), SumToOne()), (EluPlusOne(), Unscaled())]
LOOKS += [(DPFP(nu=nu), SumToOne()) for nu in (1, 3)] + [(Favor(), SumToOne()), (Favor(directions=10), SumToOne())]

Inputs = dict[str, Tensor | None]


@pytest.fixture(autouse=True)
def _nothing_is_left_unwritten():
    """Whatever is made empty holds no numbers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(
    keep: str, erase: bool, features: int, values: int, rows=3, length=1, width: int | None = None, counted=False
) -> Inputs:
    tokens = (rows, length, 5)
    width = features if width is None else width
    return {
        "queries": torch.randn(*tokens, width, dtype=torch.float64),
        "keys": normalize(torch.randn(*tokens, width, dtype=torch.float64), dim=-1),
        "values": torch.randn(*tokens, values, dtype=torch.float64),
        "log_keep": None if keep == "all" else -torch.rand(*tokens, *([features] if keep == "features" else [])),
        "erase": torch.rand(tokens, dtype=torch.float64) if erase else None,
        "write": torch.rand(tokens, dtype=torch.float64) if erase else None,
        "memory": torch.randn(rows, 5, features, values),
        "column": torch.rand(rows, 5, features, 1) if counted else None,
    }


def outcome(inputs: Inputs, backend: str, dtype: torch.dtype, device: str = "cuda", look: Look | None = None):
    pages = dict.fromkeys(("memory", "column"), torch.promote_types(dtype, torch.float32))
    given = {name: x if x is None else x.to(device, pages.get(name, dtype)) for name, x in inputs.items()}
    gates = Gates(given["log_keep"], given["erase"], given["write"], None if look is None else 1.0)
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    with torch.inference_mode():
        if given["column"] is None:
            return memory_scan(*arguments, look=look, backend=backend)
        return counted_scan(*arguments, given["column"], look=look, backend=backend)


def assert_close_as_the_plain_form(inputs: Inputs, dtype: torch.dtype, look: Look | None = None) -> None:
    rounded = {name: x if x is None or name in ("memory", "column") else x.to(dtype) for name, x in inputs.items()}
    truth = outcome(rounded, "reference", torch.float64, look=look)
    forms = (outcome(rounded, form, dtype, look=look) for form in ("fused", "recurrent"))
    found, allowed = (
        [float((x.double() - e).norm() / e.norm()) for x, e in zip(form, truth, strict=True)] for form in forms
    )
    assert all(one <= 2 * most + 1e-6 for one, most in zip(found, allowed, strict=True)), (found, allowed)


@pytest.mark.parametrize("features, values", SIZES)
@pytest.mark.parametrize("keep", ("all", "heads", "features"))
@pytest.mark.parametrize("erase", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_is_as_close_to_float64_as_the_plain_form_is(dtype, erase, keep, features, values):
    assert_close_as_the_plain_form(draw(keep, erase, features, values), dtype)


@pytest.mark.parametrize("features, values", SIZES)
@pytest.mark.parametrize("keep, erase", (("all", False), ("heads", True), ("features", False)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_are_counted_as_closely(dtype, keep, erase, features, values):
    inputs = draw(keep, erase, features, values, length=2, counted=True)
    assert_close_as_the_plain_form(inputs | {"queries": inputs["queries"].abs(), "keys": inputs["keys"].abs()}, dtype)


@pytest.mark.parametrize("map, scale", LOOKS, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("width", (16, 20, 40))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_features_and_gates_are_made_on_chip(dtype, width, map, scale):
    module = map.build(width).cuda()
    names, matrix = (type(map).__name__, type(scale).__name__), getattr(module, "matrix", None)
    look = Look(lambda x: scale(module.to(x)(x)), matrix, *names, **map.numbers(), **scale.numbers())
    inputs = draw("heads", True, map.features(width), 48, width=width)
    assert_close_as_the_plain_form(inputs, dtype, look)


@pytest.mark.parametrize("warps", (1, 2, 4, 8))
@pytest.mark.parametrize("columns", (16, 32, 64))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_how_the_page_is_cut_does_not_matter(monkeypatch, dtype, columns, warps):
    from palimpsest.kernels.fused import decode

    monkeypatch.setattr(decode, "settings_for", lambda *_: decode.Settings(columns, warps))
    for keep, length in (("heads", 1), ("features", decode.TOKENS)):
        assert_close_as_the_plain_form(draw(keep, True, 64, 100, length=length), dtype)


def test_a_kernel_that_is_launched_again_gives_the_same_bits():
    inputs = draw("heads", True, 128, 128)
    first = outcome(inputs, "fused", torch.bfloat16)
    for _ in range(3):
        assert all(map(torch.equal, outcome(inputs, "fused", torch.bfloat16), first))


def test_it_is_chosen_and_passes_its_trial():
    inputs = {name: None if x is None else x.cuda().bfloat16() for name, x in draw("heads", True, 64, 64).items()}
    gates = Gates(inputs["log_keep"], inputs["erase"], inputs["write"])
    with torch.inference_mode():
        assert choose_backend(inputs["queries"], inputs["keys"], inputs["values"], gates) == "fused"
    assert trusted("memory_decode", inputs["queries"].device)


def test_a_recorded_step_is_a_step():
    given = {name: None if x is None else x.cuda().float() for name, x in draw("heads", True, 64, 64).items()}

    def step():
        gates = Gates(given["log_keep"], given["erase"], given["write"])
        return memory_scan(given["queries"], given["keys"], given["values"], gates, given["memory"], backend="fused")

    with torch.inference_mode():
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step()
        given["values"].normal_()
        graph.replay()
        assert all(map(torch.equal, recorded, step()))


def test_tokens_one_by_one_are_the_whole_text():
    model = LanguageModel(width=64, layers=2).build(50, torch.Generator().manual_seed(0)).cuda().eval()
    text = torch.randint(50, (3, 40), device="cuda")
    with torch.inference_mode():
        whole, _ = model.predict(text, None)
        state, last = None, None
        for token in text.split(1, dim=1):
            last, state = model.predict(token, state)
    torch.testing.assert_close(last, whole, rtol=1e-3, atol=1e-4)
