"""Flags that change a recipe: `--update-rule Sum --feature-map DPFP --nu 2 --steps 200`.

A flag names a field by its path, `--model.block.mixer.heads`, or by as much of its end as is unambiguous, `--heads`.
A field that holds a part takes the part's name (or `none`, where it may be absent). Parts are exchanged first,
so that what follows can speak of the fields of the new ones; tyro then reads all other values.
"""

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import reduce
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from ..errors import UserError
from ..spec import Spec

S = TypeVar("S", bound=Spec)
Path = tuple[str, ...]


def override(spec: S, arguments: list[str], program: str) -> S:
    """`spec` with every flag of `arguments` applied."""
    arguments = [piece for argument in arguments for piece in split_equals(argument)]
    spec, rest = exchange_parts(spec, arguments)
    known = {dotted(path): path for path in flags(spec)}
    complete = [expand(argument, known) if is_flag(argument) else argument for argument in rest]
    try:
        return tyro.cli(type(spec), args=complete, default=spec, prog=program, config=(tyro.conf.AvoidSubcommands,))
    except ValueError as refused:  # from a part's own checks
        raise UserError(str(refused)) from refused


def exchange_parts(spec: S, arguments: list[str]) -> tuple[S, list[str]]:
    """Exchange the parts that are named, the outer ones first; returns what is left of the arguments."""
    while True:
        parts = {dotted(path): path for path, kind in walk(spec) if kind is not None}
        named = [(resolve(flag, parts), i) for i, flag in enumerate(arguments[:-1]) if is_flag(flag)]
        found = [(len(path), path, i) for path, i in named if path is not None]
        if not found:
            return spec, arguments
        _, path, i = min(found)
        spec = put(spec, path, arguments[i + 1])
        arguments = arguments[:i] + arguments[i + 2 :]


def walk(spec: Spec, prefix: Path = ()) -> Iterator[tuple[Path, type[Spec] | None]]:
    """Every field's path, with the kind of part it holds, if it holds one."""
    hints = get_type_hints(type(spec))
    for field in fields(spec):  # pyright: ignore[reportArgumentType]
        path, value = (*prefix, field.name), getattr(spec, field.name)
        yield path, part_kind(hints[field.name])
        if is_dataclass(value) and isinstance(value, Spec):
            yield from walk(value, path)


def flags(spec: Spec) -> Iterator[Path]:
    """Every field's path, and of those that are true or false also `no-…`, as tyro spells it."""
    for path, _ in walk(spec):
        yield path
        *prefix, name = path
        if isinstance(reduce(getattr, path, spec), bool):
            yield (*prefix, f"no_{name}")


def part_kind(hint: Any) -> type[Spec] | None:
    """The Spec in `Tracking | None` or `Tracking`; None for fields with nothing to choose from."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = [option for option in options if isinstance(option, type) and issubclass(option, Spec)]
    return kinds[0] if kinds else None


def put(spec: Spec, path: Path, name: str) -> Any:
    """The spec with the part at `path` exchanged for the one called `name`."""
    head, *rest = path
    if rest:
        return replace(spec, **{head: put(getattr(spec, head), tuple(rest), name)})  # pyright: ignore
    hint = get_type_hints(type(spec))[head]
    kind = part_kind(hint)
    if name.lower() == "none" and type(None) in get_args(hint):
        return replace(spec, **{head: None})  # pyright: ignore[reportArgumentType]
    try:
        return replace(spec, **{head: kind.named(name)()})  # pyright: ignore
    except ValueError as refused:
        raise UserError(str(refused)) from refused


def resolve(flag: str, known: dict[str, Path]) -> Path | None:
    """The field that a flag means: its whole path, or the only one that ends so."""
    name = normal(flag)
    if name in known:
        return known[name]
    ends = [path for text, path in known.items() if text.endswith(f".{name}")]
    if len(ends) > 1:
        choices = ", ".join(f"--{dotted(path).replace('_', '-')}" for path in ends)
        raise UserError(f"{flag} could be any of {choices}: say which")
    return ends[0] if ends else None


def expand(flag: str, known: dict[str, Path]) -> str:
    """The whole path of a flag, as tyro knows it."""
    if flag in ("-h", "--help"):
        return flag
    path = resolve(flag, known)
    if path is None:
        ends = {text.split(".", cut)[-1].replace("_", "-") for text in known for cut in range(text.count(".") + 1)}
        close = get_close_matches(flag.lstrip("-"), ends, n=1, cutoff=0.5)
        suggestion = f"did you mean --{close[0]}?" if close else "none of the recipe's fields is called so."
        raise UserError(f"unknown flag {flag}: {suggestion} `palimpsest train --help` lists them all")
    return f"--{dotted(path).replace('_', '-')}"


def is_flag(argument: str) -> bool:
    return argument.startswith("-") and not argument[1:2].isdigit() and argument != "-"


def split_equals(argument: str) -> list[str]:
    return argument.split("=", 1) if argument.startswith("--") and "=" in argument else [argument]


def normal(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def dotted(path: Path) -> str:
    return ".".join(path)
