"""palimpsest tune [RECIPE | RUN] [--seconds N] [--json] [--FIELD VALUE …], or --forget"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import UserError
from ..experiment import Recipe
from ..experiment.run import Workshop
from ..experiment.trained import read_tokens
from ..files import cache
from ..kernels.fused.tuned import SHELF, forget
from ..kernels.trust import HAS_TRITON
from ..training.log import Voice
from ..training.step import ScaledStep, Step
from ..world import World
from .answers import print_json
from .overrides import override
from .recipes import DEFAULT, find_recipe
from .train import take_name, take_options

if TYPE_CHECKING:
    from ..kernels.tuning import Call, Improvement

SECONDS = 120.0
HELP = f"""usage: palimpsest tune [RECIPE | RUN] [--seconds N] [--json] [--FIELD VALUE …]
       palimpsest tune --forget

Looks for faster settings of the fused kernels on this GPU, for the sizes that a recipe has, and remembers them. A few
steps are trained to see what they ask for; nothing is written but the settings. From then on whatever trains with these
sizes uses them. Other settings may round otherwise.

  RECIPE        as for `palimpsest train` (default: {DEFAULT})
  RUN           a run's folder: its recipe
  --seconds     to spend, about (default: {SECONDS:g})
  --forget      remove all that was ever found
  --json        print what was found as JSON (progress goes to standard error)

Any field of the recipe can be changed by name, as for `palimpsest train`: --precision BFloat16 --batch 32
"""


def main(arguments: list[str]) -> None:
    chosen, rest = take_name(arguments)
    options, rest = take_options(rest, ("--seconds",))
    as_json = "--json" in rest
    rest = [argument for argument in rest if argument != "--json"]
    if {"-h", "--help"} & {*rest}:
        print(HELP)
    elif "--forget" in rest:
        tell_forgotten(forget(), as_json)
        return
    recipe, run = find(chosen or DEFAULT)
    recipe = override(recipe, rest, f"palimpsest tune {chosen or DEFAULT}")
    seconds = read_seconds(options.get("--seconds"))
    refuse()
    found = search(recipe, run, seconds)
    if as_json:
        print_json({"folder": cache() / SHELF, "found": [as_dictionary(each) for each in found]})
    else:
        print(*map(line, found), f"written to {cache() / SHELF}", sep="\n")


def find(name: str) -> tuple[Recipe, Path | None]:
    """A recipe, and the run that it is of, if it is."""
    folder = Path(name).expanduser()
    if (folder / "recipe.json").is_file():
        return Recipe.read(folder / "recipe.json"), folder
    return find_recipe(name), None


def read_seconds(given: str | None) -> float:
    try:
        seconds = SECONDS if given is None else float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UserError(f"--seconds takes a number above 0, not {given!r}")
    return seconds


def refuse() -> None:
    if not torch.cuda.is_available():
        raise UserError(
            f"`palimpsest tune` times kernels on an NVIDIA GPU, and torch {torch.__version__} finds none here: run it "
            "on the machine that will train"
        )
    if not HAS_TRITON:
        raise UserError("`palimpsest tune` tunes kernels of Triton, which is not installed here: pip install triton")


def search(recipe: Recipe, run: Path | None, seconds: float) -> "list[Improvement]":
    from ..kernels.tuning import TUNABLE, tune

    device = torch.device("cuda", torch.cuda.current_device())
    with bar(seconds, Voice()) as notice:
        calls = calls_of(recipe, run, device)
        if not calls:
            raise UserError(
                f"a step of {recipe.name} asks for none of {', '.join(TUNABLE)} in their fused form: there is nothing "
                "to tune; `palimpsest doctor` tells whether they are right on this GPU"
            )
        return [*tune(calls, seconds, notice)]


def calls_of(recipe: Recipe, run: Path | None, device: torch.device) -> "list[Call]":
    from ..kernels.tuning import noting

    steps = first_steps(recipe, run, device)
    next(steps)  # in which kernels are tried, and states begin
    with noting() as calls:
        next(steps)
    return [*calls.values()]


def first_steps(recipe: Recipe, run: Path | None, device: torch.device) -> Iterator[None]:
    """Steps of training that leave nothing behind."""
    world = World(device)
    workshop = Workshop.open(recipe, read_tokens(recipe, run or recipe.run.start_from), world)
    plan, model, state = recipe.run, workshop.model.train(), None
    stepper, scaling = recipe.optimiser.build(model), plan.precision.scaling()
    parts = model, model, stepper, world, plan.precision, plan.accumulation, plan.clip, plan.carry
    step = Step(*parts) if scaling is None else ScaledStep(*parts, scaling=scaling)
    while True:
        batch, continues = workshop.stream.next()
        state = step(batch.to(device), batch.count(), state if continues else None).state
        yield


@contextmanager
def bar(seconds: float, console: Console) -> Iterator[Any]:
    """Of the time that is spent, and what it is spent on."""
    columns = (TimeElapsedColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task, start = progress.add_task("a step, to see what it asks for", total=seconds), None

        def notice(what: str) -> None:
            nonlocal start
            start = time.monotonic() if start is None else start
            progress.update(task, completed=time.monotonic() - start, description=what)

        yield notice


# ------------------------------------------------------------------------------------------------------- words


def line(found: "Improvement") -> str:
    from ..kernels.tuning import told

    wrong = {"not to be had": found.failed, "off": found.off}
    skipped = "".join(f", {count} {what}" for what, count in wrong.items() if count)
    gain = f"{found.times_faster:.2f} times faster: {told(found.changes)}" if found.changes else "as shipped"
    return (
        f"{found.call.kernel}, {found.call.count} a step: {found.before:.3f} → {found.after:.3f} ms, {gain} "
        f"({found.tried} tried{skipped})\n  {found.call.problem}"
    )


def as_dictionary(found: "Improvement") -> dict[str, Any]:
    from ..kernels.fused.tuned import numbers_of

    return {
        "kernel": found.call.kernel,
        "problem": found.call.problem,
        "calls": found.call.count,
        "shipped": {"settings": numbers_of(found.shipped), "milliseconds": found.before},
        "found": {"settings": numbers_of(found.found), "milliseconds": found.after},
        "times_faster": found.times_faster,
        "tried": found.tried,
        "failed": found.failed,
        "off": found.off,
    }


def tell_forgotten(tables: int, as_json: bool) -> None:
    if as_json:
        print_json({"folder": cache() / SHELF, "removed": tables})
    else:
        print(f"{tables} table{'s' * (tables != 1)} removed from {cache() / SHELF}: kernels run as they are shipped")
