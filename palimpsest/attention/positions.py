"""Positions: how attention learns where a token stands.

Built, they offer three things, of which each does what it can: `add` changes hidden states `b t d` and `turn` changes
queries or keys `b t h k`, given the places `b t` of the tokens, counted from the start of the text the row has seen;
`relate` makes what is added to the scores for the distance between query and key.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..relative import Relative
from ..spec import Count, Positive, Size, Spec


class Positions(Spec):
    segment_invariant: ClassVar[bool] = True  # whether it does not matter how a text is cut into segments

    def clamping(self, clamp: int) -> "Positions":
        """The same, with all that is farther than `clamp` looking like it; itself where nothing can be clamped."""
        return self

    def build(self, width: int, heads: int, head_width: int) -> "PositionsModule":
        raise NotImplementedError


class AddedPositions(Positions):
    """Those that can also be added once, to the embedding."""


class PositionsModule(nn.Module):
    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    def relate(self, queries: Tensor, distances: int) -> tuple[Tensor, Relative | None]:
        """The queries to be multiplied with keys, and what is added for the distances 0 … `distances` − 1."""
        return queries, None


@dataclass(frozen=True)
class NoPositions(AddedPositions):
    """Order is known by the causal mask alone, or by the memory."""

    def build(self, width: int, heads: int, head_width: int) -> PositionsModule:
        return PositionsModule()


@dataclass(frozen=True)
class Sinusoidal(AddedPositions):
    """Sines and cosines of the absolute place, added to what is read."""

    base: Positive = 10000.0

    def build(self, width: int, heads: int, head_width: int) -> "AddedWaves":
        return AddedWaves(self, width)


class AddedWaves(PositionsModule):
    def __init__(self, spec: Sinusoidal, width: int):
        super().__init__()
        check_even(width)
        self.spec = spec

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x + sinusoids(places, x.shape[-1], self.spec.base, x.dtype)


@dataclass(frozen=True)
class LearnedAbsolute(AddedPositions):
    """A learned vector for each place, added to what is read; later places share the last one."""

    reach: Size = 512  # places with a vector of their own

    def build(self, width: int, heads: int, head_width: int) -> "PlaceVectors":
        return PlaceVectors(self, width)


class PlaceVectors(PositionsModule):
    def __init__(self, spec: LearnedAbsolute, width: int):
        super().__init__()
        self.table = nn.Embedding(spec.reach, width)

    def add(self, x: Tensor, places: Tensor) -> Tensor:
        return x + self.table(places.clamp(0, self.table.num_embeddings - 1))  # an empty slot has a place below zero


@dataclass(frozen=True)
class Rotary(Positions):
    """Queries and keys turned by angles that grow with the place: scores depend on distances only."""

    base: Positive = 10000.0

    def build(self, width: int, heads: int, head_width: int) -> "Turns":
        return Turns(self, head_width)


class Turns(PositionsModule):
    def __init__(self, spec: Rotary, head_width: int):
        super().__init__()
        check_even(head_width)
        self.spec = spec

    def turn(self, x: Tensor, places: Tensor) -> Tensor:
        sin, cos = (wave[..., None, :] for wave in waves(places, x.shape[-1], self.spec.base, x.dtype))
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


@dataclass(frozen=True)
class SinusoidalRelative(Positions):
    """Transformer-XL's: projected sines and cosines of the distance, and two learned biases of all queries."""

    clamp: Count | None = None  # distances beyond it look like it
    per_layer: bool = False  # a pair of biases for each layer, instead of one pair for all
    base: Positive = 10000.0

    def clamping(self, clamp: int) -> "SinusoidalRelative":
        return replace(self, clamp=clamp)

    def build(self, width: int, heads: int, head_width: int) -> "ProjectedWaves":
        return ProjectedWaves(self, width, heads, head_width)


class ProjectedWaves(PositionsModule):
    def __init__(self, spec: SinusoidalRelative, width: int, heads: int, head_width: int):
        super().__init__()
        check_even(width)
        self.spec, self.width = spec, width
        self.project = nn.Linear(width, heads * head_width, bias=False)
        self.biases = QueryBiases(heads, head_width, shared_by_layers=not spec.per_layer)

    def relate(self, queries: Tensor, distances: int) -> tuple[Tensor, Relative]:
        table = self.project(self.waves(clamped(distances, self.spec.clamp, queries.device)))
        table = table.unflatten(-1, queries.shape[-2:])
        return queries + self.biases.content, Relative(queries + self.biases.place, table)

    def waves(self, distances: Tensor) -> Tensor:
        return sinusoids(distances, self.width, self.spec.base, self.project.weight.dtype)


class QueryBiases(nn.Module):
    """What every query asks for, whatever its token: of contents, and of distances."""

    def __init__(self, heads: int, head_width: int, shared_by_layers: bool):
        super().__init__()
        self.shared_by_layers = shared_by_layers
        self.content = nn.Parameter(torch.zeros(heads, head_width))
        self.place = nn.Parameter(torch.zeros(heads, head_width))

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.zeros_(self.content)
        nn.init.zeros_(self.place)


@dataclass(frozen=True)
class LearnedRelative(Positions):
    """After Shaw et al.: a learned vector and bias for each distance and head; farther ones share the last."""

    reach: Size = 256  # distances with a vector of their own
    clamp: Size | None = None  # use only so many of them

    def clamping(self, clamp: int) -> "LearnedRelative":
        return replace(self, clamp=clamp)

    def build(self, width: int, heads: int, head_width: int) -> "DistanceVectors":
        return DistanceVectors(self, heads, head_width)


class DistanceVectors(PositionsModule):
    def __init__(self, spec: LearnedRelative, heads: int, head_width: int):
        super().__init__()
        self.farthest = (spec.reach if spec.clamp is None else min(spec.reach, spec.clamp)) - 1
        self.table = nn.Parameter(torch.zeros(spec.reach, heads, head_width))
        self.bias = nn.Parameter(torch.zeros(spec.reach, heads))
        self.content = nn.Parameter(torch.zeros(heads, head_width))

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, std=0.02, generator=generator)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.content)

    def relate(self, queries: Tensor, distances: int) -> tuple[Tensor, Relative]:
        rows = clamped(distances, self.farthest, queries.device)
        return queries + self.content, Relative(queries, self.table[rows], self.bias[rows])


@dataclass(frozen=True)
class SharedRelative(Positions):
    """Adaptive span's: a learned vector for each distance, for all heads and layers; farther ones share the last."""

    reach: Size = 1024  # distances with a vector of their own

    def build(self, width: int, heads: int, head_width: int) -> "SharedDistanceVectors":
        return SharedDistanceVectors(self, head_width)


class SharedDistanceVectors(PositionsModule):
    def __init__(self, spec: SharedRelative, head_width: int):
        super().__init__()
        self.vectors = SharedTable(spec.reach, head_width)

    def relate(self, queries: Tensor, distances: int) -> tuple[Tensor, Relative]:
        rows = clamped(distances, len(self.vectors.table) - 1, queries.device)
        return queries, Relative(None, self.vectors.table[rows][:, None].expand(-1, queries.shape[2], -1))


class SharedTable(nn.Module):
    shared_by_layers = True

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(rows, width))

    def initialise(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.table, generator=generator)


def clamped(distances: int, farthest: int | None, device: torch.device) -> Tensor:
    rows = torch.arange(distances, device=device)
    return rows if farthest is None else rows.clamp(max=farthest)


def sinusoids(places: Tensor, width: int, base: float, dtype: torch.dtype) -> Tensor:
    return torch.cat(waves(places, width, base, dtype), dim=-1)


def waves(places: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sines and cosines `… width/2`; angles in at least float32, as late places are large numbers."""
    made = waves_apart if torch.compiler.is_compiling() else waves_here
    return made(places, width, base, dtype)


def waves_here(places: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    exact = torch.promote_types(dtype, torch.float32)
    frequencies = base ** (-torch.arange(0, width, 2, device=places.device, dtype=exact) / width)
    angles = places[..., None].to(exact) * frequencies
    return angles.sin().to(dtype), angles.cos().to(dtype)


# out of a compiler's sight, which would make every sine again for each head, query and key that it turns
waves_apart = torch.library.custom_op("palimpsest::waves", waves_here, mutates_args=())


@waves_apart.register_fake
def waves_shaped(places: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*places.shape, (width + 1) // 2)
    return places.new_empty(shape, dtype=dtype), places.new_empty(shape, dtype=dtype)


def check_even(width: int) -> None:
    if width % 2:
        raise UserError(f"sines and cosines come in pairs: a width of {width} is odd")
