"""One buffer in place of many tensors that only kernels see: each that is made costs the host half a launch."""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNED = 256  # bytes, at a multiple of which every room starts: kernels are compiled for multiples of 16
KIND = torch.bfloat16  # whose NaN, where a buffer is filled with it, is one in every type of number


class Room(NamedTuple):
    """For a tensor in a buffer."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, buffer: Tensor) -> Tensor:
        size = prod(self.shape) * self.dtype.itemsize
        return buffer.view(torch.uint8)[self.start : self.start + size].view(self.dtype).view(self.shape)


def tensors_in(buffer: Tensor, rooms: Iterable[Any]) -> list[Any]:
    """None where there is no room."""
    return [None if room is None else room.of(buffer) for room in rooms]


class Buffer:
    """Rooms, one after the other."""

    def __init__(self):
        self.size = 0  # bytes

    def room(self, *shape: int, dtype: torch.dtype = torch.float32) -> Room:
        room = Room(self.size, shape, dtype)
        self.size += -(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        return room

    def made_like(self, x: Tensor) -> Tensor:
        """Where `x` is, not filled yet."""
        return x.new_empty(self.size // KIND.itemsize, dtype=KIND)
