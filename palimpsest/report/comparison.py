"""Several runs beside one another: what they scored, what they cost, and only where they differ."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import UserError
from .curves import curve
from .page import scores
from .run_folder import RunRecord, read_run
from .sentences import duration, sentence, short

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PER_TOKEN = ("nats_per_token", "perplexity")  # scores that mean nothing beside those of other tokens
LOWEST = "lowest_validation"
LOWER_IS_BETTER = (*PER_TOKEN, "bits_per_character", "bits_per_byte", LOWEST)
HIGHER_IS_BETTER = ("bleu", "chrf")
COSTS = {  # a heading, and how a number is spelt
    "parameters": ("parameters", short),
    "tokens": ("tokens seen", short),
    "seconds": ("time", duration),
    "tokens_per_second": ("tokens/s, median", short),
}


@dataclass(frozen=True)
class Difference:
    """Where the runs are not all the same."""

    path: str  # such as model.width
    values: dict[int, Any]  # of the runs that have such a thing

    @property
    def disputed(self) -> bool:
        """Whether those that have it differ; otherwise it only comes with a part that not all of them have."""
        return len({*map(repr, self.values.values())}) > 1


@dataclass(frozen=True)
class Compared:
    """One of the runs: its folder, what it is called beside the others, and all it has written."""

    folder: Path
    label: str
    letter: str
    record: RunRecord

    @property
    def validation(self) -> float | None:
        """The lowest there was, in nats per token."""
        return min((value for _, value in curve(self.record.valid)), default=None)

    @property
    def numbers(self) -> dict[str, float | None]:
        """What it cost, by the names of COSTS."""
        latest, speeds = self.record.latest, [speed for _, speed in curve(self.record.train, "tokens_per_second")]
        parameters = self.record.environment.get("parameters")
        return {
            "parameters": parameters if isinstance(parameters, int) else None,
            "tokens": latest.tokens if latest else None,
            "seconds": latest.seconds if latest else None,
            "tokens_per_second": median(speeds) if speeds else None,
        }

    @property
    def scores(self) -> dict[str, float]:
        """Of its evaluation, if there was one, and the lowest of its validations."""
        validation = {} if self.validation is None else {LOWEST: self.validation}
        return {**scores(self.record.evaluation or {}), **validation}


@dataclass(frozen=True)
class Comparison:
    runs: tuple[Compared, ...]

    @property
    def score_names(self) -> list[str]:
        names = list(dict.fromkeys(name for run in self.runs for name in run.scores))
        return sorted(names, key=lambda name: name == LOWEST)

    @property
    def recipe(self) -> list[Difference]:
        return differences([run.record.recipe for run in self.runs])

    @property
    def environment(self) -> list[Difference]:
        """All but the parameters, which are counted elsewhere."""
        return differences([{**run.record.environment, "parameters": None} for run in self.runs])

    def best(self, name: str) -> Compared | None:
        """The run with the best score; None where they cannot be compared, or there is only one."""
        scored = [run for run in self.runs if name in run.scores]
        if name not in (*LOWER_IS_BETTER, *HIGHER_IS_BETTER) or len(scored) < 2 or not self.comparable(name):
            return None
        sign = -1 if name in HIGHER_IS_BETTER else 1
        return min(scored, key=lambda run: sign * run.scores[name])

    def comparable(self, name: str) -> bool:
        """Whether a score was come by in one and the same way: a number without its protocol says little."""
        return len({ways(run.record, name) for run in self.runs if name in run.scores}) == 1

    def to_json(self) -> dict[str, Any]:
        best = {name: self.best(name) for name in self.score_names}
        return {
            "runs": [
                {"run": run.letter, "label": run.label, "folder": str(run.folder), **run.scores, **run.numbers}
                for run in self.runs
            ],
            "best": {name: run.letter for name, run in best.items() if run},
            "recipe": {one.path: self.by_letter(one) for one in self.recipe},
            "environment": {one.path: self.by_letter(one) for one in self.environment},
        }

    def by_letter(self, difference: Difference) -> dict[str, Any]:
        return {self.runs[i].letter: value for i, value in difference.values.items()}


def ways(record: RunRecord, name: str) -> str:
    """How a score was come by, such that two scores may stand beside each other if it is the same."""
    data, evaluation = record.recipe.get("data") or {}, record.evaluation or {}
    # what is None was not chosen, and an older recipe may not know it
    text = [(field, value) for field, value in (data.get("corpus") or {}).items() if value is not None]
    if name == LOWEST:
        return repr((text, data.get("vocabulary"), record.recipe.get("evaluation")))
    tokens = evaluation.get("tokens") if name in PER_TOKEN else None
    return repr((text, evaluation.get("split"), evaluation.get("protocol"), tokens))


def compare_runs(folders: Sequence[Path]) -> Comparison:
    records = [read_run(folder) for folder in folders]
    refuse_too_few(folders)
    labels = tell_apart([record.name for record in records], folders)
    parts = zip(folders, labels, records, strict=True)
    return Comparison(
        tuple(Compared(folder, label, letter(i), record) for i, (folder, label, record) in enumerate(parts))
    )


def refuse_too_few(folders: Sequence[Path]) -> None:
    if len(folders) == 1:
        raise UserError(
            f"a comparison needs two runs or more, and {folders[0]} is one: it has a page of its own, report.html"
        )
    places = [folder.resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} was given twice: a run compared with itself shows no difference")


def tell_apart(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The names if all are different; otherwise as much of the end of each path as makes them so."""
    places = [folder.resolve().parts for folder in folders]
    length = 1
    while len({*names}) < len(names):
        names = ["/".join(place[-length:]) for place in places]
        length += 1
    return list(names)


def letter(index: int) -> str:
    """A, B, … Z, AA, AB …"""
    rest, last = divmod(index, len(ALPHABET))
    return (letter(rest - 1) if rest else "") + ALPHABET[last]


def differences(trees: Sequence[dict[str, Any]]) -> list[Difference]:
    flat = [dict(leaves(tree)) for tree in trees]
    paths = dict.fromkeys(path for one in flat for path in one)
    rows = [Difference(path, {i: one[path] for i, one in enumerate(flat) if path in one}) for path in in_order(paths)]
    return [row for row in rows if row.disputed or len(row.values) < len(flat)]


def leaves(tree: dict[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    """`model.block.mixer` → FastWeight, `model.block.mixer.heads` → 4: parts by name, then their fields."""
    if path and "part" in tree:
        yield path, tree["part"]
    for name, value in tree.items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            value = {str(i): one for i, one in enumerate(value, start=1)}
        if isinstance(value, dict):
            yield from leaves(value, inner)
        elif name != "part":
            yield inner, value


def in_order(paths: Iterable[str]) -> list[str]:
    """What belongs to one part stands together, whichever run it was found in first."""
    found = list(paths)
    places = {path: i for i, path in enumerate(found)}

    def place(path: str) -> list[int]:
        parents = [path[:i] for i, character in enumerate(path) if character == "."]
        return [places[parent] for parent in parents if parent in places] + [places[path]]

    return sorted(found, key=place)


def said(row: Difference, run: int) -> str:
    """The value of a run, or that it has no such thing."""
    value = row.values.get(run, "–")
    return value if isinstance(value, str) and value.isprintable() else sentence(value)
