"""On a GPU: the same arithmetic, held against float64 on the CPU; the same training, to rounding."""

from dataclasses import fields, replace

import pytest
import torch
from forms import forgetting
from toys import metrics, quiet, toy

from palimpsest.cli.recipes import find_recipe, names
from palimpsest.experiment import Translator, load, train
from palimpsest.kernels import BACKENDS, Gates, counted_scan, memory_scan
from palimpsest.kernels.fused.launching import room_of
from palimpsest.kernels.self_test import cases, fused_trials
from palimpsest.look import Look
from palimpsest.spec import Spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("kernel", sorted({case.kernel for case in cases()}))
def test_a_kernel_passes_the_trial_before_its_first_use(kernel):
    found = [*fused_trials(kernel, torch.device("cuda"))]
    assert found
    assert not [trial.complaint for trial in found if not trial.passed]


def test_torch_knows_how_much_shared_memory_there_is():
    assert 2**15 < room_of(torch.device("cuda")) < 2**20


def draw(length, per_feature):
    tokens = (2, length, 3)
    queries, keys = torch.randn(2, *tokens, 24, dtype=torch.float64)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    log_keep = (
        -torch.rand(*tokens, 24, dtype=torch.float64) if per_feature else -torch.rand(tokens, dtype=torch.float64)
    )
    erase, write = torch.rand(2, *tokens, dtype=torch.float64)
    values, memory = torch.randn(*tokens, 16, dtype=torch.float64), torch.randn(2, 3, 24, 16, dtype=torch.float64)
    return [queries, keys, values, log_keep, erase, write, memory]


def outcome(inputs, backend):
    one_gate = inputs[4] is inputs[5]
    inputs = [None if x is None else x.detach().requires_grad_() for x in inputs]
    queries, keys, values, log_keep, erase, write, memory = inputs
    if one_gate:
        write, inputs[5] = erase, None
    gates = Gates(log_keep, erase, write)
    reads, memory = memory_scan(queries, keys, values, gates, memory, backend=backend)
    loss = reads.float().sin().sum() + memory.float().cos().sum()
    slopes = torch.autograd.grad(loss, [x for x in inputs if x is not None])
    # a page is seen through reads: what it holds beyond their precision is not compared
    return [x.detach().to(queries.dtype) for x in (reads, memory, *slopes)]


def errors(actual, expected):
    pairs = zip(actual, expected, strict=True)
    return [float((a.double().cpu() - e).norm() / e.norm()) for a, e in pairs]


@pytest.mark.parametrize("per_feature", [False, True], ids=["keep", "keep per feature"])
@pytest.mark.parametrize("length", [1, 63, 64, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_form_is_as_close_to_float64_as_the_reference_in_the_same_precision(dtype, length, per_feature):
    inputs = draw(length, per_feature)
    rounded = [x.to(dtype) for x in inputs[:-1]] + [inputs[-1].float()]
    truth = outcome([x.double() for x in rounded], "reference")
    on_device = [x.cuda() for x in rounded]
    allowed = [2 * error + 1e-6 for error in errors(outcome(rounded, "reference"), truth)]
    for backend in BACKENDS:
        found = errors(outcome(on_device, backend), truth)
        assert all(one <= most for one, most in zip(found, allowed, strict=True)), (backend, found, allowed)


@pytest.mark.parametrize("gates", ["one", "two"])
@pytest.mark.parametrize("sizes", [(64, 64), (24, 64), (64, 40), (128, 128)], ids=str)
@pytest.mark.parametrize("keep", ["all", "heads", "features"])
@pytest.mark.parametrize("warps", [None, 2, 8])
def test_pages_for_all_processors_are_as_right(monkeypatch, warps, keep, sizes, gates):
    """For which programs are cut otherwise than for a few."""
    from palimpsest.kernels.fused import launching, scan

    usual = scan.settings_for
    several = {} if warps is None else {f"{kernel}_warps": warps for kernel in ("carry", "back", "gradient", "prepare")}
    monkeypatch.setattr(scan, "settings_for", lambda *about: replace(usual(*about), **several))
    forgetting(monkeypatch, scan)
    features, width = sizes
    tokens = (launching.processors_of(torch.device("cuda")) // 8 + 1, 230, 8)
    queries, keys = torch.randn(2, *tokens, features, dtype=torch.float64)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    shape = (*tokens, features) if keep == "features" else tokens
    log_keep = None if keep == "all" else -torch.rand(shape, dtype=torch.float64)
    erase, write = torch.rand(2, *tokens, dtype=torch.float64)
    if gates == "one":  # some of them closed
        erase = erase.where(erase > 0.05, 0.0)
    given = [queries, keys, torch.randn(*tokens, width, dtype=torch.float64), log_keep, erase, write]
    memory = torch.randn(tokens[0], 8, features, width)

    as_close_as_the_plain_form(given, memory, gates == "one", "reference")


def as_close_as_the_plain_form(given, memory, one_gate, definition):
    """In bfloat16 nothing is off by more than twice what the plain form loses."""
    rounded = [None if x is None else x.bfloat16().cuda() for x in given] + [memory.cuda()]
    exact = [None if x is None else x.double() for x in rounded]
    if one_gate:
        rounded[5], exact[5] = rounded[4], exact[4]
    truth = [x.cpu() for x in outcome(exact, definition)]
    allowed = [2 * error + 1e-6 for error in errors(outcome(rounded, "chunked"), truth)]
    found = errors(outcome(rounded, "fused"), truth)
    assert all(one <= most for one, most in zip(found, allowed, strict=True)), (found, allowed)


@pytest.mark.parametrize("gates", ["one", "two", "write"])
@pytest.mark.parametrize("sizes", [(64, 64), (128, 128), (200, 64), (64, 200)], ids=str)
@pytest.mark.parametrize("keep", ["all", "heads", "features"])
def test_parts_of_a_long_sequence_are_as_right(monkeypatch, keep, sizes, gates):
    """Which has few pages, so that its parts start at once; much of one arrives in the next."""
    from palimpsest.kernels.fused import scan

    usual, parts = scan.settings_for, []

    def noted(*about):
        found = usual(*about)
        parts.append(found.parts)
        return found

    monkeypatch.setattr(scan, "settings_for", noted)
    forgetting(monkeypatch, scan)
    features, width = sizes
    tokens = (1, 12000, 2)
    queries, keys = torch.randn(2, *tokens, features, dtype=torch.float64)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    shape = (*tokens, features) if keep == "features" else tokens
    log_keep = None if keep == "all" else -0.02 * torch.rand(shape, dtype=torch.float64)
    erase, write = torch.rand(2, *tokens, dtype=torch.float64)
    if gates == "write":
        erase = None
    elif gates == "one":
        erase /= 10
    given = [queries, keys, torch.randn(*tokens, width, dtype=torch.float64), log_keep, erase, write]
    as_close_as_the_plain_form(given, torch.randn(1, 2, features, width), gates == "one", "chunked")
    assert min(parts) > 1


def positive(x):
    return x.clamp(max=0).exp() + x.relu()


def counted(inputs, backend):
    inputs = [x.detach().requires_grad_() for x in inputs]
    queries, keys, values, log_keep, write, memory, column = inputs
    look = Look(positive, map="EluPlusOne")
    gates = Gates(log_keep, write=write)
    found = counted_scan(queries, keys, values, gates, memory, column, look=look, backend=backend)
    loss = sum((x.float() / x.detach().float().norm()).sin().sum() for x in found)
    return [x.detach().to(queries.dtype) for x in (*found, *torch.autograd.grad(loss, inputs))]


@pytest.mark.parametrize("sizes", [(16, 16), (24, 40), (64, 64), (128, 128)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_keys_are_counted_as_exactly_as_values_are_read(dtype, sizes):
    features, width = sizes
    tokens = (2, 130, 3)
    queries, keys = torch.randn(2, *tokens, features, dtype=torch.float64)
    log_keep, write = -torch.rand(tokens, dtype=torch.float64), torch.rand(tokens, dtype=torch.float64)
    inputs = [queries, keys, torch.randn(*tokens, width, dtype=torch.float64), log_keep, write]
    pages = [torch.randn(2, 3, features, width), torch.rand(2, 3, features, 1)]
    rounded = [x.to(dtype) for x in inputs] + pages
    truth = counted([x.double() for x in rounded], "reference")
    on_device = [x.cuda() for x in rounded]
    allowed = [2 * error + 1e-6 for error in errors(counted(on_device, "chunked"), truth)]
    found = errors(counted(on_device, "fused"), truth)
    assert all(one <= most for one, most in zip(found, allowed, strict=True)), (found, allowed)


def undropped(spec: Spec) -> Spec:
    """The same with nothing dropped: every device has its own chance."""
    changes = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if isinstance(value, Spec):
            changes[field.name] = undropped(value)
        elif field.name == "dropout":
            changes[field.name] = 0.0
    return replace(spec, **changes)


@pytest.mark.parametrize("name", names())
def test_every_recipe_trains_on_the_device_as_on_the_cpu(name, tmp_path):
    losses = {}
    for device in ("cpu", "cuda"):
        run = train(undropped(toy(find_recipe(name), steps=4, device=device)), tmp_path / device, quiet())
        losses[device] = [record["nats"] for record in metrics(run) if "nats" in record]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=2e-3)
    trained = load(tmp_path / "cuda", device="cuda")
    assert trained.translate(["a"]) if isinstance(trained, Translator) else trained.generate("a", length=3)
