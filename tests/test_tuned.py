"""Settings that were found on a GPU are used there, for as long as everything is as it was; else the shipped ones."""

import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from palimpsest.errors import UserError
from palimpsest.kernels import trust
from palimpsest.kernels.fused import tuned
from palimpsest.kernels.fused.tuned import forget, numbers_of, problem_of, remember, with_numbers

GPU = torch.device("cuda", 0)


class Launch(NamedTuple):
    tile: int
    warps: int


class Nested(NamedTuple):
    forward: Launch
    programs: int


@dataclass(frozen=True)
class Flat:
    columns: int
    warps: int = 4


SHIPPED, FOUND = Flat(32), Flat(16, 2)


def given(*shape):
    """The inputs of an operation on a GPU."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=torch.bfloat16, device=GPU), None, "EluPlusOne", 1.0


class Machine:
    """One with a GPU, as far as anybody looks."""

    def __init__(self, patch, folder):
        self.patch = patch
        patch.setenv("PALIMPSEST_CACHE", str(folder))
        self.gpu("A GPU")
        self.triton("3.6.0")
        self.new_process()

    def gpu(self, name):
        properties = SimpleNamespace(name=name, major=9, minor=0)
        self.patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def triton(self, version):
        self.patch.setattr(trust, "triton_version", lambda: version)

    def new_process(self):
        self.patch.setattr(tuned, "TABLES", {})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path / "cache")


def silently(inputs, shipped=SHIPPED):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return tuned.tuned("memory_scan", inputs, shipped)


def file():
    return trust.place_of("memory_scan", GPU).kept_in(tuned.SHELF)


@pytest.mark.parametrize("settings", [FOUND, Nested(Launch(64, 4), 528)], ids=["dataclass", "named tuples"])
def test_settings_are_numbers_by_name_and_numbers_make_settings(settings):
    numbers = numbers_of(settings)
    assert with_numbers(settings, numbers) == settings
    for name, number in numbers.items():
        other = with_numbers(settings, {name: number + 1})
        assert type(other) is type(settings)
        assert numbers_of(other) == {**numbers, name: number + 1}


def test_numbers_have_the_names_of_the_parts_they_are_in():
    assert numbers_of(Nested(Launch(64, 4), 528)) == {"forward.tile": 64, "forward.warps": 4, "programs": 528}


def test_a_problem_tells_types_sizes_and_numbers():
    assert problem_of(given(2, 3)) == "bfloat16[2×3] - EluPlusOne 1.0"


def test_what_was_found_is_used_here_and_in_processes_to_come(machine):
    assert silently(given(2, 3)) == SHIPPED
    remember("memory_scan", given(2, 3), FOUND, milliseconds=0.5)
    assert silently(given(2, 3)) == FOUND
    machine.new_process()
    assert silently(given(2, 3)) == FOUND


def test_other_sizes_and_other_kernels_are_as_shipped(machine):
    remember("memory_scan", given(2, 3), FOUND)
    assert silently(given(2, 4)) == SHIPPED
    assert tuned.tuned("relative_attention", given(2, 3), SHIPPED) == SHIPPED


def test_several_problems_share_a_table(machine):
    remember("memory_scan", given(2, 3), FOUND)
    remember("memory_scan", given(2, 4), Flat(16, 8))
    assert [silently(given(2, size)) for size in (3, 4)] == [FOUND, Flat(16, 8)]
    remember("memory_scan", given(2, 3), None)
    assert [silently(given(2, size)) for size in (3, 4)] == [SHIPPED, Flat(16, 8)]


def test_another_gpu_another_triton_and_other_kernels_have_what_is_shipped(machine, monkeypatch, tmp_path):
    remember("memory_scan", given(2, 3), FOUND)
    machine.triton("3.7.0")
    machine.new_process()
    assert silently(given(2, 3)) == SHIPPED
    machine.triton("3.6.0")
    machine.gpu("Another GPU")
    machine.new_process()
    assert silently(given(2, 3)) == SHIPPED
    machine.gpu("A GPU")
    (tmp_path / "kernel.py").write_text("another one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trust, "FUSED", tmp_path)
        machine.new_process()
        assert silently(given(2, 3)) == SHIPPED
    machine.new_process()
    assert silently(given(2, 3)) == FOUND


ENTRY = '{"problems": {"bfloat16[2×3] - EluPlusOne 1.0": {"settings": %s}}}'
BROKEN = ["", "{", "[]", "{}", '{"problems": []}', ENTRY % "[]", ENTRY % "null", ENTRY % '{"columns": "wide"}']
BROKEN += [ENTRY % '{"rows": 16}', ENTRY % '{"columns": 16.5}']


@pytest.mark.parametrize("content", BROKEN)
def test_a_table_that_cannot_be_read_is_told_and_what_is_shipped_is_used(machine, content):
    remember("memory_scan", given(2, 3), FOUND)
    file().write_text(content, "utf-8")
    machine.new_process()
    with pytest.warns(UserWarning, match=r"memory_scan cannot be read .*shipped are used; `palimpsest tune --forget`"):
        assert tuned.tuned("memory_scan", given(2, 3), SHIPPED) == SHIPPED
    remember("memory_scan", given(2, 3), FOUND)
    assert silently(given(2, 3)) == FOUND


def test_bytes_that_are_no_text_are_no_table(machine):
    remember("memory_scan", given(2, 3), FOUND)
    file().write_bytes(b"\xff\xfe")
    machine.new_process()
    with pytest.warns(UserWarning, match="cannot be read"):
        assert tuned.tuned("memory_scan", given(2, 3), SHIPPED) == SHIPPED


def test_what_is_forgotten_is_not_used(machine):
    remember("memory_scan", given(2, 3), FOUND)
    remember("relative_attention", given(2, 3), FOUND)
    assert forget() == 2
    assert silently(given(2, 3)) == SHIPPED
    machine.new_process()
    assert silently(given(2, 3)) == SHIPPED
    assert forget() == 0


def test_a_cache_that_cannot_be_written_is_told(machine, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot be written .*: set PALIMPSEST_CACHE"):
        remember("memory_scan", given(2, 3), FOUND)


def test_settings_are_tried_without_being_remembered(machine):
    remember("memory_scan", given(2, 3), FOUND)
    with tuned.trying("memory_scan", given(2, 3), Flat(16, 8)):
        assert silently(given(2, 3)) == Flat(16, 8)
        assert silently(given(2, 4)) == SHIPPED
    with tuned.trying("memory_scan", given(2, 3), None):
        assert silently(given(2, 3)) == SHIPPED
    assert silently(given(2, 3)) == FOUND


def test_a_processor_has_what_is_shipped(machine):
    assert silently((torch.zeros(2, 3), None)) == SHIPPED
