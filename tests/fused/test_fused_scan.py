"""The fused memory scan, held against the definition in float64: reads, the last page and every gradient.

Without a GPU the kernels run in Triton's interpreter, which is taught bfloat16 by tests/bfloat16.py.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from closeness import HALVES, close
from forms import as_compiled, forgetting
from torch import Tensor

from palimpsest.kernels import BackendRefused, Gates, counted_scan, memory_scan
from palimpsest.kernels.fused import scan as fused
from palimpsest.kernels.fused import scan_kernels, scan_launches
from palimpsest.look import Look
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor, Identity, Silu
from palimpsest.memory.key_scales import SumToOne, UnitNorm, Unscaled

USUAL = fused.settings_for
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KEEPS = ("all", "heads", "features")
RULES = [rule for rule in product(KEEPS, (False, True), (False, True)) if rule != ("features", False, True)]

Inputs = dict[str, Tensor | None]


def drawn(
    keep="all", erase=True, write=True, *, length=20, features=12, width=10, packed=False, counted=False
) -> Inputs:
    chance = torch.Generator().manual_seed(length + features)
    tokens = (1, length, 2)

    def uniform(*shape):
        return torch.rand(shape, generator=chance, dtype=torch.float64)

    def normal(*shape):
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    log_keep = None if keep == "all" else -uniform(*tokens, *([features] if keep == "features" else []))
    if packed and log_keep is not None:
        starts = torch.rand(1, length, generator=chance) < 0.1
        log_keep = log_keep.masked_fill(starts.view(1, length, *[1] * (log_keep.ndim - 2)), -torch.inf)
    return {
        "queries": normal(*tokens, features),
        "keys": torch.nn.functional.normalize(normal(*tokens, features), dim=-1),
        "values": normal(*tokens, width),
        "log_keep": log_keep,
        "erase": uniform(*tokens) if erase else None,
        "write": uniform(*tokens) if write else None,
        "memory": normal(1, 2, features, width),
        "column": uniform(1, 2, features, 1) if counted else None,
    }


def outcome(inputs: Inputs, backend: str, dtype: torch.dtype, device: str = "cpu", limit=None, look=None, asked=None):
    """Reads, the last page, what is counted, and the gradient of every input, of one weighted sum of what is asked for.

    All that comes out is asked for, unless some of it is named.
    """
    kinds = dict.fromkeys(("memory", "column"), torch.promote_types(dtype, torch.float32))
    given = {
        name: None if x is None else x.to(device, kinds.get(name, dtype)).requires_grad_() for name, x in inputs.items()
    }
    if inputs["erase"] is not None and inputs["erase"] is inputs["write"]:
        given["write"] = given["erase"]
    gates = Gates(given["log_keep"], given["erase"], given["write"], limit)
    arguments = (given["queries"], given["keys"], given["values"], gates, given["memory"])
    if given["column"] is None:
        results = memory_scan(*arguments, look=look, backend=backend)
    else:
        results = counted_scan(*arguments, given["column"], look=look, backend=backend)
    found = dict(zip(("reads", "last memory", "mass", "last column"), results, strict=False))
    chance = torch.Generator().manual_seed(1)
    # by numbers that are the same in every precision
    weighed = [
        (found[name] * torch.randn(found[name].shape, generator=chance).bfloat16().to(found[name])).sum()
        for name in asked or found
    ]
    leaves = {name: x for name, x in given.items() if x is not None and not (name == "write" and x is given["erase"])}
    gradients = torch.autograd.grad(sum(weighed), list(leaves.values()), allow_unused=True)
    named = zip(leaves, gradients, strict=True)
    return found | {f"gradient of {name}": x for name, x in named if x is not None}


def all_near(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 2e-6) -> None:
    assert found.keys() == expected.keys()
    for name, truth in expected.items():
        error = (found[name].detach().double().cpu() - truth.detach()).norm() / truth.detach().norm().clamp(min=1e-3)
        assert error <= tolerance, f"{name} is off by {error:.1e}"


def as_good_as_rounded(inputs: Inputs, dtype: torch.dtype, beside: float = 0.0) -> None:
    """Nothing is off by more than twice what it costs to round the truth, and this share of it beside."""
    truth = outcome(inputs, "reference", torch.float64)
    found = outcome(inputs, "fused", dtype, DEVICE)
    for name, x in truth.items():
        lost, rounding = ((form[name].to(dtype).double().cpu() - x).norm() for form in (found, truth))
        assert lost <= 2 * rounding + beside * x.norm(), f"{name} is off by {lost:.1e}, rounding costs {rounding:.1e}"


@pytest.fixture(autouse=True)
def cut(monkeypatch):
    """Work cut as a test wants it, and small: the interpreter takes its time."""

    def choose(**changes):
        def chosen(*arguments):
            return replace(USUAL(*arguments), **changes)

        monkeypatch.setattr(fused, "settings_for", chosen)
        forgetting(monkeypatch, fused)

    if DEVICE == "cpu":
        choose(chunk=16)
    return choose


@pytest.mark.parametrize("keep, parts", [("all", 1), ("features", 1), ("heads", 2)])
def test_a_kernel_that_is_known_is_launched_with_the_same_arguments(keep, parts, cut, monkeypatch):
    cut(chunk=16, parts=parts)
    compiled = as_compiled(monkeypatch, fused, scan_kernels)
    inputs = drawn(keep, length=36)
    outcome(inputs, "fused", torch.float32, DEVICE)
    assert not any(kernel.known for kernel in compiled)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))
    unknown = 2 + 2 * (parts == 1)  # two are for wide heads, and one part need not be put together, there and back
    assert len([kernel for kernel in compiled if not kernel.known]) == unknown


@pytest.mark.parametrize("keep, erase, write", RULES, ids=str)
def test_the_fused_form_is_the_definition(keep, erase, write):
    inputs = drawn(keep, erase, write, packed=True)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


COUNTED = [("all", False, False), ("all", True, True), ("heads", False, True)]
COUNTED += [("features", False, False), ("features", False, True), ("features", True, True)]


@pytest.mark.parametrize("keep, erase, write", COUNTED, ids=str)
def test_keys_are_counted_beside_the_page(keep, erase, write):
    inputs = drawn(keep, erase, write, packed=True, counted=True)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("keep, erase", (("heads", False), ("heads", True), ("features", False)))
def test_keys_are_counted_in_parts_of_a_sequence_and_by_several_programs(keep, erase, cut):
    cut(chunk=16, columns=16, parts=2)
    inputs = drawn(keep, erase, True, length=40, width=16, packed=True, counted=True)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("asked", ("reads", "mass"))
def test_what_nobody_asks_for_has_no_say(asked):
    inputs = drawn("heads", False, counted=True)
    found = outcome(inputs, "fused", torch.float32, DEVICE, asked=[asked])
    expected = outcome(inputs, "reference", torch.float64, asked=[asked])
    all_near(found, {name: expected.get(name, torch.zeros_like(x).double().cpu()) for name, x in found.items()})


@pytest.mark.parametrize("length, features, width, chunk", ((1, 8, 8, 16), (16, 24, 10, 16), (35, 24, 33, 32)))
def test_lengths_and_sizes_need_not_be_round(length, features, width, chunk, cut):
    cut(chunk=chunk)
    inputs = drawn("heads", length=length, features=features, width=width)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("keep, erase", list(product(KEEPS, (False, True))), ids=str)
def test_parts_of_a_sequence_may_be_read_at_the_same_time(keep, erase, cut):
    cut(chunk=16, parts=2)
    inputs = drawn(keep, erase, erase, length=40, packed=True)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("write, counted", ((False, False), (True, True)))
def test_parts_that_keep_all_they_are_given_only_add_to_it(write, counted, cut):
    cut(chunk=16, parts=3)
    inputs = drawn("all", False, write, length=40, counted=counted)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("erase", (False, True))
def test_a_memory_that_nobody_asks_for_has_no_say(erase, cut):
    cut(chunk=16, parts=2)
    inputs = drawn("all", erase, erase, length=40)
    found = outcome(inputs, "fused", torch.float32, DEVICE, asked=["reads"])
    all_near(found, outcome(inputs, "reference", torch.float64, asked=["reads"]))


def test_one_gate_may_erase_and_write_and_come_as_a_logit():
    inputs = drawn("heads")
    logits = torch.randn(1, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs |= {"erase": logits, "write": logits}
    found = outcome(inputs, "fused", torch.float32, DEVICE, limit=2.0)
    all_near(found, outcome(inputs, "chunked", torch.float64, limit=2.0))


@pytest.mark.parametrize("gates", ["one", "two", "erase"])
@pytest.mark.parametrize("keep", KEEPS)
def test_gates_of_tokens_that_erase_next_to_nothing_have_their_gradients_too(keep, gates):
    """In chunks that have such tokens, and in chunks that have none; float32 needs no other way for them."""
    inputs = drawn(keep, write=gates == "two", length=72)
    chances = torch.tensor([0.0, 1e-4, -0.01, 0.3, 1.0], dtype=torch.float64)
    inputs["erase"] = chances[torch.randint(5, (1, 72, 2), generator=torch.Generator().manual_seed(0))]
    inputs["erase"][:, 32:64] = inputs["erase"][:, 32:64].abs().clamp(min=0.3)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in inputs.items()}
    if gates == "one":
        inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, torch.bfloat16)


@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@pytest.mark.parametrize("keep, counted", (("all", True), ("heads", False), ("features", False)))
@pytest.mark.parametrize("chances", ((0.0, 1e-6, 1e-3, 0.9), (0.0155, 0.0157, -0.0157)), ids=("nothing", "little"))
def test_a_gate_may_be_zero_or_next_to_it_where_it_erases_and_writes(chances, keep, counted, dtype):
    """Nothing is then written, and the gradient of values is zero; that of the gate is not."""
    inputs = drawn(keep, length=40, packed=True, counted=counted)
    which = torch.randint(len(chances), (1, 40, 2), generator=torch.Generator().manual_seed(0))
    inputs["erase"] = torch.tensor(chances, dtype=torch.float64)[which]
    inputs = {name: None if x is None else x.to(dtype).double() for name, x in inputs.items()}
    inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, dtype, 2e-6)


def test_gradients_of_what_notes_were_made_of_are_saved_only_where_those_of_values_do_not_tell_them(monkeypatch):
    saved, usual = [], scan_launches.gradients
    monkeypatch.setattr(scan_launches, "gradients", lambda *given: saved.append(given[-3]) or usual(*given))
    for dtype in (torch.bfloat16, torch.float32):
        inputs = drawn(length=16)
        outcome(inputs | {"write": inputs["erase"]}, "fused", dtype, DEVICE)
        outcome(inputs, "fused", dtype, DEVICE)
    assert [x is None for x in saved] == [True, False, False, False]


LOOKS = [(map, scale) for map in (Identity(), Silu()) for scale in (Unscaled(), UnitNorm())]
LOOKS += [(EluPlusOne(), SumToOne()), (DPFP(nu=2), SumToOne()), (Favor(directions=10), SumToOne())]


def look_of(map, scale, width: int) -> Look:
    module = map.build(width)
    names = (type(map).__name__, type(scale).__name__)
    return Look(
        lambda x: scale(module.to(x)(x)), getattr(module, "matrix", None), *names, **map.numbers(), **scale.numbers()
    )


def on_device(look: Look) -> Look:
    return look._replace(matrix=None if look.matrix is None else look.matrix.to(DEVICE))


def all_near_on_chip(map, scale, width: int) -> None:
    inputs, look = drawn("heads", features=width), look_of(map, scale, width)
    inputs["memory"] = torch.randn(1, 2, map.features(width), 10, dtype=torch.float64)
    expected = outcome(inputs, "chunked", torch.float64, look=look)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE, look=on_device(look)), expected, 5e-6)


@pytest.mark.parametrize("map, scale", LOOKS, ids=lambda part: type(part).__name__)
def test_features_are_made_on_chip_as_they_are_beside_it(map, scale):
    all_near_on_chip(map, scale, 8)


@pytest.mark.parametrize("map, width", ((DPFP(nu=3), 32), (Favor(directions=64), 16)), ids=("DPFP", "Favor"))
def test_many_features_that_are_made_on_chip_are_multiplied_in_shares(map, width):
    all_near_on_chip(map, SumToOne(), width)


@pytest.mark.parametrize("counted, parts", ((False, 1), (False, 2), (True, 1)))
@pytest.mark.parametrize("map, scale", ((Silu(), UnitNorm()), (EluPlusOne(), SumToOne())), ids=("Silu", "EluPlusOne"))
def test_features_that_several_programs_need_are_made_once(map, scale, counted, parts, cut, monkeypatch):
    looks, usual = [], scan_launches.carry

    def carry(p, *given, **named):
        looks.append(p.look)
        usual(p, *given, **named)

    monkeypatch.setattr(scan_launches, "carry", carry)
    cut(chunk=16, columns=16, parts=parts)
    inputs, look = drawn("heads", features=8, width=20, counted=counted), look_of(map, scale, 8)
    expected = outcome(inputs, "chunked", torch.float64, look=look)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE, look=look), expected, 5e-6)
    assert set(looks) == {fused.BARE}


WIDTHS = [(map, scale, 8) for map, scale in LOOKS] + [(DPFP(3), SumToOne(), 32), (Favor(64), SumToOne(), 16)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("map, scale, width", WIDTHS, ids=lambda part: str(part).partition("(")[0])
def test_features_made_on_chip_lose_no_more_than_twice_what_the_plain_form_does(map, scale, width, dtype):
    exact, look = drawn("heads", features=width, length=60), look_of(map, scale, width)
    exact["memory"] = torch.randn(1, 2, map.features(width), 10, dtype=torch.float64)
    inputs = {name: None if x is None else x.to(dtype).double() for name, x in exact.items()}
    truth = outcome(inputs, "chunked", torch.float64, look=look)
    once = on_device(look)._replace(of=lambda x: look.of(x.float()).to(x.dtype))  # rounded
    plain, found = (outcome(inputs, backend, dtype, DEVICE, look=once) for backend in ("chunked", "fused"))
    for name, x in truth.items():
        lost, most = ((form[name].to(dtype).double().cpu() - x).norm() / x.norm() for form in (found, plain))
        assert lost <= 2 * most + 1e-6, f"{name} is off by {lost:.1e}, the plain form by {most:.1e}"


def test_features_that_are_products_too_large_for_a_kernel_are_made_beside_it():
    made, map = [], DPFP(2)
    look = Look(lambda x: made.append(x.shape) or map.map(x), map="DPFP", nu=2)
    for width in (32, 64):
        inputs = drawn(features=4 * width, width=8) | {"queries": torch.randn(1, 20, 2, width).double()}
        inputs["keys"] = torch.randn(1, 20, 2, width).double() / width
        found, expected = (
            outcome(inputs, backend, dtype, device, look=look, asked=["reads"])
            for backend, dtype, device in (("fused", torch.float32, DEVICE), ("reference", torch.float64, "cpu"))
        )
        close(found["reads"].double().cpu(), expected["reads"], 1e-4)
        assert look.on_chip(width) == (width == 32)
        assert len(made) == (2 if look.on_chip(width) else 4)
        made.clear()


@pytest.mark.parametrize("map", (EluPlusOne(), Favor(directions=10)), ids=lambda part: type(part).__name__)
def test_features_that_are_counted_are_made_on_chip(map):
    inputs, look = drawn("all", False, False, features=8, counted=True), look_of(map, Unscaled(), 8)
    for name, columns in {"memory": 10, "column": 1}.items():
        inputs[name] = torch.rand(1, 2, map.features(8), columns, dtype=torch.float64)
    expected = outcome(inputs, "chunked", torch.float64, look=look)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE, look=on_device(look)), expected, 5e-6)


@pytest.mark.parametrize("keep", KEEPS)
def test_keys_that_are_all_the_same_are_no_trouble(keep):
    inputs = drawn(keep)
    inputs["keys"] = inputs["keys"][:, :1].expand_as(inputs["keys"]).clone()
    inputs |= {"erase": torch.ones(1, 20, 2, dtype=torch.float64), "write": torch.ones(1, 20, 2, dtype=torch.float64)}
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


FADINGS = {
    "all is kept": (0.0,),
    "nothing is kept": (-100.0,),
    "any": (0.0, -1e-3, -0.5, -15.0, -100.0, -3e4, -torch.inf),
}


def fading(choices: tuple[float, ...], **sizes) -> Inputs:
    """Each feature of each token is kept as one of these logarithms says."""
    inputs = drawn("features", **sizes)
    which = torch.randint(len(choices), inputs["log_keep"].shape, generator=torch.Generator().manual_seed(0))
    return inputs | {"log_keep": torch.tensor(choices, dtype=torch.float64)[which]}


@pytest.mark.parametrize("choices", FADINGS.values(), ids=FADINGS.keys())
def test_each_feature_may_fade_as_it_likes(choices, cut):
    cut(chunk=32)
    inputs = fading(choices, length=40)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


def test_a_gate_that_leaves_nothing_has_no_gradient():
    """Not even the rounding of what happens after it."""
    inputs = fading((0.0, -0.5, -100.0, -torch.inf))
    gone = inputs["log_keep"] <= -100
    assert outcome(inputs, "fused", torch.float32, DEVICE)["gradient of log_keep"].cpu()[gone].abs().max() < 1e-30


def test_what_a_great_forgetting_leaves_is_told_to_the_last_digit():
    inputs = drawn("features")
    inputs["log_keep"] = torch.full_like(inputs["log_keep"], -1e-6)
    inputs["log_keep"][:, 3] = -1e4
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


@pytest.mark.parametrize("features, chunk", ((40, 32), (70, 16)))
def test_features_that_fade_by_themselves_come_in_slices(features, chunk, cut):
    cut(chunk=chunk)
    inputs = drawn("features", features=features, packed=True)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE), outcome(inputs, "reference", torch.float64))


def test_features_made_on_chip_may_fade_by_themselves():
    inputs, look = drawn("features", features=8), look_of(DPFP(nu=3), SumToOne(), 8)
    inputs |= {"log_keep": drawn("features", features=48)["log_keep"], "memory": drawn(features=48)["memory"]}
    expected = outcome(inputs, "chunked", torch.float64, look=look)
    all_near(outcome(inputs, "fused", torch.float32, DEVICE, look=look), expected, 5e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("keep, counted", [*product((*KEEPS, "any"), [False]), *product(KEEPS, [True])])
def test_half_precision_costs_no_more_than_rounding_what_comes_out(keep, counted, dtype):
    exact = fading(FADINGS["any"], length=40) if keep == "any" else drawn(keep, not counted, length=40, counted=counted)
    inputs = {name: None if x is None else x.to(dtype).double() for name, x in exact.items()}
    truth = outcome(inputs, "reference", torch.float64)
    found = outcome(inputs, "fused", dtype, DEVICE)
    for name, x in truth.items():
        lost, rounding = ((form[name].to(dtype).double().cpu() - x).norm() for form in (found, truth))
        assert lost <= 2 * rounding + 1e-6 * x.norm(), f"{name} is off by {lost:.1e}, rounding costs {rounding:.1e}"


def test_every_number_is_written(monkeypatch):
    usual = torch.Tensor.new_empty

    def poisoned(self, *arguments, **options):
        return usual(self, *arguments, **options).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: torch.full_like(x, torch.nan, **options))
    for inputs in (drawn("heads", length=33), drawn("heads", False, length=33, counted=True)):
        for name, x in outcome(inputs, "fused", torch.float32, DEVICE).items():
            assert not x.isnan().any(), name


def test_tensors_may_lie_in_memory_as_they_like():
    inputs = drawn("heads")
    expected = outcome(inputs, "reference", torch.float64)
    scattered = {
        name: None if x is None else x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in inputs.items()
    }
    all_near(outcome(scattered, "fused", torch.float32, DEVICE), expected)


@pytest.mark.parametrize("counted", (False, True))
def test_a_graph_of_one_node(counted):
    given = drawn("heads", not counted, counted=counted)
    inputs = {name: None if x is None else x.float().to(DEVICE) for name, x in given.items()}
    leaf = inputs["values"].requires_grad_()

    def reads(values):
        gates = Gates(inputs["log_keep"], inputs["erase"], inputs["write"])
        arguments = (inputs["queries"], inputs["keys"], values, gates, inputs["memory"])
        if not counted:
            return memory_scan(*arguments, backend="fused")[0]
        found, _, mass, _ = counted_scan(*arguments, inputs["column"], backend="fused")
        return found / mass[..., None]

    compiled = torch.compile(reads, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(form(leaf).sin().sum(), leaf)[0] for form in (reads, compiled)]
    close(found[1], found[0])


def test_what_it_cannot_do_is_said():
    inputs = drawn("all")
    with pytest.raises(BackendRefused, match="float64"):
        outcome(inputs, "fused", torch.float64, DEVICE)
    with pytest.raises(BackendRefused, match="at most 256 features"):
        outcome(drawn("all", features=300), "fused", torch.float32, DEVICE)


WOVEN = {
    "one token": {"length": 1, "features": 128, "width": 32},
    "a chunk and one token": {"length": 33, "features": 100, "width": 40},
    "several slices": {"length": 40, "features": 70, "width": 80},
    "three chunks": {"length": 96, "features": 80, "width": 32},
}


@pytest.mark.parametrize("keep", ("all", "heads"))
@pytest.mark.parametrize("sizes", WOVEN.values(), ids=WOVEN.keys())
def test_what_is_saved_as_it_was_multiplied_is_read_so(sizes, keep, cut):
    woven(drawn(keep, packed=True, **sizes), cut)


@pytest.mark.parametrize("keep, length, parts", [("heads", 100, 2), ("all", 170, 3)])
def test_parts_may_save_as_they_multiply(keep, length, parts, cut):
    woven(drawn(keep, length=length, features=128, width=32), cut, parts=parts)


@pytest.mark.parametrize("keep", ("all", "heads"))
def test_gates_next_to_zero_have_their_gradients_there_too(keep, cut):
    inputs = drawn(keep, length=40, features=100, width=40, packed=True)
    little = torch.rand(inputs["erase"].shape, generator=torch.Generator().manual_seed(5)) < 0.3
    inputs["erase"] = inputs["erase"] * torch.where(little, 1e-12, 1.0)
    woven(inputs, cut)


@pytest.mark.parametrize("keep", ("all", "heads"))
def test_a_single_gate_next_to_zero_is_found_among_many(keep, cut):
    inputs = drawn(keep, length=200, features=80, width=20)
    inputs["erase"][-1, 150, -1] = 1e-12
    woven(inputs, cut)


@pytest.mark.parametrize("features, width", ((12, 10), (80, 32)))
@pytest.mark.parametrize("keep", KEEPS)
def test_what_one_gate_is_worth_is_as_exact_however_small_the_gate_is(keep, features, width, cut):
    inputs = drawn(keep, length=70, features=features, width=width)
    inputs["erase"] = 1e-8 ** inputs["erase"]
    woven(inputs, cut)


def test_features_are_made_once_for_what_is_saved_so(cut):
    """And gradients are those of raw queries and keys: no more is lost than twice what the plain form loses."""
    cut(chunk=32)
    look = look_of(Silu(), UnitNorm(), 96)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in drawn(features=96, width=32).items()}
    inputs["write"] = inputs["erase"]
    truth = outcome(inputs, "chunked", torch.float64, look=look)
    once = on_device(look)._replace(of=lambda x: look.of(x.float()).to(x.dtype))  # rounded
    plain, found = (outcome(inputs, backend, torch.bfloat16, DEVICE, look=once) for backend in ("chunked", "fused"))
    for name, x in truth.items():
        lost, most = ((form[name].bfloat16().double().cpu() - x).norm() for form in (found, plain))
        assert lost <= 2 * most, f"{name} is off by {lost:.1e}, the plain form by {most:.1e}"


def woven(inputs: Inputs, cut, **changes) -> None:
    """One gate, bfloat16, many features."""
    cut(chunk=32, **changes)
    inputs = {name: None if x is None else x.bfloat16().double() for name, x in inputs.items()}
    inputs["write"] = inputs["erase"]
    as_good_as_rounded(inputs, torch.bfloat16)
