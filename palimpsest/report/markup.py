"""HTML that is safe by construction: text is escaped unless it is already markup."""

from html import escape

VOID = ("img", "input", "wbr")  # what has no content, and no end


class Markup(str):
    __slots__ = ()


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """`class_` is written class, `aria_label` aria-label; an attribute that is None is left out."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value is not None}
    written = "".join(f' {name}="{escape(str(value))}"' for name, value in named.items())
    return Markup(f"<{tag}{written}>" if tag in VOID else f"<{tag}{written}>{join(*content)}</{tag}>")


def join(*content: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))
