"""The arithmetic of curves, shared by the figure and the page: points, heads, smoothing, thinning, scales and ticks."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

from .run_folder import Measurement, Reading
from .sentences import clock, moment, short

Points = list[tuple[float, float]]
BREADTH = 0.6  # of a layer's place, taken up by its heads
LENGTH = 0.86  # of a layer's place, taken up by the training
FINEST = 120  # points of a line no wider than a layer's place
RATIOS = (20, 1e6)  # largest to smallest value between which a logarithmic scale reads best
MOMENTS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)  # in seconds


def curve(measurements: Iterable[Measurement | Reading], field: str = "nats", against: str = "tokens") -> Points:
    """A field against the tokens seen, or against another. What is not a finite number cannot be drawn."""
    pairs = [(getattr(measurement, against), getattr(measurement, field)) for measurement in measurements]
    return [(x, y) for x, y in pairs if x is not None and y is not None and math.isfinite(y)]


class HeadPoint(NamedTuple):
    layer: int
    head: int
    place: float  # layer i lies between i and i + 1
    value: float


def head_points(layers: list[list[float]]) -> list[HeadPoint]:
    """The heads of a layer side by side, so that equal values do not hide one another."""
    return [
        HeadPoint(i, j, i + 0.5 + BREADTH * ((j + 0.5) / len(layer) - 0.5), value)
        for i, layer in enumerate(layers)
        for j, value in enumerate(layer)
        if math.isfinite(value)
    ]


def head_courses(readings: Iterable[Reading]) -> list[Points]:
    """How each head came where it is: within the place of its layer, the tokens seen run from left to right."""
    known = [(one.tokens, one.layers) for one in readings if one.tokens is not None]
    most = max((tokens for tokens, _ in known), default=0) or 1
    courses: dict[tuple[int, int], Points] = {}
    for tokens, layers in known:
        for point in head_points(layers):
            place = point.layer + 0.5 + LENGTH * (tokens / most - 0.5)
            courses.setdefault((point.layer, point.head), []).append((place, point.value))
    return [thin(course, FINEST) for course in courses.values()]


def smooth(points: Points) -> Points:
    """The mean over a window of a twentieth of the points, centred so that it does not lag."""
    reach, count = len(points) // 40, len(points)
    if not reach:
        return points
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
    kind: ClassVar = "linear"

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

    def label(self, tick: float) -> str:
        if self.step >= 1000:
            return short(tick)
        return f"{tick:.{max(0, -math.floor(math.log10(self.step)))}f}"


@dataclass(frozen=True)
class LogScale:
    """Equal ratios are equally far apart."""

    ticks: list[float]
    kind: ClassVar = "log"

    @classmethod
    def around(cls, values: Iterable[float], ticks: int = 10) -> "LogScale":
        """Round numbers that enclose the values, all above zero; whole decades where finer ticks would be too many."""
        values = list(values)
        fine, coarse = (round_numbers(min(values), max(values), digits) for digits in ((1, 2, 5), (1,)))
        return cls(fine if len(fine) <= ticks else coarse)

    @property
    def low(self) -> float:
        return self.ticks[0]

    @property
    def high(self) -> float:
        return self.ticks[-1]

    def share(self, value: float) -> float:
        """How far along the scale a value lies: 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def label(self, tick: float) -> str:
        return short(tick)


def fitting_scale(values: Iterable[float]) -> Scale | LogScale:
    """Logarithmic where most of the values would otherwise lie on the floor."""
    values = list(values)
    low, high = min(values), max(values)
    if low > 0 and RATIOS[0] < high / low < RATIOS[1]:
        return LogScale.around(values)
    return Scale.around([0.0, *values])


def round_numbers(low: float, high: float, digits: tuple[int, ...]) -> list[float]:
    """From the last that is no larger than `low` to the first that is no smaller than `high`."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [digit * 10.0**power for power in decades for digit in digits]
    first = max(number for number in numbers if number <= low * (1 + 1e-9))
    last = min(number for number in numbers if number >= high * (1 - 1e-9))
    return [number for number in numbers if first <= number <= last]


def round_step(rough: float) -> float:
    """The first of 1, 2, 5, 10 … times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * (1 - 1e-9))


def round_moment(rough: float) -> float:
    """The same for seconds: halves and quarters of minutes and hours, and whole days."""
    if rough < MOMENTS[0]:
        return round_step(rough)
    return next((one for one in MOMENTS if one >= rough), 86400 * math.ceil(rough / 86400))


@dataclass(frozen=True)
class Axis:
    """What curves are drawn against."""

    field: str  # of a measurement
    name: str
    step: Callable[[float], float]  # a round number that is no smaller
    label: Callable[[float], str]  # of a tick
    said: Callable[[float], str]  # of a point

    def scale(self, longest: float, ticks: int) -> Scale:
        return Scale(0.0, longest, self.step(longest / ticks))


TOKENS = Axis("tokens", "tokens seen", round_step, short, lambda tokens: f"{tokens:,.0f} tokens")
SECONDS = Axis("seconds", "time in training", round_moment, moment, clock)
AXES = (TOKENS, SECONDS)
