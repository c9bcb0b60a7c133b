"""Products of matrices: those of a warp, and those of a group of four, which take their time."""

from typing import NamedTuple

import numpy as np
from bits import meant
from memory import Fault
from program import Instruction

GROUP = 128  # threads
SPANS = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row of a tile, by how the tile is laid out


class Asked(NamedTuple):
    """A product of a group that is on its way."""

    sums: list[str]
    left: np.ndarray | list[np.ndarray]  # where the tile lies, or numbers
    right: np.ndarray
    adds: bool
    columns: int
    kind: str
    turned: tuple[bool, bool]

    def of(self, threads: np.ndarray) -> "Asked":
        left = [x[threads] for x in self.left] if isinstance(self.left, list) else self.left[threads]
        return self._replace(left=left, right=self.right[threads])


class Products:
    """What warps can do with matrices. Of 8 × 8 numbers a lane has two neighbours: lane // 4 is their row."""

    def do_ldmatrix(self, one, kind, guard):
        number = count_of(one)
        places = self.places(self.address(one.operands[1]), 16, np.arange(self.threads) % 32 < 8 * number)
        tiles = self.shared.bytes[places].view(np.uint16).reshape(-1, number, 8, 8)
        tiles = np.ascontiguousarray(tiles.swapaxes(2, 3) if "trans" in one.words else tiles)
        pairs = tiles.view(np.uint32).reshape(-1, number, 32)
        for place, name in enumerate(listed(one.operands[0])):
            self.write(name, pairs[:, place].reshape(-1), "b32")

    def do_stmatrix(self, one, kind, guard):
        number = count_of(one)
        pairs = np.stack([self.read(x, "b32").reshape(-1, 32) for x in listed(one.operands[1])], 1)
        tiles = pairs.view(np.uint16).reshape(-1, number, 8, 8)
        tiles = np.ascontiguousarray(tiles.swapaxes(2, 3) if "trans" in one.words else tiles)
        here = np.full(self.threads, True) if guard is None else guard
        rows = tiles[here[::32]].view(np.uint8).reshape(-1, 16)
        of_rows = here & (np.arange(self.threads) % 32 < 8 * number)
        self.write_shared(self.places(self.address(one.operands[0]), 16, of_rows), rows)

    def do_mma(self, one, kind, guard):
        """[16, k] × [k, 8]"""
        kind, depth = one.words[6], int(one.words[2].split("k")[1])
        to, left, right, added = one.operands
        a, b = ([self.read(x, "b32") for x in side] for side in (left, right))
        found = left_tile(a, kind) @ right_tile(b, kind, depth).swapaxes(1, 2)
        pairs = found.reshape(-1, 2, 32, 2).transpose(1, 3, 0, 2).reshape(4, -1)
        for name, sums, before in zip(to, pairs, added, strict=True):
            self.write(name, sums + self.read(before, "f32"), "f32")

    def do_wgmma(self, one, kind, guard):
        what = one.words[0]
        if what == "commit_group":
            self.asked.append([])
        elif what == "wait_group":
            while len(self.asked) > int(one.operands[0]) + 1:
                for asked in self.asked.pop(0):
                    self.multiply(asked)
        elif what == "mma_async":
            self.asked[-1].append(self.asked_by(one))

    def asked_by(self, one: Instruction) -> Asked:
        """What lies in shared memory is read as late as it may be."""
        shape, kind = next(word for word in one.words if word.startswith("m64")), one.words[-1]
        sums, left, right, adds, *signs = one.operands
        turned = [sign == "1" for sign in signs[2:]]
        if signs[:2] != ["1", "1"] or self.threads % GROUP:
            raise Fault("no product that is known here")
        if isinstance(left, list):
            a, turned = [self.read(x, "b32") for x in left], [False, *turned]
        else:
            a = self.read(left, "b64")
        columns = int(shape.split("n")[1].split("k")[0])
        turned = tuple(turned) or (False, False)
        return Asked(sums, a, self.read(right, "b64"), bool(self.read(adds, "pred")[0]), columns, kind, turned)

    def multiply(self, asked: Asked) -> None:
        """[64, k] × [k, columns], of each group."""
        depth = 8 if asked.kind == "tf32" else 16
        if isinstance(asked.left, list):
            a = left_tile(asked.left, asked.kind).reshape(-1, 64, depth)
        else:
            a = self.tiles_at(asked.left, 64, depth, asked.kind, asked.turned[0])
        found = a @ self.tiles_at(asked.right, asked.columns, depth, asked.kind, asked.turned[-1]).swapaxes(1, 2)
        parts = found.reshape(-1, 4, 2, 8, asked.columns // 8, 4, 2)  # group warp half row tile pair number
        parts = parts.transpose(4, 2, 6, 0, 1, 3, 5).reshape(len(asked.sums), -1)
        for name, sums in zip(asked.sums, parts, strict=True):
            self.write(name, sums + self.read(name, "f32") if asked.adds else sums, "f32")

    def tiles_at(self, described: np.ndarray, rows: int, depth: int, kind: str, turned: bool) -> np.ndarray:
        """[groups, rows, depth] of shared memory, as descriptors tell; turned, rows lie beside each other."""
        words = described.reshape(-1, GROUP)[:, 0].astype(np.int64)[:, None, None]
        start, leading, stride = ((words >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        span, size = SPANS[int(words.flat[0]) >> 62 & 3], 4 if kind == "tf32" else 2
        row, number = np.arange(rows)[:, None], np.arange(depth)[None, :]
        if turned:
            across = span // size
            at = start + row // across * leading + number // 8 * stride + number % 8 * span + row % across * size
        else:
            at = start + row // 8 * stride + row % 8 * span + number * size
        at ^= (at >> 7 & span // 16 - 1) << 4
        programs = np.repeat(self.programs[::GROUP], rows * depth)
        places = self.shared.places(programs, at.reshape(-1), size)
        found = self.shared.load_for_group(places).view(f"u{size}").reshape(at.shape)
        return numbers_of(found, kind)


def listed(operand) -> list[str]:
    return operand if isinstance(operand, list) else [operand]


def count_of(one: Instruction) -> int:
    return int(next(word for word in one.words if word in ("x1", "x2", "x4"))[1:])


def numbers_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """As products take them: of float32, TF32 is the first 19 bits."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else meant(bits, kind)


def lanes_of(registers: list[np.ndarray], kind: str) -> np.ndarray:
    """[registers, warps, 8, …]: what lanes have of each register's tile, row by row."""
    bits = np.stack(registers)
    numbers = numbers_of(bits if kind == "tf32" else bits.view(np.uint16), kind)
    return numbers.reshape(len(registers), -1, 8, 4 if kind == "tf32" else 8)


def left_tile(registers: list[np.ndarray], kind: str) -> np.ndarray:
    """[warps, 16, depth]: registers are of the upper rows, the lower ones, and then the same further right."""
    parts = lanes_of(registers, kind)
    columns = [np.concatenate([parts[at], parts[at + 1]], 1) for at in range(0, len(parts), 2)]
    return np.concatenate(columns, 2)


def right_tile(registers: list[np.ndarray], kind: str, depth: int) -> np.ndarray:
    """[warps, 8, depth]"""
    found = np.concatenate([*lanes_of(registers, kind)], 2)
    if found.shape[2] != depth:
        raise Fault(f"a depth of {depth} in {len(registers)} registers")
    return found
