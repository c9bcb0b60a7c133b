"""palimpsest completion [bash | zsh | fish]

The script that is printed asks `palimpsest completion --words …` what the last of the words could become. That reads
the sources instead of importing them, so that it takes a moment and not seconds.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import unknown
from . import VERBS
from .sources import Field, fields_of, kinds_in, options, recipe_names, shelves, variants

HELP = """usage: palimpsest completion SHELL

Prints a script that lets the shell complete verbs, recipes, runs, flags and parts. To have it in every new shell:

  bash   echo 'eval "$(palimpsest completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(palimpsest completion zsh)"' >> ~/.zshrc      (below the line that calls compinit)
  fish   palimpsest completion fish > ~/.config/fish/completions/palimpsest.fish
"""
BASH = """_palimpsest() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _palimpsest palimpsest
"""
ZSH = """#compdef palimpsest
_palimpsest() {
    local -a found
    found=(${(f)"$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _palimpsest palimpsest
"""
FISH = """function __palimpsest_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($before[1] completion --words $before[2..-1] "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c palimpsest -f -a '(__palimpsest_words)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
VALUES = {"--device": ["auto", "cpu", "cuda", "mps"], "--checkpoint": ["best", "latest"]}

Words = Callable[[str], list[str]]


@dataclass(frozen=True)
class Grammar:
    """What may follow a verb, or an action of one."""

    words: Words = lambda current: []  # for a word that is no flag
    flags: tuple[str, ...] = ()  # of a verb that reads them itself
    options: str | None = None  # the class that holds its options
    spec: str | None = None  # the part whose fields are flags too
    own: tuple[tuple[str, Words], ...] = ()  # what a flag of it may be given


def runs(current: str) -> list[str]:
    """Runs beside what is typed; in runs/ and here where nothing is."""
    base = current.rpartition("/")[0]
    places = [Path(base)] if base else [Path("runs"), Path()]
    return sorted(str(recipe.parent) for place in places for recipe in place.glob("*/recipe.json"))


def protocols(current: str) -> list[str]:
    return ["recipe", *(kebab(part.name) for kind in ("Protocol", "Decoding") for part in variants(kind))]


def decodings(current: str) -> list[str]:
    return ["recipe", *(kebab(part.name) for part in variants("Decoding"))]


GRAMMARS = {
    "train": Grammar(
        lambda current: recipe_names(),
        ("--from", "--folder", "--resume", "--dry-run", "--json"),
        spec="Recipe",
        own=(("--from", runs), ("--resume", lambda current: ["auto"])),
    ),
    "resume": Grammar(runs, options="Resume"),
    "evaluate": Grammar(runs, options="Evaluate", spec="Protocol", own=(("--protocol", protocols),)),
    "generate": Grammar(runs, options="Generate"),
    "translate": Grammar(runs, options="Translate", own=(("--decoding", decodings),)),
    "inspect": Grammar(runs, options="Inspect"),
    "compare": Grammar(runs, options="Compare"),
    "retrieve": Grammar(lambda current: ["run", "sweep", "test", "recall", "draw"]),
    "retrieve run": Grammar(options="RunLine"),
    "retrieve sweep": Grammar(options="Sweep"),
    "retrieve test": Grammar(options="Own", spec="Retrieval"),
    "retrieve recall": Grammar(options="Own", spec="Recollection"),
    "retrieve draw": Grammar(options="Draw"),
    "data": Grammar(lambda current: ["ls", "prepare"]),
    "data ls": Grammar(options="List"),
    "data prepare": Grammar(lambda current: shelves(), options="Prepare"),
    "import": Grammar(options="Import"),
    "ls": Grammar(lambda current: ["all", "recipes", "parts", "corpora"], options="List"),
    "doctor": Grammar(flags=("--json", "--compile")),
    "tune": Grammar(
        lambda current: [*recipe_names(), *runs(current)],
        ("--seconds", "--forget", "--json"),
        spec="Recipe",
        own=(("--seconds", lambda current: []),),
    ),
    "completion": Grammar(lambda current: [*SCRIPTS]),
}


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        raise SystemExit(0)
    if arguments[0] == "--words":
        print("".join(f"{word}\n" for word in complete(arguments[1:])), end="")
    elif arguments[0] in SCRIPTS:
        print(SCRIPTS[arguments[0]], end="")
    else:
        raise unknown("shell", arguments[0], [*SCRIPTS])


def complete(words: list[str]) -> list[str]:
    """What the last word, which may be empty, could become, given those before it."""
    *before, current = words or [""]
    if current == "=":  # bash makes words of `--split=te` that are `--split`, `=` and `te`
        before, current = [*before, current], ""
    before = [word for word in before if word != "="]
    flag, equals, value = current.partition("=")
    if flag.startswith("--") and equals:
        return [f"{flag}={word}" for word in candidates([*before, flag], value) if word.startswith(value)]
    return [word for word in candidates(before, current) if word.startswith(current)]


def candidates(before: list[str], current: str) -> list[str]:
    if not before:
        return [*VERBS, "--help", "--version"]
    name = " ".join(before[:2]) if " ".join(before[:2]) in GRAMMARS else before[0]
    if name not in GRAMMARS:
        return []
    grammar, verb = GRAMMARS[name], before[0]
    if before[-1].startswith("--") and takes_a_value(grammar, verb, before[-1]):
        return values(grammar, verb, before[-1], current)
    if current.startswith("-"):
        return flags(grammar, verb, current)
    is_next = len(before) == len(name.split())  # a run may also come later, or a second one
    return grammar.words(current) if is_next or grammar.words is runs else []


def flags(grammar: Grammar, verb: str, current: str) -> list[str]:
    path = current.removeprefix("--").split(".")[:-1]
    if path:  # as far as the last full stop is a part of the recipe
        inside = fields_at(grammar.spec, path)
        return [*dict.fromkeys(f"--{'.'.join((*path, field.flag.removeprefix('--')))}" for field in inside)]
    named = {field.flag for field in [*own_fields(grammar, verb), *all_fields(grammar.spec)]}
    return sorted({*grammar.flags, "--help", *named})


def values(grammar: Grammar, verb: str, flag: str, current: str) -> list[str]:
    """Words to choose from, or none: then the shell offers files."""
    for name, words in grammar.own:
        if name == flag:
            return words(current)
    if flag in VALUES:
        return VALUES[flag]
    found: list[str] = []
    for field in fields_called(grammar, verb, flag):
        found += [*field.words, *(part.name for kind in kinds_in(field) for part in variants(kind))]
        found += ["none"] if found and field.may_be_absent else []
    return [*dict.fromkeys(found)]


def takes_a_value(grammar: Grammar, verb: str, flag: str) -> bool:
    if flag in grammar.flags:
        return flag in dict(grammar.own)
    named = fields_called(grammar, verb, flag)
    return bool(named) and not all(field.is_switch for field in named)


def fields_called(grammar: Grammar, verb: str, flag: str) -> list[Field]:
    *path, last = flag.removeprefix("--").split(".")
    among = fields_at(grammar.spec, path) if path else [*own_fields(grammar, verb), *all_fields(grammar.spec)]
    return [field for field in among if field.flag == f"--{last}"]


def own_fields(grammar: Grammar, verb: str) -> Iterator[Field]:
    """Options of the verb, those it shares with other actions among them."""
    classes = options().get(verb, {})
    waiting = [grammar.options] if grammar.options else []
    for name in waiting:
        for field in classes[name].fields.values() if name in classes else []:
            inside = field.names & classes.keys()
            waiting += sorted(inside)
            if not inside and "Positional" not in field.names:
                yield field


def all_fields(spec: str | None) -> list[Field]:
    """Of the part, and of every part that could stand in it."""
    waiting = [] if spec is None else [spec]
    found: list[Field] = []
    for kind in waiting:
        for field in fields_of_kind(kind):
            found.append(field)
            waiting += [inner for inner in kinds_in(field) if inner not in waiting]
    return found


def fields_at(spec: str | None, path: list[str]) -> list[Field]:
    """Of whatever may stand at a place in the part: `model.block` of a recipe."""
    kinds = [] if spec is None else [spec]
    for step in path:
        chosen = [field for kind in kinds for field in fields_of_kind(kind) if field.flag == f"--{step}"]
        kinds = [*dict.fromkeys(inner for field in chosen for inner in kinds_in(field))]
    return [field for kind in kinds for field in fields_of_kind(kind)]


def fields_of_kind(kind: str) -> list[Field]:
    return [field for variant in variants(kind) for field in fields_of(variant).values()]


def kebab(name: str) -> str:
    """`TransformerXLColumns` -> `transformer-xl-columns`"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()
