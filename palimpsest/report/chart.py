"""A chart as inline SVG. Places are in per cent and the plane alone is stretched, so that lines, dots and letters
keep their size at any width; colours come from the page's style, so that they follow light and dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .curves import Points, Scale, thin
from .markup import Markup, element
from .sentences import number, short

PLANE = 1000  # the stretched plane is this many units wide and high


@dataclass(frozen=True)
class Series:
    name: str
    style: str  # the class that colours it
    points: Points
    dots: bool = False


def chart(label: str, unit: str, series: Sequence[Series], ticks: int, y_from_zero: bool = False) -> Markup:
    """Series against the tokens seen. Those without points are left out; one at least has some."""
    drawn = [one for one in series if one.points]
    last = max(tokens for one in drawn for tokens, _ in one.points) or 1.0
    x = Scale(0.0, last, Scale.around([0.0, last]).step)
    y = Scale.around([value for one in drawn for _, value in one.points] + [0.0] * y_from_zero, ticks)
    lines = [line(one, x, y) for one in drawn if not one.dots or len(one.points) > 1]
    stretched = element("svg", *lines, viewBox=f"0 0 {PLANE} {PLANE}", preserveAspectRatio="none", class_="plane")
    dots = [dot(one, point, unit, x, y) for one in drawn if one.dots for point in one.points]
    body = (*across(y), *along(x), stretched, *dots)
    return element("svg", *body, class_="chart", role="img", aria_label=label)


def legend(series: Sequence[Series]) -> Markup:
    """One word per series, in its own colour; nothing has to be looked up."""
    return element(
        "span", *(element("span", one.name, class_=one.style) for one in series if one.points), class_="legend"
    )


def line(series: Series, x: Scale, y: Scale) -> Markup:
    places = [f"{PLANE * x.share(a):.1f} {PLANE * (1 - y.share(b)):.1f}" for a, b in thin(series.points)]
    # A path of one place has no length; closing it lets its round cap be seen.
    path = f"M{'L'.join(places)}" + "Z" * (len(places) == 1)
    return element("path", d=path, class_=series.style, vector_effect="non-scaling-stroke")


def dot(series: Series, point: tuple[float, float], unit: str, x: Scale, y: Scale) -> Markup:
    tokens, value = point
    said = element("title", f"{series.name}: {number(value, digits=4)} {unit} after {short(tokens)} tokens")
    place = {"cx": percent(x.share(tokens)), "cy": percent(1 - y.share(value))}
    return element("circle", said, r=3.5, class_=series.style, **place)


def across(scale: Scale) -> list[Markup]:
    """A thin line and a number for every tick of the vertical scale."""
    drawn = []
    for tick in scale.ticks:
        height = percent(1 - scale.share(tick))
        drawn.append(element("line", x1=0, x2="100%", y1=height, y2=height))
        drawn.append(
            element("text", tick_label(tick, scale.step), x=0, dx=-8, y=height, dy="0.35em", text_anchor="end")
        )
    return drawn


def along(scale: Scale) -> list[Markup]:
    return [
        element("text", short(tick), x=percent(scale.share(tick)), y="100%", dy="1.7em", text_anchor="middle")
        for tick in scale.ticks
    ]


def tick_label(tick: float, step: float) -> str:
    if step >= 1000:
        return short(tick)
    return f"{tick:.{max(0, -math.floor(math.log10(step)))}f}"


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"
