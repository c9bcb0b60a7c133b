"""How a query or a key looks to the memory, said so that a kernel can make its features by itself."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

MAPS = ("Identity", "Silu", "EluPlusOne", "DPFP", "Favor")
SCALES = ("Unscaled", "SumToOne", "UnitNorm")
PRODUCTS = ("DPFP", "Favor")  # maps that are products with a matrix of width × features
ROOM = 2**13  # numbers of that matrix which a kernel can hold


class Look(NamedTuple):
    """A feature map and a key scale by name, with their numbers; `of` does the same to any tensor."""

    of: Callable[[Tensor], Tensor] = lambda x: x
    matrix: Tensor | None = None  # Favor's directions, width × half the features
    map: str = "Identity"
    scale: str = "Unscaled"
    nu: int = 1  # DPFP's
    floor: float = 0.0  # SumToOne's, or UnitNorm's epsilon
    epsilon: float = 0.0  # Favor's
    factor: float = 1.0  # Favor's, of its input

    def on_chip(self, width: int) -> bool:
        """Whether a kernel can make features of so many numbers by itself."""
        fits = self.map not in PRODUCTS or width * self.features(width) <= ROOM
        return self.map in MAPS and self.scale in SCALES and fits

    def features(self, width: int) -> int:
        """How many numbers a kernel makes of so many."""
        if self.map == "Favor" and self.matrix is not None:
            return 2 * self.matrix.shape[1]
        return 2 * self.nu * width if self.map == "DPFP" else width
