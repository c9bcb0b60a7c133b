"""palimpsest retrieve [run | sweep | test | recall | draw]"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ..errors import UserError
from ..experiment.recollection import Recollection
from ..experiment.retrieval import Outcome, Retrieval
from ..experiment.sweep import cores, sweep
from ..files import append_line
from ..legacy.retrieval import LINES, CommandLine
from ..report.retrieval import RECALL, agreement, compare, read_results, write_logs, write_retrieval
from ..serialise import to_json
from ..spec import Spec, parts_of
from ..world import World
from .answers import print_json
from .overrides import choices, override

HELP = """usage: palimpsest retrieve ACTION …

  run       one command line of fast-weight-transformers: --attention dpfp --argument 1 --rule ours --replace --end 200
  sweep     all sixteen of them
  test      a memory of your own: --update-rule GatedDelta --feature-map Silu --key-scale UnitNorm --keys 20 40 60
  recall    language models at multi-query associative recall: --mixer FastWeight --width 32 64 128
  draw      the figures, the table and the page of a folder of results

Results go to one folder, a line for each run. What has a result is not run again, and what was stopped goes on.
`palimpsest retrieve ACTION --help` tells more.
"""


@dataclass(frozen=True)
class Where:
    """Where and how long to run."""

    folder: Path = Path("retrieval")
    """What is measured is kept there."""
    device: str = "auto"
    processes: int = 0
    """Runs at a time on a CPU; on a GPU, processes that draw batches. 0: one for each core."""
    minutes: float | None = None
    """Stop after so long; the same command goes on."""
    csv: bool = False
    """Write logs in the original's format too, for its notebooks."""
    json: bool = False
    """Print what was measured as JSON; progress goes to standard error."""


@dataclass(frozen=True)
class RunLine:
    """One command line of fast-weight-transformers: a loss for each number of keys."""

    attention: Literal["softmax", "linear", "dpfp", "favor", "tanh"] = "softmax"
    argument: int = 0
    """ν of dpfp, directions of favor."""
    rule: Literal["sum", "ours", "fwm"] = "sum"
    replace: bool = False
    """Keys are shown again, with other values."""
    begin: int = 20
    end: int = 20
    step: int = 20
    legacy: bool = False
    """The published protocol with all its quirks, and its one seed."""
    seeds: tuple[int, ...] = (1, 2, 3)
    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)


@dataclass(frozen=True)
class Sweep:
    """All sixteen command lines of fast-weight-transformers."""

    settings: tuple[int, ...] = (1, 2)
    """1: how much a memory holds; 2: whether it can overwrite."""
    rules: tuple[str, ...] = ("sum", "ours", "fwm")
    end: int = 600
    """The largest number of keys."""
    legacy: bool = False
    """The published protocol with all its quirks, and its one seed."""
    seeds: tuple[int, ...] = (1, 2, 3)
    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)


@dataclass(frozen=True)
class Draw:
    """The figures, the table and the page of what was measured."""

    folder: tyro.conf.Positional[Path] = Path("retrieval")
    csv: bool = False
    """Write logs in the original's format too, for its notebooks."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Own:
    """What belongs to the action and not to the memory."""

    label: str | None = None
    """What it is called in the figures."""
    parts: str | None = None
    """A module of yours to import first, so that its parts are known."""
    where: Annotated[Where, tyro.conf.arg(name="")] = field(default_factory=Where)


def main(arguments: list[str]) -> None:
    actions = {"run": run, "sweep": sweep_all, "test": test, "recall": recall, "draw": draw}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        raise SystemExit(0)
    action, *rest = arguments
    if action not in actions:
        raise UserError(f"there is no action {action!r}; there are {', '.join(actions)}")
    # before the GPU is touched: by default kernels of many queues wait for one another
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    actions[action](rest)


def run(arguments: list[str]) -> None:
    options = tyro.cli(RunLine, args=arguments, prog="palimpsest retrieve run")
    names = ("attention", "argument", "rule", "replace", "begin", "end", "step")
    line = CommandLine(**{name: getattr(options, name) for name in names})
    carry_out(outcomes([line], options.legacy, options.seeds), options.where)


def sweep_all(arguments: list[str]) -> None:
    options = tyro.cli(Sweep, args=arguments, prog="palimpsest retrieve sweep")
    lines = [
        replace(line, end=min(line.end, options.end))
        for line in LINES
        if line.rule in options.rules and int(line.replace) + 1 in options.settings
    ]
    carry_out(outcomes(lines, options.legacy, options.seeds), options.where)


def outcomes(lines: Iterable[CommandLine], legacy: bool, seeds: tuple[int, ...]) -> list[Outcome]:
    return [
        Outcome(asked, line.label) for line in lines for asked in (line.original() if legacy else line.asked(seeds))
    ]


def carry_out(asked: list[Outcome], where: Where) -> None:
    device = World.enter(where.device, threads=1).device
    left = sweep(asked, where.folder, device, where.processes or cores(), where.minutes, teller(where))
    files = show(where)
    if where.json:
        names = {outcome.name for outcome in asked}
        found = [result for result in read_results(where.folder) if result["name"] in names]
        print_json({"folder": where.folder, "results": found, "left": left, "files": files})


def teller(where: Where) -> Callable[[object], None]:
    """Where JSON is asked for, it alone is standard output."""
    return partial(print, flush=True, file=sys.stderr if where.json else sys.stdout)


def show(where: Where) -> list[Path]:
    """Draw what the folder holds; returns the files."""
    say = teller(where)
    if where.csv:
        say(f"{len(write_logs(where.folder))} logs are in {where.folder / 'logs'}")
    try:
        files = write_retrieval(where.folder)
    except UserError as error:  # the numbers are there: they can be drawn elsewhere
        say(f"no figures: {error}")
        return []
    for file in files:
        say(file)
    return files


def test(arguments: list[str]) -> None:
    own, rest = divide(arguments)
    import_parts(own)
    several, rest = take_numbers(rest, ("--keys", "--seed"))
    if {"-h", "--help"} & {*rest}:
        explain(Retrieval(), "--keys and --seed take", "--processes, --minutes, --csv, --json")
    retrieval = override(Retrieval(), rest, "palimpsest retrieve test")
    keys, seeds = several.get("--keys", [retrieval.task.keys]), several.get("--seed", [1, 2, 3])
    asked = [
        replace(retrieval, task=replace(retrieval.task, keys=each), seed=seed)  # pyright: ignore[reportArgumentType]
        for each, seed in product(keys, seeds)
    ]
    label = own.label or sentence(retrieval.model)
    carry_out([Outcome(each, label) for each in asked], own.where)


def recall(arguments: list[str]) -> None:
    own, rest = divide(arguments)
    import_parts(own)
    several, rest = take_numbers(rest, ("--width",))
    if {"-h", "--help"} & {*rest}:
        explain(
            Recollection(), "--width takes", "--minutes, --json, and --processes, which\nhere are the threads of one"
        )
    recollection = override(Recollection(), rest, "palimpsest retrieve recall")
    label = own.label or sentence(recollection.model.block)
    device = World.enter(own.where.device, threads=own.where.processes or None).device
    own.where.folder.mkdir(parents=True, exist_ok=True)
    known = [one["asked"] for one in read_results(own.where.folder, RECALL)]
    say, wanted, left = teller(own.where), [], 0
    end = math.inf if own.where.minutes is None else time.monotonic() + 60 * own.where.minutes
    for width in several.get("--width", [recollection.model.width]):
        asked = replace(recollection, model=replace(recollection.model, width=width))
        wanted.append(json_of(asked))
        if wanted[-1] in known:
            continue
        if time.monotonic() >= end:
            left += 1
            continue
        found = {"label": label, **asked.measure(device)}
        append_line(own.where.folder / RECALL, json.dumps(found))
        say(f"{label}, width {width}: {found['bytes']:,} bytes, accuracy {found['accuracy']:.3f}")
    if left:
        say(f"the time is up: {left} of {len(wanted)} widths are left, and the same command goes on with them")
    files = show(replace(own.where, csv=False))
    if own.where.json:
        found = [result for result in read_results(own.where.folder, RECALL) if result["asked"] in wanted]
        print_json({"folder": own.where.folder, "results": found, "left": left, "files": files})


def draw(arguments: list[str]) -> None:
    options = tyro.cli(Draw, args=arguments, prog="palimpsest retrieve draw")
    if options.csv:
        write_logs(options.folder)
    files, results = write_retrieval(options.folder), read_results(options.folder)
    if options.json:
        print_json({"folder": options.folder, "files": files, "agreement": agreement(compare(results))})
        return
    print(*files, sep="\n")
    print(agreement(compare(results)))


def json_of(spec: Spec) -> Any:
    return json.loads(json.dumps(to_json(spec)))


def explain(asked: Spec, several: str, own: str) -> None:
    """What can be said of an action that tests a memory, before tyro tells its fields."""
    print(f"Any field of the run can be changed, any part exchanged; {several} several numbers.")
    print(f"The action's own: --label, --parts MODULE, --folder, --device, {own}.\n")
    print(choices(asked), "", sep="\n")


def divide(arguments: list[str]) -> tuple[Own, list[str]]:
    """The action's own options, and the flags that are left for the memory."""
    flags = {f"--{entry.name}" for kind in (Own, Where) for entry in fields(kind)} - {"--where"}
    own, rest, queue = [], [], list(arguments)
    while queue:
        piece = queue.pop(0)
        if piece.split("=")[0] not in flags:
            rest.append(piece)
        elif piece in ("--csv", "--json") or "=" in piece or not queue:
            own.append(piece)
        else:
            own += [piece, queue.pop(0)]
    return tyro.cli(Own, args=own, prog="palimpsest retrieve"), rest


def take_numbers(arguments: list[str], names: tuple[str, ...]) -> tuple[dict[str, list[int]], list[str]]:
    """Flags that may be given several numbers, and the other arguments."""
    found: dict[str, list[int]] = {}
    rest, current = [], None
    for piece in arguments:
        name, _, value = piece.partition("=")
        if name in names:
            current = found.setdefault(name, [])
            current += [int(value)] if value.isdigit() else []
        elif current is not None and piece.isdigit():
            current.append(int(piece))
        else:
            rest.append(piece)
            current = None
    return {name: numbers for name, numbers in found.items() if numbers}, rest


def import_parts(own: Own) -> None:
    if own.parts is None:
        return
    try:
        import_module(own.parts.removesuffix(".py"))
    except ImportError as error:
        raise UserError(f"--parts is a module of yours, and {own.parts!r} cannot be imported ({error})") from error


def sentence(spec: Spec) -> str:
    """`DPFP SumToOne Delta Plain`: the parts that have no parts of their own."""
    innermost = [part for part in parts_of(spec) if part is not spec and len([*parts_of(part)]) == 1]
    return " ".join(type(part).__name__ for part in innermost) or type(spec).__name__
