"""palimpsest train [RECIPE | TEXT] [--from RUN] [--folder FOLDER] [--resume auto] [--dry-run] [--json]
[--FIELD VALUE …]"""

from pathlib import Path

from ..errors import UserError
from ..experiment import Recipe, train
from ..experiment.estimate import estimate
from ..experiment.run import train_or_resume
from ..files import read_json, told_if_full
from ..launch import speaks
from ..serialise import to_json
from .answers import print_json
from .overrides import choices, is_flag, override
from .recipes import DEFAULT, find_recipe, from_run, pretty

HELP = f"""usage: palimpsest train [RECIPE | TEXT] [--from RUN] [--folder FOLDER] [--resume auto] [--dry-run]
                        [--json] [--FIELD VALUE …]

  RECIPE        one of those that `palimpsest ls recipes` lists (default: {DEFAULT}),
                a recipe.json, or a Python file with a `recipe`
  TEXT          a text file or a folder of them: the default recipe learns from it; a .tsv of sentence pairs,
                a tab in each line: a small model learns to translate
  --from RUN    start from the weights of another run, with its recipe and its vocabulary
                (--keep-optimiser starts from its optimiser too)
  --folder      where to write (default: runs/NAME-001, -002, …)
  --resume auto go on with the run in that folder if there is one of this very recipe, else begin it there
  --dry-run     only print the recipe and what it would take
  --json        print the run's folder and its final evaluation as JSON (progress goes to standard error)

Any field of the recipe can be changed by name, and any part exchanged. As much of the end of a name as is unambiguous
will do: --steps 200 --rate 0.01 --update-rule Sum --feature-map DPFP --nu 2
A value that begins with a hyphen is tied to its flag: --documents=---

Parts, and what each can be exchanged for:"""


def main(arguments: list[str]) -> None:
    chosen, rest = take_name(arguments)
    options, rest = take_options(rest, ("--from", "--folder", "--resume"))
    dry_run, as_json = "--dry-run" in rest, "--json" in rest
    rest = [argument for argument in rest if argument not in ("--dry-run", "--json")]
    source = options.get("--from")
    recipe = from_run(Path(source), chosen) if source else find_recipe(chosen or DEFAULT)
    if {"-h", "--help"} & {*rest}:
        print(HELP, choices(recipe), "", sep="\n")
    recipe = override(recipe, rest, f"palimpsest train {chosen or DEFAULT}")
    recipe.require()
    if dry_run and as_json:
        print_json({"recipe": to_json(recipe), "estimate": estimate(recipe).splitlines()})
        return
    if dry_run:
        print(pretty(recipe), estimate(recipe), sep="\n\n")
        return
    with told_if_full():
        folder = carry_out(recipe, options.get("--folder"), options.get("--resume"))
    tell(folder, as_json)


def carry_out(recipe: Recipe, folder: str | None, going_on: str | None) -> Path:
    if going_on is None:
        return train(recipe, None if folder is None else Path(folder))
    if going_on != "auto":
        raise UserError(f"--resume takes auto, not {going_on!r}: to go on with a run, palimpsest resume {going_on}")
    if folder is None:
        raise UserError("--resume auto needs --folder: the run to go on with is looked for there")
    return train_or_resume(recipe, Path(folder))


def tell(folder: Path, as_json: bool) -> None:
    """Where the run is, and for programs also how it ended; said once, however many processes have carried it out."""
    if not speaks():
        return
    if not as_json:
        print(folder)
        return
    path = folder / "evaluation.json"
    evaluation = read_json(path) if path.exists() else None
    print_json({"run": folder, "finished": evaluation is not None, "evaluation": evaluation})


def take_name(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The recipe or text, which comes first if it is given."""
    if arguments and not is_flag(arguments[0]):
        return arguments[0], arguments[1:]
    return None, arguments


def take_options(arguments: list[str], names: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Options of the verb itself, which are no fields of the recipe."""
    found, rest = {}, []
    queue = list(arguments)
    while queue:
        name, equals, value = queue.pop(0).partition("=")
        if name in names and (equals or queue):
            found[name] = value if equals else queue.pop(0)
        else:
            rest.append(name + equals + value)
    return found, rest
