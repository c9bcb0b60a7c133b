"""Values as people read them: parts as `Delta(beta=0.5)`, numbers with as many digits as mean something."""

from typing import Any

from .markup import Markup, element

LONGEST_SENTENCE = 44  # characters that still fit on one line of a telephone
UNITS_OF_TIME = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def sentence(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value.get('part', '')}({', '.join(f'{name}={sentence(inner)}' for name, inner in fields_of(value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(sentence, value))}]"
    return repr(value)


def fields_of(spec: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in spec.items() if name != "part"]


def outline(spec: dict[str, Any]) -> Markup:
    """A nested list of the fields; a part short enough is one sentence."""
    return element("ul", *(outline_item(name, value) for name, value in fields_of(spec)))


def outline_item(name: str, value: Any) -> Markup:
    key = element("span", name, class_="key")
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        value = {str(i): inner for i, inner in enumerate(value, start=1)}
    if isinstance(value, dict) and ("part" not in value or len(sentence(value)) > LONGEST_SENTENCE):
        return element("li", key, " ", element("code", value.get("part", "")), outline(value))
    return element("li", key, " ", element("code", sentence(value)))


def number(value: float, digits: int = 3) -> str:
    """A score: fewer decimals where the number is large."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{digits if abs(value) < 100 else 1}f}"


def reading(value: float) -> str:
    """What a gauge shows: four digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def short(value: float) -> str:
    """`824 k`, `1.31 M`: three digits and a unit."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}\u202f{unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """`9.4 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`"""
    if seconds < 60:
        return f"{seconds:.3g} s"
    largest = next(i for i, (size, _) in enumerate(UNITS_OF_TIME) if seconds >= size)
    (size, unit), (part, smaller) = UNITS_OF_TIME[largest : largest + 2]
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def moment(seconds: float) -> str:
    """A round number of seconds, in the largest unit it is a multiple of: `45 s`, `90 min`"""
    size, unit = next(((size, unit) for size, unit in UNITS_OF_TIME if seconds and not seconds % size), (1, "s"))
    return f"{seconds / size:.3g}\u202f{unit}"


def clock(seconds: float) -> str:
    """To the second, however many there are: `9.4 s`, `12:05`, `3:20:00`"""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def plain(value: Any) -> str:
    """A value of a table."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return sentence(value)


def spell(name: str) -> str:
    return name.replace("_", " ")


def quantity(value: float, text: str) -> Markup:
    """What is shown is rounded; what it was rounded from stays in the page."""
    return element("data", text, value=repr(value), title=repr(value))
