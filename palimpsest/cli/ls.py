"""palimpsest ls [recipes | parts | corpora]"""

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Literal

import tyro

from ..data.corpora import Corpus
from ..spec import Spec, kind_name
from . import recipes
from .answers import print_json


@dataclass(frozen=True)
class List:
    """What there is to choose from, one line each."""

    what: tyro.conf.Positional[Literal["all", "recipes", "parts", "corpora"]] = "all"
    json: bool = False
    """Print JSON."""


def main(arguments: list[str]) -> None:
    options = tyro.cli(List, args=arguments, prog="palimpsest ls")
    shelves = {"recipes": recipe_shelf(), "corpora": shelf(Corpus), **part_shelves()}
    wanted = {
        "all": list(shelves),
        "recipes": ["recipes"],
        "corpora": ["corpora"],
        "parts": [name for name in shelves if name not in ("recipes", "corpora")],
    }[options.what]
    shelves = {name: shelves[name] for name in wanted}
    if options.json:
        print_json(shelves)
        return
    for title, entries in shelves.items():
        print(title)
        for name, line in entries.items():
            print(f"  {shorten(name):<34} {line}")
        print()


def recipe_shelf() -> dict[str, str]:
    return {name: recipes.summary(name) for name in recipes.names()}


def part_shelves() -> dict[str, dict[str, str]]:
    """A kind of part is what parts are directly derived from: `update rule` for Delta."""
    kinds = [kind for kind in Spec.__subclasses__() if kind is not Corpus and not is_dataclass(kind)]
    return {kind_name(kind): shelf(kind) for kind in kinds}


def shelf(kind: type[Spec]) -> dict[str, str]:
    return {signature(part): part.summary() for part in kind.variants()}


def signature(part: type[Spec]) -> str:
    """`DPFP(nu=1)`"""
    return f"{part.__name__}({', '.join(f'{field.name}={show(field.default)}' for field in fields(part))})"  # pyright: ignore


def shorten(signature: str) -> str:
    """`Muon(rate=0.02, momentum=0.95, …)`; a name is never cut."""
    while len(signature) > 34:
        shown = signature.removesuffix(", …)")
        if ", " not in shown:
            return f"{shown.partition('(')[0]}(…)" if "(" in shown else shown
        signature = f"{shown.rpartition(', ')[0]}, …)"
    return signature


def show(default: object) -> str:
    if isinstance(default, Spec):
        return f"{type(default).__name__}()"
    return repr(str(default)) if isinstance(default, Path) else repr(default)
