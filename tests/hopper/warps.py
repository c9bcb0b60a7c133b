"""Some warps, of one program or of several, that go together; their registers, and what they do to memory."""

import re
from copy import copy

import numpy as np
from bits import OF_ONE, OF_TWO, REAL, as_tf32, bits_of, compared, extracted, meant, permuted, shifted, size_of, wide
from memory import BEGINNING, Fault, GlobalMemory, SharedMemory
from products import Products
from program import Instruction, Program

LANE = np.arange(32)
ADDRESS = re.compile(r"\[\s*([^\s+]+)\s*(?:\+\s*)?(-?\w+)?\s*\]")


class Parting(Exception):
    """Some programs go another way than the others."""

    def __init__(self, programs: np.ndarray):
        self.programs = programs


class Warps(Products):
    def __init__(
        self,
        program: Program,
        warps: range,
        places: list[dict[str, int]],
        given: dict[str, int],
        outside: GlobalMemory,
        shared: SharedMemory,
    ):
        self.program, self.given, self.outside, self.shared = program, given, outside, shared
        within = np.concatenate([32 * warp + LANE for warp in warps])
        self.lanes = len(within)  # of each program
        self.special = {name: np.repeat([place[name] for place in places], self.lanes) for name in places[0]}
        self.special["%tid.x"] = np.tile(within, len(places))
        self.special["global_smem"] = np.full(self.threads, BEGINNING)
        self.registers: dict[str, np.ndarray] = {}
        self.next, self.ended, self.barrier = 0, False, None
        self.copies, self.asked = [[]], [[]]  # on their way, group after group; the last is not closed
        self.written: list[np.ndarray] = []  # where in shared memory, since the last fence
        self.settled: list[np.ndarray] = []  # … by other warps, before the last barrier

    @property
    def threads(self) -> int:
        return len(self.special["%tid.x"])

    @property
    def programs(self) -> np.ndarray:
        """Of each thread."""
        return np.arange(self.threads) // self.lanes

    def of(self, programs: np.ndarray, shared: SharedMemory) -> "Warps":
        """Those of some programs alone."""
        some, threads = copy(self), np.repeat(programs, self.lanes)
        renumbered = np.cumsum(programs) - 1

        def moved(places: np.ndarray) -> np.ndarray:
            program = places[:, 0] // shared.size
            here = programs[program]
            return (places - ((program - renumbered[program]) * shared.size)[:, None])[here]

        def arriving(places: np.ndarray, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return moved(places), data[programs[places[:, 0] // shared.size]]

        some.shared = shared
        some.special = {name: x[threads] for name, x in self.special.items()}
        some.registers = {name: x[threads] for name, x in self.registers.items()}
        some.copies = [[arriving(*each) for each in group] for group in self.copies]
        some.asked = [[each.of(threads) for each in group] for group in self.asked]
        some.written, some.settled = ([moved(each) for each in places] for places in (self.written, self.settled))
        return some

    def run(self) -> None:
        """Until the next barrier, or the end."""
        while True:
            one = self.program.instructions[self.next]
            guard = None if one.guard is None else self.read(one.guard, "pred") != one.unless
            if one.name in ("bra", "ret"):
                if self.agree(guard, one):
                    if one.name == "ret":
                        return self.end()
                    self.next = one.target
                    continue
            elif one.name == "bar" and one.words[0] == "sync":
                self.barrier = one.text
            else:
                try:
                    self.do(one, guard)
                except (Fault, ValueError, KeyError, AttributeError, TypeError) as error:
                    raise Fault(f"{one.text}: {error}") from error
            self.next += 1
            if self.barrier is not None:
                return None

    def agree(self, guard: np.ndarray | None, one: Instruction) -> bool:
        """All threads do, or all threads of a program."""
        if guard is None or guard.all():
            return True
        programs = guard.reshape(-1, self.lanes)
        if (programs.any(1) != programs.all(1)).any():
            raise Fault(f"threads part: {one.text}")
        if guard.any():
            raise Parting(programs[:, 0])
        return False

    def end(self) -> None:
        self.ended = True
        if any(self.asked):
            raise Fault("ends before its products are there")

    def do(self, one: Instruction, guard: np.ndarray | None) -> None:
        kind = one.words[-1] if one.words else ""
        to, *inputs = one.operands or [None]
        if one.name in OF_TWO:
            self.write(to, OF_TWO[one.name](*(self.read(x, kind) for x in inputs)), kind, guard)
        elif one.name in OF_ONE:
            self.write(to, OF_ONE[one.name](self.read(inputs[0], kind)), kind, guard)
        else:
            getattr(self, f"do_{one.name}")(one, kind, guard)

    # ----------------------------------------------------------------------------------------------- registers

    def read(self, operand: str, kind: str) -> np.ndarray:
        if operand in self.registers:
            bits = self.registers[operand]
            return bits if kind == "pred" else meant(bits.astype(f"u{size_of(kind)}", copy=False), kind)
        if operand in self.special:
            return meant(self.special[operand].astype(f"u{size_of(kind)}"), kind)
        if operand.startswith("%"):
            raise Fault(f"{operand} was never written")
        number = int(operand[2:], 16) if operand[:2] in ("0f", "0d") else int(operand.rstrip("U"), 0)
        if kind == "pred":
            return np.full(self.threads, bool(number))
        bits = np.full(self.threads, number & (1 << 8 * size_of(kind)) - 1, f"u{size_of(kind)}")
        return meant(bits, kind)

    def read_part(self, operand: str, kind: str) -> np.ndarray:
        """Of a whole whose other part may be all that somebody asks for: if it was never written, it is no number."""
        if operand.startswith("%r") and operand not in self.registers:
            return np.full(self.threads, -1).astype(f"u{size_of(kind)}")
        return self.read(operand, kind)

    def write(self, name: str, numbers: np.ndarray, kind: str, guard: np.ndarray | None = None) -> None:
        bits = bits_of(numbers, kind)
        if guard is not None and not guard.all():
            unknown = np.zeros_like(bits) if kind == "pred" else ~np.zeros_like(bits)  # as a number, none
            bits = np.where(guard, bits, self.registers.get(name, unknown).astype(bits.dtype, copy=False))
        self.registers[name] = bits

    def do_mov(self, one, kind, guard):
        to, what = one.operands
        if isinstance(to, list):
            whole, part = self.read(what, kind), f"b{8 * size_of(kind) // len(to)}"
            parts = whole.view(f"u{size_of(part)}").reshape(-1, len(to))
            for name, each in zip(to, parts.T, strict=True):
                self.write(name, each, part, guard)
        elif isinstance(what, list):
            part = f"b{8 * size_of(kind) // len(what)}"
            parts = np.stack([self.read_part(each, part) for each in what], 1)
            self.write(to, parts.view(f"u{size_of(kind)}").reshape(-1), kind, guard)
        else:
            self.write(to, self.read(what, kind), kind, guard)

    def do_mul(self, one, kind, guard):
        a, b = (self.read(x, kind) for x in one.operands[1:])
        if kind in REAL or "lo" in one.words:
            return self.write(one.operands[0], a * b, kind, guard)
        full = a.astype(f"{a.dtype.kind}{2 * a.dtype.itemsize}") * b
        if "hi" in one.words:
            return self.write(one.operands[0], full >> 8 * a.dtype.itemsize, kind, guard)
        return self.write(one.operands[0], full, wide(kind), guard)

    def do_mad(self, one, kind, guard):
        a, b = (self.read(x, kind) for x in one.operands[1:3])
        if "wide" in one.words:
            a, kind = a.astype(f"{a.dtype.kind}{2 * a.dtype.itemsize}"), wide(kind)
        self.write(one.operands[0], a * b + self.read(one.operands[3], kind), kind, guard)

    def do_fma(self, one, kind, guard):
        a, b, c = (self.read(x, kind).astype(np.float64) for x in one.operands[1:])
        self.write(one.operands[0], a * b + c, kind, guard)

    def do_shl(self, one, kind, guard):
        x, by = self.read(one.operands[1], kind), self.read(one.operands[2], "u32")
        self.write(one.operands[0], shifted(x, by, left=one.name == "shl"), kind, guard)

    do_shr = do_shl

    def do_bfe(self, one, kind, guard):
        x, start, count = self.read(one.operands[1], kind), *(self.read(x, "u32") for x in one.operands[2:])
        self.write(one.operands[0], extracted(x, start, count), kind, guard)

    def do_prmt(self, one, kind, guard):
        self.write(one.operands[0], permuted(*(self.read(x, kind) for x in one.operands[1:])), kind, guard)

    def do_selp(self, one, kind, guard):
        a, b = (self.read(x, kind) for x in one.operands[1:3])
        self.write(one.operands[0], np.where(self.read(one.operands[3], "pred"), a, b), kind, guard)

    def do_setp(self, one, kind, guard):
        a, b = (self.read(x, kind) for x in one.operands[1:3])
        found = compared(one.words[0], a, b)
        if len(one.operands) > 3:
            found = OF_TWO[one.words[1]](found, self.read(one.operands[3], "pred"))
        names = one.operands[0].split("|")  # of pairs, one for each
        for name, each in zip(names, found.reshape(self.threads, -1).T, strict=True):
            self.write(name, each, "pred", guard)

    def do_cvt(self, one, kind, guard):
        *_, into, kind = one.words
        numbers = [self.read(x, kind) for x in one.operands[1:]]
        if into.endswith("x2"):  # the first is the upper half
            numbers = [np.stack(numbers[::-1], 1)]
        elif into == "tf32":
            return self.write(one.operands[0], as_tf32(numbers[0]), "f32", guard)
        elif kind in REAL and into not in REAL:
            rounded = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
            numbers = [rounded[next(word for word in one.words if word in rounded)](numbers[0])]
        return self.write(one.operands[0], numbers[0], into, guard)

    # --------------------------------------------------------------------------------------- from lane to lane

    def do_shfl(self, one, kind, guard):
        x, other = (self.read(x, kind).reshape(-1, 32) for x in one.operands[1:3])
        other = other.astype(np.int64)
        lane = {"bfly": LANE ^ other, "idx": other & 31, "up": LANE - other, "down": LANE + other}[one.words[1]]
        lane = np.where((lane < 0) | (lane > 31), LANE, lane)
        self.write(one.operands[0].split("|")[0], np.take_along_axis(x, lane, 1).reshape(-1), kind, guard)

    def do_redux(self, one, kind, guard):
        x = self.read(one.operands[1], kind).reshape(-1, 32)
        found = {"max": np.max, "min": np.min, "add": np.sum}[one.words[1]](x, axis=1)
        self.write(one.operands[0], np.repeat(found, 32), kind, guard)

    # -------------------------------------------------------------------------------------------------- memory

    def address(self, operand: str, kind: str = "u32") -> np.ndarray:
        base, further = ADDRESS.fullmatch(operand).groups()
        return self.read(base, kind).astype(np.int64) + int(further or "0", 0)

    def do_ld(self, one, kind, guard):
        to, where = one.operands
        if one.words[0] == "param":
            number = self.given[where.strip("[] ")] & (1 << 8 * size_of(kind)) - 1
            return self.write(to, np.full(self.threads, number, f"u{size_of(kind)}"), kind, guard)
        names, size = to if isinstance(to, list) else [to], size_of(kind)
        shared = one.words[0].startswith("shared")
        here = np.full(self.threads, True) if guard is None else guard
        found = np.full((self.threads, size * len(names)), 0xFF, np.uint8)
        if here.any() and shared:
            found[here] = self.shared.bytes[self.places(self.address(where), size * len(names), here)]
        elif here.any():
            found[here] = self.outside.load(self.address(where, "u64")[here], size * len(names))
        words = found.view(f"u{size}")
        for name, bits in zip(names, words.T, strict=True):
            self.write(name, bits, f"b{8 * size}", guard)

    def do_st(self, one, kind, guard):
        where, what = one.operands
        names, shared = what if isinstance(what, list) else [what], one.words[0].startswith("shared")
        words = np.stack([self.read(name, f"b{8 * size_of(kind)}") for name in names], 1)
        here = np.full(self.threads, True) if guard is None else guard
        if not here.any():
            return
        data = words.view(np.uint8).reshape(self.threads, -1)[here]
        if shared:
            self.write_shared(self.places(self.address(where), data.shape[1], here), data)
        else:
            self.outside.store(self.address(where, "u64")[here], data)

    def places(self, addresses: np.ndarray, size: int, here: np.ndarray) -> np.ndarray:
        """Of some threads, in shared memory."""
        return self.shared.places(self.programs[here], addresses[here], size)

    def write_shared(self, places: np.ndarray, data: np.ndarray) -> None:
        self.shared.bytes[places] = data
        if self.program.has_groups:
            self.written.append(places)

    def do_fence(self, one, kind, guard):
        """Of what these warps wrote, and others before the last barrier."""
        for places in (*self.written, *self.settled):
            self.shared.show_groups(places)
        self.written, self.settled = [], []

    def do_bar(self, one, kind, guard):
        """Of one warp, whose lanes go together as it is."""

    def do_cp(self, one, kind, guard):
        """From memory to shared memory, where nothing arrives before it is waited for."""
        what = one.words[1]
        if what == "commit_group":
            self.copies.append([])
        elif what == "wait_group":
            while len(self.copies) > int(one.operands[0]) + 1:
                for places, data in self.copies.pop(0):
                    self.shared.bytes[places] = data
                    self.shared.show_groups(places)
        else:
            to, source, size, *some = one.operands
            size, here = int(size, 0), np.full(self.threads, True) if guard is None else guard
            present = here & (self.read(some[0], "u32") > 0) if some else here  # for others zeros are written
            data = np.zeros((self.threads, size), np.uint8)
            if present.any():
                data[present] = self.outside.load(self.address(source, "u64")[present], size)
            self.copies[-1].append((self.places(self.address(to), size, here), data[here]))
