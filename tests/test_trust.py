"""A fused kernel is tried on a GPU before it is used there, once; one that fails is not used, and the user is told."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from palimpsest.errors import UserError
from palimpsest.kernels import self_test, trust
from palimpsest.kernels.self_test import Case, Trial, fused_trials

GPU = torch.device("cuda", 0)
RIGHT = Trial("memory_scan", "fused", "cuda:0", "Delta", error=1e-6, milliseconds=1.0)
KERNELS = ["memory_scan", "memory_decode", "relative_attention", "delta_rnn", "delta_lstm", "recurrent_delta"]
KERNELS += ["linear_cross_entropy", "short_convolution"]
WRONG = replace(RIGHT, error=0.25, of="reads")
BROKEN = replace(RIGHT, error=None, broken="RuntimeError: an illegal instruction")


class Machine:
    """One with a GPU, as far as trust can see; it counts how often a kernel is tried."""

    def __init__(self, patch, folder):
        self.patch, self.tried, self.found = patch, [], [RIGHT]
        self.capturing = False
        properties = SimpleNamespace(name="A GPU", major=9, minor=0)
        patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        patch.setattr(trust, "trials", self.trials)
        patch.setenv("PALIMPSEST_CACHE", str(folder))
        patch.delenv(trust.CHOICE, raising=False)
        self.triton("3.6.0")
        self.new_process()

    def trials(self, kernel, device, asked):
        self.tried.append((kernel, device))
        yield from self.found

    def new_process(self):
        self.patch.setattr(trust, "VERDICTS", {})

    def triton(self, version):
        self.patch.setattr(trust, "triton_version", lambda: version)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path / "cache")


def silently_trusted(kernel="memory_scan", device=GPU):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return trust.trusted(kernel, device)


def test_a_kernel_is_tried_once_and_its_verdict_outlives_the_process(machine):
    assert all(silently_trusted() for _ in range(3))
    machine.new_process()
    assert silently_trusted()
    assert machine.tried == [("memory_scan", GPU)]


def test_each_kernel_is_tried_by_itself(machine):
    assert silently_trusted("memory_scan")
    assert silently_trusted("delta_rnn")
    assert [kernel for kernel, _ in machine.tried] == ["memory_scan", "delta_rnn"]


@pytest.mark.parametrize(
    "failed, words", [(WRONG, "Delta: reads is off by 2.5e-01"), (BROKEN, "Delta: RuntimeError: an illegal")]
)
def test_a_kernel_that_fails_is_not_used_and_every_process_says_so_once(machine, failed, words):
    machine.found = [RIGHT, failed]
    for _ in range(2):
        with pytest.warns(UserWarning, match="is not right") as told:
            assert not trust.trusted("memory_scan", GPU)
        assert len(told) == 1
        said = str(told[0].message)
        assert all(word in said for word in ("memory_scan", "A GPU", words, "plain form", "palimpsest doctor"))
        assert not silently_trusted()
        machine.new_process()
    assert len(machine.tried) == 1


def test_what_is_asked_for_is_handed_to_the_trial_and_to_no_one_later(machine, monkeypatch):
    handed = []

    def trials(kernel, device, asked):
        handed.append(asked)
        return [RIGHT]

    monkeypatch.setattr(trust, "trials", trials)
    assert all(trust.trusted("memory_scan", GPU, asked) for asked in (len, sum))
    assert handed == [len]


def test_what_is_asked_for_may_fail_while_it_is_rehearsed(monkeypatch):
    compiled = []
    monkeypatch.setattr(self_test, "compile_ahead", lambda noted, device: compiled.append(noted))

    def asked():
        raise RuntimeError("as it will again, where it is told")

    self_test.rehearse([], GPU, asked)
    assert compiled == [[]]


def test_a_trial_that_cannot_be_held_is_a_failure(machine, monkeypatch):
    def no_trials(kernel, device, asked):
        raise RuntimeError("nothing to compare with\nhere")

    monkeypatch.setattr(trust, "trials", no_trials)
    with pytest.warns(UserWarning, match="RuntimeError: nothing to compare with\\)"):
        assert not trust.trusted("memory_scan", GPU)


def test_another_triton_another_gpu_and_other_kernels_are_tried_again(machine, monkeypatch, tmp_path):
    assert silently_trusted()
    machine.triton("3.7.0")
    machine.new_process()
    assert silently_trusted()
    properties = SimpleNamespace(name="Another GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    machine.new_process()
    assert silently_trusted()
    (tmp_path / "kernel.py").write_text("another one")
    monkeypatch.setattr(trust, "FUSED", tmp_path)
    machine.new_process()
    assert silently_trusted()
    assert len(machine.tried) == 4


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"complaint": null}', "\xff"])
def test_a_verdict_that_cannot_be_read_is_found_again(machine, content):
    assert silently_trusted()
    place = trust.place_of("memory_scan", GPU)
    place.file.write_bytes(content.encode("latin-1"))
    machine.new_process()
    assert silently_trusted()
    assert len(machine.tried) == 2
    assert trust.recall(place) == ""


def test_a_cache_that_cannot_be_written_is_no_error(machine, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "file" / "cache"))
    assert silently_trusted()
    machine.new_process()
    assert silently_trusted()
    assert len(machine.tried) == 2


@pytest.mark.parametrize("chosen", ["~nobody-of-this-name/cache", ""])
def test_whoever_has_no_home_tries_in_every_process(machine, monkeypatch, chosen):
    def without_a_home(name):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_cache_path", without_a_home)
    monkeypatch.setenv("PALIMPSEST_CACHE", chosen)
    for _ in range(2):
        assert silently_trusted()
        machine.new_process()
    assert len(machine.tried) == 2


@pytest.mark.parametrize("choice, verdict", [("all", True), ("none", False)])
def test_the_user_may_decide_instead(machine, monkeypatch, choice, verdict):
    monkeypatch.setenv(trust.CHOICE, choice)
    machine.found = [WRONG]
    assert silently_trusted() is verdict
    assert not machine.tried


def test_a_decision_that_means_nothing_is_refused(machine, monkeypatch):
    monkeypatch.setenv(trust.CHOICE, "some")
    with pytest.raises(UserError, match=r"'some'.*all or none"):
        trust.trusted("memory_scan", GPU)


def test_nothing_is_tried_while_a_graph_is_recorded_but_a_bad_verdict_counts(machine):
    machine.capturing = True
    assert silently_trusted()
    trust.remember(trust.place_of("memory_scan", GPU), WRONG.complaint)
    assert not silently_trusted()
    assert not machine.tried


def test_nothing_is_tried_while_torch_compiles_and_the_graph_stays_whole(machine):
    def double_if_trusted(x):
        return 2 * x if trust.trusted("memory_scan", GPU) else x

    for complaint, expected in {"": 2.0, WRONG.complaint: 1.0}.items():
        trust.remember(trust.place_of("memory_scan", GPU), complaint)
        torch.compiler.reset()
        compiled = torch.compile(double_if_trusted, backend="eager", fullgraph=True)
        assert compiled(torch.ones(())).item() == expected
    assert not machine.tried


def test_the_callers_modes_are_not_those_of_the_trial(machine, monkeypatch):
    modes = []

    def trials(kernel, device, asked):
        x = torch.ones(1, requires_grad=True)
        (x * x).backward()
        modes.append((x.grad.item(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        return [RIGHT]

    def never(tensor):
        raise AssertionError("a hook of the caller's")

    monkeypatch.setattr(trust, "trials", trials)
    with (
        torch.inference_mode(),
        torch.autocast("cpu"),
        torch.device("meta"),
        torch.autograd.graph.saved_tensors_hooks(never, never),
    ):
        assert silently_trusted()
    assert modes == [(2.0, False, False)]


def test_a_doctors_trials_are_remembered_for_the_processes_to_come(machine):
    machine.found = [WRONG]
    with pytest.warns(UserWarning, match="is not right"):
        assert not trust.trusted("memory_scan", GPU)
    trust.remember_trials(GPU, [RIGHT, replace(WRONG, backend="chunked"), replace(WRONG, kernel="delta_rnn")])
    machine.new_process()
    assert silently_trusted("memory_scan")
    with pytest.warns(UserWarning, match="is not right"):
        assert not trust.trusted("delta_rnn", GPU)


@pytest.mark.parametrize("roundings, passed", [(1, True), (2, True), (8, False)])
def test_in_half_precision_a_fused_form_may_lose_twice_what_the_plain_one_loses(roundings, passed):
    def scaled(given, backend):
        x = given["x"].to(torch.promote_types(given["x"].dtype, torch.float32))
        if backend == "fused":
            for factor in torch.linspace(1.1, 1.9, roundings - 1):
                x = (x * factor).bfloat16().float() / factor
        return {"scaled": (1.7 * x).to(given["x"].dtype)}

    case = Case("memory_scan", "scaled", ["fused"], {"x": torch.randn(1000)}, scaled, definition="plain")
    trial = case.attempt_in_half("fused", torch.device("cpu"))
    assert (trial.dtype, trial.passed) == ("bfloat16", passed)
    assert 1e-3 < trial.allowed < 1e-2


@pytest.mark.skipif(not (trust.HAS_TRITON and trust.INTERPRETED), reason="needs Triton's interpreter")
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_passes_its_trial(kernel, monkeypatch):
    for name, size in {"ROWS": 1, "MANY": 2, "HEADS": 1, "LENGTH": 5, "LONG": 40, "WIDE": 17, "VECTORS": 1}.items():
        monkeypatch.setattr(self_test, name, size)
    tried = [case for case in self_test.cases() if case.kernel == kernel]
    found = [case.attempt("fused", torch.device("cpu"), case.expected()) for case in tried]
    assert found
    assert all(trial.error is not None and trial.passed for trial in found), found


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_first_trial_is_in_both_precisions_and_only_of_its_kernel(kernel, monkeypatch):
    monkeypatch.setattr(self_test, "LENGTH", 3)
    monkeypatch.setattr(Case, "attempt", lambda case, backend, *rest: replace(RIGHT, kernel=case.kernel))
    monkeypatch.setattr(
        Case, "attempt_in_half", lambda case, backend, *rest: replace(RIGHT, kernel=case.kernel, dtype="bfloat16")
    )
    found = [*fused_trials(kernel, GPU)]
    assert {trial.kernel for trial in found} == {kernel}
    assert {trial.dtype for trial in found} == {"float32", "bfloat16"}


def test_in_half_precision_what_is_not_a_number_does_not_pass():
    def nothing(given, backend):
        return {"nothing": given["x"] / 0 if backend == "fused" else given["x"] / 3}

    case = Case("memory_scan", "nothing", ["fused"], {"x": torch.randn(10)}, nothing, definition="plain")
    trial = case.attempt_in_half("fused", torch.device("cpu"))
    assert not trial.passed
    assert "not a number" in trial.complaint
