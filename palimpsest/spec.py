"""A Spec is a frozen dataclass that says which part is wanted and builds it.

Variants of a part are the subclasses of its Spec. There is no registry: defining the class is enough
for the laws to test it, for `palimpsest ls` to show it and for the command line to accept its name.
Every field has a default, so that every variant can be built by name alone. The type of a number says which numbers
make sense, as in `heads: Size = 4`; others are refused when the Spec is made. A Spec with more to check does so in a
`__post_init__` that begins with `super().__post_init__()`.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, NamedTuple, Self, get_args

from .errors import UserError, unknown


class Bound(NamedTuple):
    """Which numbers make sense, and how that is said."""

    words: str
    holds: Callable[[float], bool]


Size = Annotated[int, Bound("at least 1", lambda number: number >= 1)]
Count = Annotated[int, Bound("0 or more", lambda number: number >= 0)]
Positive = Annotated[float, Bound("above 0", lambda number: number > 0)]
NotNegative = Annotated[float, Bound("0 or more", lambda number: number >= 0)]
Share = Annotated[float, Bound("from 0 to 1", lambda number: 0 <= number <= 1)]
Fraction = Annotated[float, Bound("from 0 up to and without 1", lambda number: 0 <= number < 1)]
Between = Annotated[float, Bound("above 0 and below 1", lambda number: 0 < number < 1)]


class Spec:
    def __post_init__(self):
        for name, bound in bounds_of(type(self)).items():
            value = getattr(self, name)
            if value is not None and not bound.holds(value):
                raise UserError(f"{name.replace('_', ' ')} of {type(self).__name__} is {bound.words}; found {value}")

    @classmethod
    def variants(cls) -> list[type[Self]]:
        """Every concrete part of this kind, in the order of definition."""
        found = [cls] if "__dataclass_fields__" in cls.__dict__ else []
        for kind in cls.__subclasses__():
            found += [variant for variant in kind.variants() if variant not in found]
        return found

    @classmethod
    def named(cls, name: str) -> type[Self]:
        variants = {variant.__name__.lower(): variant for variant in cls.variants()}
        if name.lower() not in variants:
            raise unknown(kind_name(cls), name, [variant.__name__ for variant in variants.values()])
        return variants[name.lower()]

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring; dataclasses without one would show their signature."""
        text = (cls.__doc__ or "").strip()
        return "" if is_dataclass(cls) and text.startswith(f"{cls.__name__}(") else text.split("\n")[0]


@cache
def bounds_of(kind: type[Spec]) -> dict[str, Bound]:
    """By the names of the fields whose types say which numbers make sense."""
    found = {}
    for field in fields(kind):  # pyright: ignore[reportArgumentType]
        optional = type(None) in (options := get_args(field.type))
        for option in options if optional else [field.type]:
            for bound in getattr(option, "__metadata__", ()):
                if isinstance(bound, Bound):
                    found[field.name] = bound._replace(words=f"{bound.words}, or None") if optional else bound
    return found


def kind_name(kind: type[Spec]) -> str:
    """`FeatureMap` -> `feature map`"""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in kind.__name__).strip()


def parts_of(spec: Spec) -> Iterator[Spec]:
    """The part itself and all parts within it, the outer ones first."""
    yield spec
    for field in fields(spec):  # pyright: ignore[reportArgumentType]
        if isinstance(value := getattr(spec, field.name), Spec):
            yield from parts_of(value)
