"""What each memory did with a text: a dot for every head, the growth of every page, pictures of who draws from whom.

A picture has a pixel for each pair of tokens, clear where nothing is drawn, so that it follows light and dark.
"""

import struct
import zlib
from base64 import b64encode
from statistics import fmean
from typing import Any

from .chart import Series, chart, head_chart, legend, values
from .curves import Scale, fitting_scale, head_points
from .markup import Markup, element
from .sentences import reading

GAUGES = {  # names in instruments.json
    "keep": "kept of the page, mean gate",
    "erase": "erased of what a key recalls, mean gate",
    "write": "written of a value, mean gate",
    "write_norm": "length of what is written",
    "erase_norm": "length of what is erased",
    "collisions": "collisions: cosine with the nearest earlier key",
    "rank": "effective rank of the page at the end",
}
ABOVE, BELOW = (0x2B, 0x8F, 0xD0), (0xE0, 0x74, 0x1C)  # seen on white and on black


def instrument_figures(inspection: dict[str, Any]) -> list[Markup]:
    said = f"Over {len(inspection['tokens']):,} tokens, read from a fresh page."
    gauges = [head_figure(label, by_layer(inspection, name)) for name, label in GAUGES.items()]
    return [
        element("p", said, class_="note"),
        element("div", *(gauge for gauge in gauges if gauge), class_="small"),
        rank_figure(inspection),
        attention_figure(inspection),
    ]


def instrument_table(inspection: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and a row for every head."""
    names = [name for name in GAUGES if any(by_layer(inspection, name))]
    rows = [
        (str(layer["layer"]), str(number), *(shown(value_of(head, name)) for name in names))
        for layer in inspection["layers"]
        for number, head in enumerate(layer["heads"], start=1)
    ]
    return ("layer", "head", *(name.replace("_", " ") for name in names)), rows


def shown(value: float | None) -> str:
    return "–" if value is None else reading(value)


def by_layer(inspection: dict[str, Any], name: str) -> list[list[float]]:
    """The values of the heads of every layer, also of those that have none."""
    layers: list[list[float]] = [[] for _ in range(max(layer["layer"] for layer in inspection["layers"]))]
    for layer in inspection["layers"]:
        found = [value_of(head, name) for head in layer["heads"]]
        layers[layer["layer"] - 1] = [value for value in found if value is not None]
    return layers


def value_of(head: dict[str, Any], name: str) -> float | None:
    value = head["ranks"][-1] if name == "rank" else head[name]
    return value["mean"] if isinstance(value, dict) else value


def head_figure(label: str, layers: list[list[float]]) -> Markup | None:
    points = head_points(layers)
    if not points:
        return None
    drawn = head_chart(label, points, len(layers), fitting_scale(point.value for point in points))
    return element("figure", element("figcaption", f"{label}, by layer"), drawn)


def rank_figure(inspection: dict[str, Any]) -> Markup:
    after = inspection["ranked_after"]
    heads = [head["ranks"] for layer in inspection["layers"] for head in layer["heads"]]
    means = [fmean(ranks) for ranks in zip(*heads, strict=True)]
    one_each = [Series("", "raw", list(zip(after, ranks, strict=True))) for ranks in heads]
    mean = Series("mean", "train", list(zip(after, means, strict=True)))
    series = [*one_each, mean]
    label = "effective rank of the page against tokens read"
    drawn = chart(label, "effective rank", series, Scale.around([0.0, *values(series)]))
    caption = element("figcaption", f"{label} ", legend([Series("each head", "raw", mean.points), mean]))
    return element("figure", caption, drawn)


def attention_figure(inspection: dict[str, Any]) -> Markup:
    said = (
        "The attention that each memory implies: the token of a row draws from those of the columns, blue what it adds "
        "and orange what it takes away, each row as strong as its strongest."
    )
    pictures = [
        picture(f"layer {layer['layer']}, head {number}", head["attention"])
        for layer in inspection["layers"]
        for number, head in enumerate(layer["heads"], start=1)
    ]
    return element("div", element("p", said, class_="note"), element("div", *pictures, class_="pictures"))


def picture(label: str, rows: list[list[int]]) -> Markup:
    size, source = len(rows), f"data:image/png;base64,{b64encode(png(rows)).decode()}"
    pixels = element("image", href=source, width=size, height=size)
    drawn = element("svg", pixels, viewBox=f"0 0 {size} {size}", role="img", aria_label=f"attention of {label}")
    return element("figure", drawn, element("figcaption", label))


def png(rows: list[list[int]]) -> bytes:
    """Rows of per cents from −100 to 100, the later ones of each left out; a palette of two colours that fade."""
    size = len(rows)
    lines = b"".join(b"\0" + bytes(100 + share for share in row) + bytes([100]) * (size - len(row)) for row in rows)
    colours = bytes(part for share in range(-100, 101) for part in (BELOW if share < 0 else ABOVE))
    opacities = bytes(round(255 * abs(share) / 100) for share in range(-100, 101))
    header = struct.pack(">IIBBBBB", size, size, 8, 3, 0, 0, 0)  # eight bits, of a palette
    chunks = {b"IHDR": header, b"PLTE": colours, b"tRNS": opacities, b"IDAT": zlib.compress(lines, 9), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in chunks.items())


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
