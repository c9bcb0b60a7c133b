"""Flags that change a recipe: `--update-rule Sum --feature-map DPFP --nu 2 --steps 200`.

A flag names a field by its path, `--model.block.mixer.heads`, or by as much of its end as is unambiguous, `--heads`.
A field that holds a part takes the part's name (or `none`, where it may be absent). Parts are exchanged first,
so that what follows can speak of the fields of the new ones; what both have in common is kept. tyro then reads
all other values. One that begins with a hyphen and is no number is tied to its flag: `--documents=---`.
"""

import re
import types
from collections.abc import Iterator
from dataclasses import field, fields, make_dataclass, replace
from difflib import get_close_matches
from functools import cache, reduce
from inspect import getsource
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from ..errors import UserError
from ..spec import Spec

S = TypeVar("S", bound=Spec)
Path = tuple[str, ...]

NEGATIVE = re.compile(r"-\.?\d")  # how numbers below zero begin


def override(spec: S, arguments: list[str], program: str) -> S:
    """`spec` with every flag of `arguments` applied."""
    arguments = [piece for argument in arguments for piece in split_equals(argument)]
    spec, rest = exchange_parts(spec, arguments)
    known = {dotted(path): path for path in flags(spec)}
    complete = [expand(argument, known) if is_flag(argument) else argument for argument in rest]
    values = tyro.cli(form(spec), args=complete, prog=program, description="The fields of the recipe.")
    return rebuild(spec, vars(values))


def form(spec: Spec) -> type:
    """A flat dataclass with one field for each number, text or path of the spec: what tyro is asked to fill in."""
    entries = []
    for path, kind, hint, owner in walk(spec):
        if kind is None:
            name = tyro.conf.arg(name=spelled(path), help=comment_on(owner, path[-1]))
            entries.append(("__".join(path), Annotated[hint, name], field(default=value_at(spec, path))))
    return make_dataclass("Fields", entries)


def rebuild(spec: Any, values: dict[str, Any], prefix: Path = ()) -> Any:
    """Every field at once, so that a part's own checks see them together."""
    changed = {}
    for entry in fields(spec):
        path, value = (*prefix, entry.name), getattr(spec, entry.name)
        is_part = isinstance(value, Spec)
        changed[entry.name] = rebuild(value, values, path) if is_part else values.get("__".join(path), value)
    return replace(spec, **changed)


def comment_on(owner: type[Spec], name: str) -> str:
    """What the source says after the field."""
    found = re.search(rf"^    {name}: [^#\n]*# (.*)$", source_of(owner), re.MULTILINE)
    return found[1] if found else ""


@cache
def source_of(owner: type[Spec]) -> str:
    """Python reads the whole file for it."""
    try:
        return getsource(owner)
    except (OSError, TypeError):  # a class made where no source is kept, such as at a prompt
        return ""


def choices(spec: Spec) -> str:
    """The parts of the spec, each with those it can be exchanged for."""
    lines = []
    for path, kind, *_ in walk(spec):
        if kind is not None and len(kind.variants()) > 1:
            names = ", ".join(variant.__name__ for variant in kind.variants())
            lines.append(f"  --{spelled(path):<36} {names}")
    return "\n".join(lines)


def exchange_parts(spec: S, arguments: list[str]) -> tuple[S, list[str]]:
    """Exchange the parts that are named, the outer ones first; returns what is left of the arguments."""
    while True:
        parts = {dotted(path): path for path, kind, *_ in walk(spec) if kind is not None}
        untied = [(i, flag) for i, flag in enumerate(arguments[:-1]) if is_flag(flag) and "=" not in flag]
        named = [(resolve(flag, parts), i) for i, flag in untied]
        found = sorted((len(path), path, i) for path, i in named if path is not None)
        if not found:
            return spec, arguments
        spec, i = exchange_one(spec, [(path, i) for _, path, i in found], arguments)
        arguments = arguments[:i] + arguments[i + 2 :]


def exchange_one(spec: S, found: list[tuple[Path, int]], arguments: list[str]) -> tuple[S, int]:
    """The first exchange that goes: one part may be refused until another, named later, has made way for it."""
    refusals = []
    for path, i in found:
        try:
            return put(spec, path, arguments[i + 1]), i
        except UserError as refused:
            refusals.append(refused)
    raise refusals[0]


def walk(spec: Spec, prefix: Path = ()) -> Iterator[tuple[Path, type[Spec] | None, Any, type[Spec]]]:
    """Every field: its path, the kind of part it holds if it holds one, its type, and whose field it is."""
    hints = get_type_hints(type(spec))
    for entry in fields(spec):  # pyright: ignore[reportArgumentType]
        path, value, hint = (*prefix, entry.name), getattr(spec, entry.name), hints[entry.name]
        yield path, part_kind(hint), hint, type(spec)
        if isinstance(value, Spec):
            yield from walk(value, path)


def flags(spec: Spec) -> Iterator[Path]:
    """Every field's path, and of those that are true or false also `no-…`, as tyro spells it."""
    for path, *_ in walk(spec):
        yield path
        *prefix, name = path
        if isinstance(value_at(spec, path), bool):
            yield (*prefix, f"no_{name}")


def value_at(spec: Spec, path: Path) -> Any:
    return reduce(getattr, path, spec)


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
    chosen = kind.named(name)  # pyright: ignore[reportOptionalMemberAccess]
    return replace(spec, **{head: chosen(**in_common(getattr(spec, head), chosen))})  # pyright: ignore


def in_common(old: Spec | None, new: type[Spec]) -> dict[str, Any]:
    """Fields of the old part to keep: those the new one has too, with the same default, so that they mean the same."""
    before = {} if old is None else {entry.name: entry.default for entry in fields(old)}  # pyright: ignore
    after = {entry.name: entry.default for entry in fields(new)}  # pyright: ignore[reportArgumentType]
    return {name: getattr(old, name) for name in after if name in before and before[name] == after[name]}


def resolve(flag: str, known: dict[str, Path]) -> Path | None:
    """The field that a flag means: its whole path, or the only one that ends so."""
    name = normal(flag)
    if name in known:
        return known[name]
    ends = [path for text, path in known.items() if text.endswith(f".{name}")]
    if len(ends) > 1:
        candidates = ", ".join(f"--{spelled(path)}" for path in ends)
        raise UserError(f"{flag} could be any of {candidates}: say which")
    return ends[0] if ends else None


def expand(argument: str, known: dict[str, Path]) -> str:
    """The whole path of a flag, as tyro knows it, with the value that is tied to it."""
    flag, equals, value = argument.partition("=")
    if flag in ("-h", "--help"):
        return flag
    path = resolve(flag, known)
    if path is None:
        ends = {text.split(".", cut)[-1].replace("_", "-") for text in known for cut in range(text.count(".") + 1)}
        close = get_close_matches(flag.lstrip("-"), ends, n=1, cutoff=0.5)
        suggestion = f"did you mean --{close[0]}?" if close else "none of the recipe's fields is called so."
        raise UserError(f"unknown flag {flag}: {suggestion} `palimpsest train --help` lists them all")
    return f"--{spelled(path)}{equals}{value}"


def is_flag(argument: str) -> bool:
    return argument.startswith("-") and not NEGATIVE.match(argument) and argument != "-"


def split_equals(argument: str) -> list[str]:
    """A flag and its value, which stay tied where the value would itself be taken for a flag: `--documents=---`."""
    flag, equals, value = argument.partition("=")
    return [flag, value] if flag.startswith("--") and equals and not is_flag(value) else [argument]


def normal(argument: str) -> str:
    return argument.partition("=")[0].lstrip("-").replace("-", "_")


def dotted(path: Path) -> str:
    return ".".join(path)


def spelled(path: Path) -> str:
    return dotted(path).replace("_", "-")
