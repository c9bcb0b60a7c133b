"""What bits in registers mean, and what instructions without side effects make of them."""

from collections.abc import Callable

import numpy as np

# bits of each kind, as numpy has them; halves are computed with as float32, pairs of them side by side
HELD = {
    "pred": np.bool_,
    **{f"{sign}{size}": np.dtype(f"u{size // 8}") for sign in "bu" for size in (8, 16, 32, 64)},
    **{f"s{size}": np.dtype(f"i{size // 8}") for size in (8, 16, 32, 64)},
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "bf16": np.dtype("u2"),
    "f16": np.dtype("u2"),
    "bf16x2": np.dtype("u4"),
    "f16x2": np.dtype("u4"),
}
REAL = ("f32", "f64", "bf16", "f16", "bf16x2", "f16x2")


def meant(bits: np.ndarray, kind: str) -> np.ndarray:
    """By as many bits as the kind has."""
    if kind.endswith("x2"):
        return meant(bits.view(np.uint16), kind[:-2]).reshape(-1, 2)
    if kind == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(HELD[kind])


def bits_of(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Rounded to the nearest where the kind has less."""
    if kind == "pred":
        return numbers.astype(np.bool_)
    if kind.endswith("x2"):
        return bits_of(numbers, kind[:-2]).view(np.uint32).reshape(-1)
    if kind == "bf16":
        whole = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32).astype(np.uint64)
        rounded = (whole + 0x7FFF + (whole >> 16 & 1)) >> 16
        return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16)
    if kind == "f16":
        return numbers.astype(np.float16).view(np.uint16)
    held = HELD[kind]
    return np.ascontiguousarray(numbers, dtype=held).view(f"u{held.itemsize}")


def as_tf32(numbers: np.ndarray) -> np.ndarray:
    """The first 19 bits, rounded."""
    return (numbers.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def size_of(kind: str) -> int:
    return np.dtype(HELD[kind]).itemsize


def wide(kind: str) -> str:
    """A kind of twice the bits."""
    return f"{kind[0]}{16 * size_of(kind)}"


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    a, b = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)  # who divides by zero does not ask
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def remaining(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.fmod(a, np.where(b == 0, 1, b))


def shifted(x: np.ndarray, by: np.ndarray, left: bool) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    less = np.minimum(by, bits - 1).astype(x.dtype)
    found = x << less if left else x >> less
    return found if x.dtype.kind == "i" and not left else np.where(by >= bits, 0, found).astype(x.dtype)


def extracted(x: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Some bits, as a number with or without a sign."""
    start, count = start.astype(np.int64), count.astype(np.int64)
    found = x.view(f"u{x.dtype.itemsize}").astype(np.int64) >> start & (1 << count) - 1
    return found if x.dtype.kind == "u" else np.where(found >> count - 1 & 1, found - (1 << count), found)


def permuted(low: np.ndarray, high: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Four bytes of eight; where a choice is above seven, eight times the first bit of one."""
    both, found = low.astype(np.uint64) | high.astype(np.uint64) << 32, np.zeros(len(low), np.uint64)
    for place in range(4):
        which = choice.astype(np.uint64) >> 4 * place & 15
        byte = both >> (which & 7) * 8 & 255
        byte = np.where(which & 8, np.where(byte & 128, 255, 0), byte).astype(np.uint64)
        found |= byte << 8 * place
    return found.astype(np.uint32)


COMPARED: dict[str, Callable] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def compared(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """With a `u` behind it, also where one is no number."""
    missing = np.isnan(a) | np.isnan(b) if a.dtype.kind == "f" else np.False_
    if how in ("num", "nan"):
        return missing if how == "nan" else ~missing
    either = len(how) > 2
    found = COMPARED[how[:2]](a, b)
    return found | missing if either else found & ~missing


# what is computed with two numbers of a kind, and comes out as one of it
OF_TWO: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.fmin,
    "max": np.fmax,
    "div": divided,
    "rem": remaining,
}
OF_ONE: dict[str, Callable] = {
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "tanh": np.tanh,
}
