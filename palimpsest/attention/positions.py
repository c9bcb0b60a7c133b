"""Positions: how attention learns where a token stands.

`add` changes hidden states `b t d`, `turn` changes queries or keys `b t h x`; both are given the places `b t` of
the tokens, counted from the start of the text the row has seen. The relative ones have their place here too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from ..spec import Spec


class Positions(Spec):
    def check(self, width: int, head_width: int) -> None:
        """Refuse widths that cannot be used."""

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        return x


class AddedPositions(Positions):
    """Those that can also be added once, to the embedding."""


@dataclass(frozen=True)
class NoPositions(AddedPositions):
    """Order is known by the causal mask alone, or by the memory."""


@dataclass(frozen=True)
class Sinusoidal(AddedPositions):
    """Sines and cosines of the absolute place, added to what is read."""

    base: float = 10000.0

    def check(self, width: int, head_width: int) -> None:
        check_even(width)

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        sin, cos = waves(places, x.shape[-1], self.base, x.dtype)
        return x + torch.cat([sin, cos], dim=-1)


@dataclass(frozen=True)
class Rotary(Positions):
    """Queries and keys turned by angles that grow with the place: scores depend on distances only."""

    base: float = 10000.0

    def check(self, width: int, head_width: int) -> None:
        check_even(head_width)

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        sin, cos = (wave[..., None, :] for wave in waves(places, x.shape[-1], self.base, x.dtype))
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


def waves(places: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sines and cosines `… width/2`; angles in at least float32, as late places are large numbers."""
    exact = torch.promote_types(dtype, torch.float32)
    frequencies = base ** (-torch.arange(0, width, 2, device=places.device, dtype=exact) / width)
    angles = places[..., None].to(exact) * frequencies
    return angles.sin().to(dtype), angles.cos().to(dtype)


def check_even(width: int) -> None:
    if width % 2:
        raise UserError(f"sines and cosines come in pairs: a width of {width} is odd")
