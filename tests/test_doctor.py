"""The doctor tells whether training will work, and what to do if it will not."""

import io
import json
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from palimpsest.cli import doctor, examination, main
from palimpsest.cli.examination import NEEDED, OPTIONAL, Finding, Verdict
from palimpsest.kernels import (
    ATTENTION_BACKENDS,
    BACKENDS,
    CONVOLUTION_BACKENDS,
    CROSS_ENTROPY_BACKENDS,
    self_test,
    trust,
)
from palimpsest.kernels.fused import tuned
from palimpsest.kernels.pages import FORMS
from palimpsest.kernels.self_test import Trial

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def examined():
    """What is said on this machine, once for people's eyes and for programs."""
    found = examination.examine(compile=False)
    return SimpleNamespace(text=doctor.as_text(found), json=json.loads(json.dumps(doctor.as_json(found))))


@pytest.fixture
def brief(monkeypatch):
    """Short texts, and nothing that is optional."""
    monkeypatch.setattr(self_test, "LENGTH", 20)
    monkeypatch.setattr(self_test, "MANY", 3)
    monkeypatch.setattr(examination, "OPTIONAL", {})


def consult(capsys, code):
    """What the doctor says to programs before leaving with the code."""
    left = 0
    try:
        main(["doctor", "--json"])
    except SystemExit as leaving:
        left = leaving.code
    assert left == code
    return json.loads(capsys.readouterr().out)


def problem(found, about):
    (one,) = [problem for problem in found["problems"] if problem["about"] == about]
    return one


def test_training_will_work_here_and_everything_was_looked_at(examined):
    assert examined.json["works"]
    topics = {"versions", "devices", "memory", "disk", "compiler", "packages", "self_test"}
    assert {*examined.json} == {"works", "problems", *topics}
    assert examined.json["versions"]["torch"] == torch.__version__
    assert examined.json["devices"]["cpu"]["threads"] == 1
    assert examined.json["disk"]["cache"]["free"] > 0
    assert {*examined.json["packages"]} == {*OPTIONAL}
    assert examined.text.endswith("\n\ntraining will work here")


def test_every_form_is_tried_on_every_device_with_every_kind_of_gate(examined):
    trials = [trial for trials in examined.json["self_test"].values() for trial in trials]
    tried = {(trial["kernel"], trial["backend"], trial["device"]) for trial in trials}
    forms = {"memory_scan": BACKENDS, "relative_attention": ATTENTION_BACKENDS}
    forms |= {"linear_cross_entropy": CROSS_ENTROPY_BACKENDS, "short_convolution": CONVOLUTION_BACKENDS}
    forms |= dict.fromkeys(("delta_rnn", "delta_lstm", "recurrent_delta"), FORMS)
    wanted = {(kernel, name) for kernel, names in forms.items() for name in names if name != "fused"}
    assert {(kernel, backend) for kernel, backend, device in tried if device == "cpu"} == wanted
    assert {device for *_, device in tried} == {str(device) for device in examination.here()}
    assert {trial["case"] for trial in trials if trial["kernel"] == "memory_scan"} >= {"Sum", "Delta", "GatedDelta"}
    for trial in trials:
        assert trial["refused"] or (0 < trial["error"] <= trial["allowed"] and trial["milliseconds"] > 0)


def false_reads(*inputs):
    reads, memory = BACKENDS["reference"](*inputs)
    return reads * (1 + 1e-3), memory


def false_gradients(queries, keys, *inputs):
    return BACKENDS["reference"](queries, keys.detach() + 0 * keys, *inputs)


def no_numbers(*inputs):
    reads, memory = BACKENDS["reference"](*inputs)
    return reads / 0, memory


def no_answer(*inputs):
    raise RuntimeError("no kernel image is available\nfor this device")


@pytest.mark.parametrize(
    "backend, words",
    [
        (false_reads, "reads is off by 1.0e-03"),
        (false_gradients, "the gradient of keys is off by 1.0e+00"),
        (no_numbers, "reads is not a number"),
        (no_answer, "RuntimeError: no kernel image is available"),
    ],
)
def test_a_form_that_lies_is_named_and_training_will_not_work(capsys, monkeypatch, brief, backend, words):
    monkeypatch.setitem(BACKENDS, "recurrent", backend)
    found = consult(capsys, code=1)
    assert not found["works"]
    assert [each["about"] for each in found["problems"] if each["verdict"] == "failure"] == [
        "memory_scan, recurrent, cpu"
    ]
    told = problem(found, "memory_scan, recurrent, cpu")
    assert all(f"{case}: " in told["said"] for case in ("Sum", "Delta", "GatedDelta"))
    assert words in told["said"]
    assert told["remedy"]


def test_a_form_that_is_not_for_this_device_is_no_failure(capsys, monkeypatch, brief):
    def refuse(*inputs):
        raise self_test.BackendRefused("it needs a GPU")

    monkeypatch.setitem(BACKENDS, "elsewhere", refuse)
    found = consult(capsys, code=0)
    assert problem(found, "memory_scan, elsewhere, cpu")["said"] == "not for this device: it needs a GPU"


def test_a_fused_form_that_lies_is_not_needed():
    trial = Trial("memory_scan", "fused", "cuda:0", "Delta", error=0.5, of="reads", dtype="bfloat16", allowed=3e-3)
    told = examination.judge([trial])
    assert told.name == "memory_scan, fused, cuda:0, bfloat16"
    assert told.said == "Delta, bfloat16: reads is off by 5.0e-01, of at most 3.0e-03"
    assert told.verdict is Verdict.WARNING
    assert "plain form" in told.remedy


def test_what_is_tried_on_a_gpu_is_remembered(monkeypatch):
    gpu, noted = torch.device("cuda", 0), []
    trial = Trial("memory_scan", "fused", "cuda:0", "Delta", error=1e-6, milliseconds=1.0)
    monkeypatch.setattr(examination, "here", lambda: [torch.device("cpu"), gpu])
    monkeypatch.setattr(self_test, "self_test", lambda device: [trial])
    monkeypatch.setattr(trust, "remember_trials", lambda *given: noted.append(given))
    assert len([*examination.self_tests()]) == 2
    assert noted == [(gpu, [trial])]


def test_a_package_that_is_missing_comes_with_its_command(monkeypatch):
    def none_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(examination, "version", none_installed)
    findings = [examination.optional_package(name) for name in OPTIONAL]
    assert {finding.verdict for finding in findings} == {Verdict.ABSENT}
    text = doctor.as_text({"packages": findings})
    assert "pip install 'palimpsest[subwords]'" in text
    assert "pip install matplotlib" in text
    assert text.endswith("training will work here")


def test_a_package_that_is_broken_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert examination.optional_package("matplotlib").verdict is Verdict.WARNING


def test_without_a_package_that_is_needed_training_will_not_work(capsys, monkeypatch, brief):
    monkeypatch.setitem(sys.modules, "einops", None)
    found = consult(capsys, code=1)
    assert problem(found, "einops")["remedy"] == "pip install --force-reinstall einops"
    assert found["self_test"] == {}


def test_packages_and_commands_are_those_of_the_project():
    dependencies = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]}
    assert {*NEEDED} | {name for name in OPTIONAL if "[" not in OPTIONAL[name][1]} == dependencies | {"triton"}
    for package, (_, command) in OPTIONAL.items():
        extra = re.search(r"palimpsest\[(\w+)\]", command)
        if extra:
            assert any(line.startswith(package) for line in PROJECT["optional-dependencies"][extra[1]])


def test_a_cache_that_cannot_be_written_is_a_warning_and_a_folder_for_runs_is_needed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    cache, runs = examination.disk()
    assert (cache.verdict, runs.verdict) == (Verdict.WARNING, Verdict.FAILURE)
    assert "PALIMPSEST_CACHE" in cache.remedy
    assert "--folder" in runs.remedy


def test_looking_at_the_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    assert all(finding.verdict is Verdict.FINE for finding in examination.disk())
    assert not list(tmp_path.iterdir())


def test_a_gpu_is_told_with_its_memory(monkeypatch):
    properties = SimpleNamespace(name="A GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**34, 2**35))
    said = {finding.name: finding.said for finding in examination.devices()}
    assert said["cuda:0"] == "A GPU; capability 9.0; 16.0 GiB free of 32.0 GiB"
    assert not trust.HAS_TRITON or said["cuda:0, settings"].startswith("as shipped")
    assert torch.device("cuda", 0) in examination.here()


@pytest.mark.skipif(not trust.HAS_TRITON, reason="needs Triton")
def test_settings_that_were_found_by_tuning_are_told(monkeypatch, tmp_path):
    gpu, entry = torch.device("cuda", 0), {"settings": {"warps": 4}}
    properties = SimpleNamespace(name="A GPU", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path))
    file = trust.place_of("memory_scan", gpu).kept_in(tuned.SHELF)
    file.parent.mkdir()
    file.write_text(json.dumps({"problems": {"one": entry, "another": entry}}))
    (told,) = examination.settings_on(gpu)
    assert (told.verdict, told.said) == (Verdict.FINE, "found by tuning for 2 of memory_scan; else as shipped")
    file.write_text("{")
    (told,) = examination.settings_on(gpu)
    assert (told.verdict, told.remedy) == (Verdict.WARNING, "palimpsest tune --forget")
    assert "the shipped ones are used" in told.said


def test_torch_compile_is_tried_if_asked_and_its_failure_is_a_warning(monkeypatch):
    monkeypatch.setattr(examination, "TRY_COMPILE", "raise SystemExit('no compiler')")
    assert len([*examination.compiler(attempt=False)]) == 1
    _, tried = examination.compiler(attempt=True)
    assert (tried.verdict, tried.said) == (Verdict.WARNING, "no compiler")


@pytest.mark.parametrize("encoding, mark, arrow", [("utf-8", "✗", "→"), ("ascii", "FAIL", "->")])
def test_marks_are_words_where_the_terminal_knows_no_others(encoding, mark, arrow):
    found = {"versions": [Finding("torch", None, "broken", Verdict.FAILURE, "mend it")]}
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding)):
        lines = doctor.as_text(found).splitlines()
    assert lines[1].split() == [mark, "torch", "broken"]
    assert lines[2].split() == [arrow, "mend", "it"]
    assert lines[-1] == "training will not work here: torch"


def test_the_doctor_comes_without_torch_and_tyro():
    program = "import sys, palimpsest.cli.doctor; assert not {'torch', 'numpy', 'tyro'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
