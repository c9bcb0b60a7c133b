"""Operations done again by addresses: the same numbers to the bit, whatever tensors of the same layout are given."""

from itertools import pairwise, product

import pytest
import torch
from forms import STREAM, Binary, Launcher, LauncherAtOnce, as_launched, forgetting
from torch import Tensor
from torch.nn.functional import normalize
from triton import knobs
from triton.backends.nvidia.driver import CudaLauncher

from palimpsest.kernels import Gates, Relative, memory_scan, relative_attention
from palimpsest.kernels.fused import (
    attention,
    attention_kernels,
    scan,
    scan_kernels,
    scan_launches,
    sum_kernels,
    sums,
)
from palimpsest.kernels.fused.buffer import ALIGNED, Buffer, tensors_in
from palimpsest.kernels.fused.launching import Compiled, straight_to
from palimpsest.kernels.fused.tuned import with_numbers
from palimpsest.look import Look

HALF = torch.bfloat16
TOKENS = (1, 18, 2, 16)
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels of the interpreter are launched")


def test_rooms_of_a_buffer_are_apart_and_aligned():
    buffer = Buffer()
    rooms = [buffer.room(3, 5, dtype=HALF), buffer.room(), buffer.room(64, 4), buffer.room(7, dtype=torch.int32)]
    assert all(room.start % ALIGNED == 0 for room in rooms)
    made = buffer.made_like(torch.zeros(0))
    tensors = tensors_in(made, rooms)
    assert [(x.shape, x.dtype) for x in tensors] == [(room.shape, room.dtype) for room in rooms]
    assert all(x.is_contiguous() for x in tensors)
    ends = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors]
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert made.data_ptr() + made.nbytes >= ends[-1][1]


def test_a_buffer_may_be_of_any_size():
    buffer = Buffer()
    buffer.room(2**31, dtype=HALF)
    assert buffer.room(2).start == 2**32


def test_what_is_not_written_is_no_number_in_any_type():
    buffer = Buffer()
    rooms = [buffer.room(8, dtype=kind) for kind in (torch.float32, HALF, torch.float16)]
    made = buffer.made_like(torch.zeros(0)).fill_(torch.nan)
    assert all(x.isnan().all() for x in tensors_in(made, rooms))


def scanned(queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
    look = Look(map="EluPlusOne", scale="SumToOne")
    return memory_scan(queries, keys, values, Gates(-gate.square(), gate, gate), memory, look=look, backend="fused")


def scanned_wide(queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
    gate = gate.sigmoid().to(HALF)
    half = queries.to(HALF), normalize(keys, dim=-1).to(HALF), values.to(HALF)
    return memory_scan(*half, Gates(None, gate, gate), memory, backend="fused")


def summed(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
    return memory_scan(queries, keys, values, backend="fused")


def attended(queries, keys, values, places, table, bias, mask, vector_keys, vector_values) -> tuple[Tensor, ...]:
    terms = {"relative": Relative(places, table, bias), "mask": mask.sigmoid()}
    terms["persistent"] = (vector_keys, vector_values)
    return (relative_attention(queries, keys, values, backend="fused", **terms),)


TERMS = [TOKENS, TOKENS, TOKENS, TOKENS, (18, 2, 16), (18, 2), (2, 18), (2, 3, 16), (2, 3, 16)]
LONG, LONGER = (1, 36, 2, 16), (1, 68, 2, 16)
WIDE, WIDE_AND_LONG = (1, 18, 2, 72), (1, 68, 1, 72)
KERNELS = {scan: scan_kernels, sums: sum_kernels, attention: attention_kernels}
DOORS = {
    "scan": (scan, scanned, [TOKENS, TOKENS, TOKENS, TOKENS[:3], (1, 2, 16, 16)]),
    "scan in parts": (scan, scanned, [LONG, LONG, LONG, LONG[:3], (1, 2, 16, 16)]),
    "scan of wide heads": (scan, scanned_wide, [WIDE, WIDE, (1, 18, 2, 32), WIDE[:3], (1, 2, 72, 32)]),
    "scan of wide heads in parts": (
        scan,
        scanned_wide,
        [WIDE_AND_LONG, WIDE_AND_LONG, (1, 68, 1, 16), (1, 68, 1), (1, 1, 72, 16)],
    ),
    "sum": (sums, summed, [TOKENS, TOKENS, TOKENS]),
    "sum in parts": (sums, summed, [LONGER, LONGER, LONGER]),
    "attention": (attention, attended, TERMS),
}


@pytest.fixture(autouse=True)
def what_is_long_is_in_parts(monkeypatch):
    for module in (scan, sums):
        usual = module.settings_for

        def in_parts(lines, length, *about, usual=usual):
            settings = usual(lines, length, *about)
            return with_numbers(settings, {"parts": 3} if length > TOKENS[1] else {})

        monkeypatch.setattr(module, "settings_for", in_parts)


def drawn(seed: int, shapes) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=chance).requires_grad_() for shape in shapes]


def outcome(door, given: list[Tensor]) -> list[Tensor]:
    found = door(*given)
    coming = [x.to(one.dtype) for x, one in zip(drawn(3, [x.shape for x in found]), found, strict=True)]
    return [*found, *torch.autograd.grad(found, given, coming)]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@interpreted
@pytest.mark.parametrize("name, form", [*product(DOORS, [Launcher]), ("sum", LauncherAtOnce), ("scan", LauncherAtOnce)])
def test_an_operation_is_the_same_by_addresses(name, form, monkeypatch):
    forgetting(monkeypatch, scan)  # whose door may have its habits
    module, door, shapes = DOORS[name]
    several = [drawn(seed, shapes) for seed in range(2)]
    expected = [outcome(door, given) for given in several]
    kernels = as_launched(monkeypatch, module, KERNELS[module], form)
    for _ in range(2):
        same(outcome(door, several[0]), expected[0])
    assert not any(kernel.by_address for kernel in kernels)
    for times in (1, 2):
        for given, each in zip(several, expected, strict=True):
            same(outcome(door, given), each)
        launched = [kernel for kernel in kernels if kernel.launchers]
        assert len(launched) > 1
        assert all(each.by_address == 2 * times for kernel in launched for each in kernel.launchers)


@interpreted
def test_tensors_that_were_one_may_be_several_the_next_time(monkeypatch):
    one, *several = drawn(0, [TOKENS] * 4)
    expected = outcome(summed, several)
    kernels = as_launched(monkeypatch, sums, sum_kernels)
    for _ in range(2):
        outcome(lambda x: summed(x, x, x), [one])
    same(outcome(summed, several), expected)
    assert any(kernel.by_address for kernel in kernels)


@interpreted
def test_what_is_more_than_launches_is_never_done_by_addresses(monkeypatch):
    usual = scan_launches.put_together
    monkeypatch.setattr(scan_launches, "put_together", lambda *given: usual(*given).clone())
    _, door, shapes = DOORS["scan in parts"]
    given = drawn(0, shapes)
    kernels = as_launched(monkeypatch, scan, scan_kernels)
    first, *others = [outcome(door, given) for _ in range(4)]
    for each in others:
        same(each, first)
    assert len([kernel for kernel in kernels if not kernel.launchers]) == 2  # which are for wide heads
    assert not any(kernel.by_address for kernel in kernels)


# ------------------------------------------------------------------------------------------ Triton's launcher

GRID = (2, 1, 1)


class Kernel:
    """That notes what it is launched with."""

    def __init__(self):
        self.told = []

    def __getitem__(self, grid):
        return lambda *arguments: self.told.append(arguments)


class Packing(Launcher):
    """Another Triton's, which tells all as one."""

    def __call__(self, x, y, z, stream, function, *told):
        self.launch(x, y, z, stream, function, told)


class Needy(Launcher):
    """Of a kernel that needs memory of its own."""

    def __call__(self, x, y, z, stream, function, *told):
        self.launch(x, y, z, stream, function, False, False, torch.zeros(1), None, *told)


@pytest.mark.parametrize("form", [Packing, Needy])
def test_a_launcher_that_is_not_understood_is_left_to_triton(form):
    arguments = (torch.zeros(1), 3)
    assert straight_to(Binary(Launcher(Kernel(), GRID, arguments), None), GRID, arguments) is not None
    assert straight_to(Binary(form(Kernel(), GRID, arguments), None), GRID, arguments) is None


class ItsOwn(CudaLauncher):
    """That of the Triton which is installed, but that it notes what it would launch."""

    global_scratch_size = profile_scratch_size = 0
    global_scratch_align = profile_scratch_align = num_ctas = 1
    launch_cooperative_grid = launch_pdl = gsan_enabled = False

    def __init__(self):
        self.told, self.arg_annotations, self.kernel_signature = [], [], b"signature"

    def launch(self, *told):
        self.told.append(told)


def test_the_launcher_of_this_triton_is_understood(monkeypatch):
    as_launched(monkeypatch, scan, scan_kernels)
    arguments, launcher = (torch.zeros(1), None, 3, ("Identity", 1)), ItsOwn()
    launcher(*GRID, STREAM, "function", "about", None, None, None, *arguments)
    compiled = Compiled(Binary(launcher, None), GRID, arguments[:2], arguments[2:])
    assert compiled.straight is not None
    compiled(arguments[:2])
    usual, straight = launcher.told
    assert usual == straight


def test_who_follows_launches_is_told_of_them(monkeypatch):
    kernel, followed, x = Kernel(), [], torch.zeros(1)
    as_launched(monkeypatch, scan, scan_kernels)
    binary = Binary(Launcher(kernel, GRID, (x,)), lambda *arguments: followed.append(arguments))
    compiled = Compiled(binary, GRID, (x,), (3,))
    compiled((x,))
    assert (kernel.told, followed) == ([(x, 3)], [])
    assert compiled.stream() == STREAM
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", print)
    assert compiled.stream() is None
    compiled((x,))
    assert followed == [(x, 3)]


def test_another_device_is_not_launched_on(monkeypatch):
    as_launched(monkeypatch, scan, scan_kernels)
    x = torch.zeros(1)
    compiled = Compiled(Binary(Launcher(Kernel(), GRID, (x,)), None), GRID, (x,), ())
    compiled.device = 1
    assert compiled.stream() is None
