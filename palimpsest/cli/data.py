"""palimpsest data [[ls] | prepare NAME]"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..data import standard
from ..training.log import Voice, say
from .answers import print_json


@dataclass(frozen=True)
class List:
    """The standard corpora, whether each is prepared, and how to get it."""

    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Prepare:
    """Download a corpus, or take it from a file or folder, check it and lay it out in the cache."""

    name: tyro.conf.Positional[str]
    """Such as enwik8; `palimpsest data ls` shows them all."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """A file, an archive or a folder that has it, instead of a download."""
    force: bool = False
    """Prepare it again where it already is."""
    json: bool = False
    """Print JSON."""


ACTIONS = Annotated[List, tyro.conf.subcommand("ls")] | Annotated[Prepare, tyro.conf.subcommand("prepare")]


def main(arguments: list[str]) -> None:
    description = "The standard corpora: what there is, and how to get it. `ls` may be left out."
    if arguments[:1] == ["--json"]:
        arguments = ["ls", *arguments]
    known = {"prog": "palimpsest data", "description": description, "default": List()}
    options = tyro.cli(ACTIONS, args=arguments, **known)  # pyright: ignore
    if isinstance(options, Prepare):
        prepare(options)
    else:
        ls(options)


def ls(options: List) -> None:
    shelves = {name: describe(kind) for name, kind in standard.catalogue().items()}
    if options.json:
        print_json(shelves)
        return
    for name, shelf in shelves.items():
        where = f"prepared in {shelf['folder']}" if shelf["prepared"] else f"palimpsest data prepare {name}"
        print(f"  {name:<18} {shelf['size']:>7}  {where}")
        print(f"  {'':<18} {'':>7}  {shelf['address']}")


def describe(kind: type[standard.Standard]) -> dict[str, str | bool]:
    folder = kind.prepared()
    return {"prepared": folder.is_dir(), "size": kind.size, "address": kind.address, "folder": str(folder)}


def prepare(options: Prepare) -> None:
    kind, console = standard.named(options.name), Voice()
    folder = kind.prepared()
    already = folder.is_dir() and not options.force
    if not already:
        with bar(kind.shelf, console) as progress:
            standard.prepare(kind, options.source, partial(say, console), progress)
    if options.json:
        print_json({kind.shelf: describe(kind)})
    elif already:
        print(f"{kind.shelf} is already prepared in {folder}; --force prepares it again")
    else:
        print(f"{kind.shelf} is prepared in {folder}")


@contextmanager
def bar(name: str, console: Console) -> Iterator[Callable[[int, int | None], object]]:
    """Shown once there is something to show."""
    columns = (TextColumn(name, markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(name, total=None)

    def move(done: int, total: int | None) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        yield move
    finally:
        if progress.live.is_started:
            progress.stop()
