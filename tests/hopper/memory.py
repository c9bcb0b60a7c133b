"""What a program may touch: the tensors it was given, and its own shared memory. Everything else is a fault."""

import ctypes
from collections.abc import Iterable

import numpy as np
from torch import Tensor

BEGINNING = 1024  # of what shared memory a program has for itself; the start is the device's


class Fault(Exception):
    """What a GPU would end the program for, or let pass and get wrong."""


class GlobalMemory:
    """Tensors, by their addresses."""

    def __init__(self, tensors: Iterable[Tensor]):
        sizes: dict[int, int] = {}
        for x in tensors:
            if x.numel():
                size = (1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))) * x.element_size()
                sizes[x.data_ptr()] = max(size, sizes.get(x.data_ptr(), 0))
        self.starts = np.array(sorted(sizes), dtype=np.int64)
        self.sizes = np.array([sizes[start] for start in sorted(sizes)], dtype=np.int64)
        self.bytes = [bytes_at(int(start), sizes[start]) for start in self.starts]

    def where(self, addresses: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each tensor that is touched its bytes, which addresses are there, and which bytes they mean."""
        tensor = np.searchsorted(self.starts, addresses, side="right") - 1
        offset = addresses - self.starts[tensor]
        if (tensor < 0).any() or (offset + size > self.sizes[tensor]).any():
            raise Fault(f"{size} bytes beyond a tensor")
        if (addresses % size).any():
            raise Fault(f"{size} bytes at an address that is no multiple of that")
        return [
            (self.bytes[one], tensor == one, offset[tensor == one][:, None] + np.arange(size))
            for one in np.unique(tensor)
        ]

    def load(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """[addresses, size], bytes."""
        found = np.empty((len(addresses), size), np.uint8)
        for held, here, at in self.where(addresses, size):
            found[here] = held[at]
        return found

    def store(self, addresses: np.ndarray, data: np.ndarray) -> None:
        for held, here, at in self.where(addresses, data.shape[1]):
            held[at] = data[here]


def bytes_at(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class SharedMemory:
    """Of some programs that go together, one after the other; an address counts from the start of its program's.

    As threads see it, and as products of groups of warps do: what threads write, these see after a fence. Nothing is in
    it at first; as a number that is none.
    """

    def __init__(self, programs: int, size: int):
        self.size = BEGINNING + size
        self.bytes = np.full(programs * self.size, 0xFF, np.uint8)
        self.seen_by_groups = self.bytes.copy()

    def of(self, programs: np.ndarray) -> "SharedMemory":
        """Of those that are chosen alone."""
        some = SharedMemory(0, self.size - BEGINNING)
        some.bytes, some.seen_by_groups = (
            x.reshape(-1, self.size)[programs].reshape(-1) for x in (self.bytes, self.seen_by_groups)
        )
        return some

    def places(self, programs: np.ndarray, addresses: np.ndarray, size: int) -> np.ndarray:
        """Of so many bytes each, from the start of all."""
        if (addresses < BEGINNING).any() or (addresses + size > self.size).any():
            raise Fault(f"{size} bytes beyond shared memory")
        if (addresses % size).any():
            raise Fault(f"{size} bytes of shared memory at an address that is no multiple of that")
        return (programs * self.size + addresses)[:, None] + np.arange(size)

    def load_for_group(self, places: np.ndarray) -> np.ndarray:
        if (self.seen_by_groups[places] != self.bytes[places]).any():
            raise Fault("a group multiplies what was written without a fence")
        return self.bytes[places]

    def show_groups(self, places: np.ndarray) -> None:
        self.seen_by_groups[places] = self.bytes[places]
