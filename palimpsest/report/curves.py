"""The arithmetic of curves, shared by the figure and the page: points, smoothing, thinning, scales and ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from .run_folder import Measurement

Points = list[tuple[float, float]]


def curve(measurements: Iterable[Measurement], field: str = "nats") -> Points:
    """A field against the tokens seen. What is not a finite number cannot be drawn."""
    pairs = [(measurement.tokens, getattr(measurement, field)) for measurement in measurements]
    return [(tokens, value) for tokens, value in pairs if value is not None and math.isfinite(value)]


def smooth(points: Points) -> Points:
    """The mean over a window of a twentieth of the points, centred so that it does not lag."""
    reach, count = len(points) // 40, len(points)
    sums = list(accumulate((value for _, value in points), initial=0.0))
    smoothed = []
    for i, (x, _) in enumerate(points):
        # The window narrows at the steep start, where its mean would be wrong, but not at the flat end.
        first, last = i - min(i, reach), min(i + min(i, reach) + 1, count)
        smoothed.append((x, (sums[last] - sums[first]) / (last - first)))
    return smoothed


def thin(points: Points, limit: int = 1000) -> Points:
    """At most `limit` points which look the same: the lowest and the highest of every stretch, in order."""
    if len(points) <= limit:
        return points
    stretch = math.ceil(2 * len(points) / limit)
    kept = []
    for start in range(0, len(points), stretch):
        among = points[start : start + stretch]
        kept += sorted({min(among, key=lambda point: point[1]), max(among, key=lambda point: point[1])})
    return kept


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    step: float

    @classmethod
    def around(cls, values: Iterable[float], ticks: int = 5) -> "Scale":
        """Round numbers that enclose the values."""
        values = list(values)
        low, high = min(values), max(values)
        step = round_step((high - low) / ticks or abs(high) or 1.0)
        low = math.floor(low / step) * step
        return cls(low, max(math.ceil(high / step) * step, low + step), step)

    def share(self, value: float) -> float:
        """How far along the scale a value lies: 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        count = math.floor((self.high - self.low) / self.step + 1e-9)
        return [self.low + i * self.step for i in range(count + 1)]


def round_step(rough: float) -> float:
    """The first of 1, 2, 5, 10 … times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * (1 - 1e-9))
