"""A chart as inline SVG. Places are in per cent and the plane alone is stretched, so that lines, dots and letters
keep their size at any width; colours come from the page's style, so that they follow light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .curves import TOKENS, Axis, HeadPoint, LogScale, Points, Scale, thin
from .markup import Markup, element
from .sentences import number, reading

PLANE = 1000  # the stretched plane is this many units wide and high
LONGEST_AXIS = 12  # layers that have a number
LETTER = 0.055  # of a chart's height


@dataclass(frozen=True)
class Series:
    name: str  # one without a name is drawn, and not spoken of
    style: str  # the class that colours it
    points: Points
    dots: bool = False
    mark: str = ""  # stands at the end of its line


def chart(
    label: str,
    unit: str,
    series: Sequence[Series],
    y: Scale | LogScale,
    axis: Axis = TOKENS,
    ticks: int = 5,
    style: str = "chart",
) -> Markup:
    """Series against tokens or time. Those without points are left out; one at least has some."""
    drawn = [one for one in series if one.points]
    x = axis.scale(max(place for one in drawn for place, _ in one.points) or 1.0, ticks)
    lines = [line(one, x, y, axis) for one in drawn]
    dots = [dot(one, point, unit, x, y, axis) for one in drawn if one.dots for point in one.points]
    marks = end_marks([one for one in drawn if one.mark], x, y)
    return drawing(label, *across(y), *along(x, axis), stretched(lines), *dots, *marks, style=style)


def head_chart(label: str, points: Sequence[HeadPoint], layers: int, y: Scale | LogScale) -> Markup:
    """A dot for every head, above the number of its layer."""
    x = Scale(0.0, layers, 1.0)
    return drawing(label, *across(y), *between(x), *numbered(x), *(head_dot(point, x, y) for point in points))


def head_course_chart(label: str, courses: Sequence[Points], layers: int, y: Scale | LogScale) -> Markup:
    """A line for every head, above the number of its layer."""
    x = Scale(0.0, layers, 1.0)
    lines = [line(Series("", "course", points), x, y, TOKENS) for points in courses]
    return drawing(label, *across(y), *between(x), *numbered(x), stretched(lines))


def drawing(label: str, *content: Markup, style: str = "chart") -> Markup:
    return element("svg", *content, class_=style, role="img", aria_label=label)


def stretched(lines: Sequence[Markup]) -> Markup:
    return element("svg", *lines, viewBox=f"0 0 {PLANE} {PLANE}", preserveAspectRatio="none", class_="plane")


def values(series: Sequence[Series]) -> list[float]:
    return [value for one in series for _, value in one.points]


def legend(series: Sequence[Series]) -> Markup:
    """One word per series, in its own colour; nothing has to be looked up."""
    return element("span", *(element("span", one.name, class_=one.style) for one in named(series)), class_="legend")


def named(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if one.points and one.name]


def line(series: Series, x: Scale, y: Scale | LogScale, axis: Axis) -> Markup:
    points = thin(series.points)
    places = [f"{PLANE * x.share(a):.1f} {PLANE * (1 - y.share(b)):.1f}" for a, b in points]
    # A path of one place has no length; closing it lets its round cap be seen.
    path = f"M{'L'.join(places)}" + "Z" * (len(places) == 1)
    words = spoken(series.name, points, axis) if series.name else {}
    return element("path", d=path, class_=series.style, vector_effect="non-scaling-stroke", **words)


def spoken(name: str, points: Points, axis: Axis) -> dict[str, str]:
    """What there is to say of every place of a line, for the page's script."""
    return {
        "data_name": name,
        "data_x": ";".join(axis.said(x) for x, _ in points),
        "data_y": ";".join(number(value, digits=4) for _, value in points),
    }


def dot(series: Series, point: tuple[float, float], unit: str, x: Scale, y: Scale | LogScale, axis: Axis) -> Markup:
    said = element("title", f"{series.name}: {number(point[1], digits=4)} {unit} after {axis.said(point[0])}")
    place = {"cx": percent(x.share(point[0])), "cy": percent(1 - y.share(point[1]))}
    return element("circle", said, r=3.5, class_=series.style, **place)


def end_marks(series: Sequence[Series], x: Scale, y: Scale | LogScale) -> list[Markup]:
    """The mark of each series beside the last of its points."""
    ends = [one.points[-1] for one in series]
    heights = apart([1 - y.share(value) for _, value in ends])
    places = [{"x": percent(x.share(a)), "y": percent(height)} for (a, _), height in zip(ends, heights, strict=True)]
    return [
        element("text", one.mark, dx=9, dy="0.35em", class_=one.style, **place)
        for one, place in zip(series, places, strict=True)
    ]


def apart(heights: Sequence[float]) -> list[float]:
    """Heights in the same order, moved down where letters beside them would touch, and up again at the floor."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed: list[float] = []
    for i in order:
        placed.append(max(heights[i], placed[-1] + LETTER) if placed else heights[i])
    floor = 1.0
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], floor)
        floor = placed[place] - LETTER
    return [height for _, height in sorted(zip(order, placed, strict=True))]


def head_dot(point: HeadPoint, x: Scale, y: Scale | LogScale) -> Markup:
    said = element("title", f"layer {point.layer + 1}, head {point.head + 1}: {reading(point.value)}")
    place = {"cx": percent(x.share(point.place)), "cy": percent(1 - y.share(point.value))}
    return element("circle", said, r=3, class_="head", **place)


def across(scale: Scale | LogScale) -> list[Markup]:
    """A thin line and a number for every tick of the vertical scale."""
    drawn = []
    for tick in scale.ticks:
        height = percent(1 - scale.share(tick))
        drawn.append(element("line", x1=0, x2="100%", y1=height, y2=height))
        drawn.append(element("text", scale.label(tick), x=0, dx=-8, y=height, dy="0.35em", text_anchor="end"))
    return drawn


def along(scale: Scale, axis: Axis) -> list[Markup]:
    return [below(axis.label(tick), scale.share(tick)) for tick in scale.ticks]


def between(layers: Scale) -> list[Markup]:
    """A thin line from floor to ceiling where one layer ends and the next begins."""
    places = [percent(layers.share(tick)) for tick in layers.ticks[1:-1]]
    return [element("line", x1=place, x2=place, y1=0, y2="100%", class_="between") for place in places]


def numbered(layers: Scale) -> list[Markup]:
    count = round(layers.high)
    return [below(str(i + 1), layers.share(i + 0.5)) for i in range(0, count, math.ceil(count / LONGEST_AXIS))]


def below(text: str, share: float) -> Markup:
    return element("text", text, x=percent(share), y="100%", dy="1.7em", text_anchor="middle")


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"
