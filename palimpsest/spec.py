"""A Spec is a frozen dataclass that says which part is wanted and builds it.

Variants of a part are the subclasses of its Spec. There is no registry: defining the class is enough
for the laws to test it, for `palimpsest ls` to show it and for the command line to accept its name.
Every field has a default, so that every variant can be built by name alone.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Self

from .errors import unknown


class Spec:
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


def kind_name(kind: type[Spec]) -> str:
    """`FeatureMap` -> `feature map`"""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in kind.__name__).strip()


def parts_of(spec: Spec) -> Iterator[Spec]:
    """The part itself and all parts within it, the outer ones first."""
    yield spec
    for field in fields(spec):  # pyright: ignore[reportArgumentType]
        if isinstance(value := getattr(spec, field.name), Spec):
            yield from parts_of(value)
