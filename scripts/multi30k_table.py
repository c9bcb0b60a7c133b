"""Which attention translates best? Seven recipes on Multi30k, FAVOR+ with three numbers of features, and a table.

    palimpsest data prepare multi30k
    python scripts/multi30k_table.py                                     one seed of each, one run after the other
    python scripts/multi30k_table.py --at-once 4 --device cuda           four runs side by side on one GPU
    python scripts/multi30k_table.py --seeds 1 2 3 --steps 2000          any other flag is one of `palimpsest train`

Scores are BLEU and chrF of the test split, flickr's of 2016, cased and detokenised. What is finished is not run again,
and what was stopped goes on where it was: the same command continues.
"""

import argparse
import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from wikitext_2_table import carry_out

SCORES = {"bleu": "{:.2f}", "chrf": "{:.2f}", "nats_per_token": "{:.3f}"}
FINISHED, SCORED = "evaluation.json", "test.json"  # in the folder of a run, of its validation and its test split
MACHINE = ("palimpsest", "python", "torch", "device", "processor", "cores", "parameters", "started")


class Point(NamedTuple):
    """A recipe, with as many random directions as are said here, and what it is called in the table."""

    recipe: str
    label: str
    colour: str
    directions: int | None = None

    @property
    def name(self) -> str:
        return self.recipe if self.directions is None else f"{self.recipe}-{self.directions}"

    def flags(self) -> list[str]:
        places = () if self.directions is None else ("encoder", "cross", "mixer")
        more = [flag for place in places for flag in (f"--{place}.feature-map.directions", str(self.directions))]
        return [self.recipe, *more]

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / f"{self.name}-seed-{seed}"


POINTS = [
    Point("multi30k-softmax", "softmax", "#222222"),
    Point("multi30k-linear", "linear, elu + 1", "#c77b30"),
    Point("multi30k-favor", "FAVOR+, 32 features", "#a9cfa4", directions=16),
    Point("multi30k-favor", "FAVOR+, 128 features", "#5f9e58"),
    Point("multi30k-favor", "FAVOR+, 512 features", "#2c5e27", directions=256),
    Point("multi30k-dpfp-1", "DPFP, ν = 1", "#9cc3e0"),
    Point("multi30k-dpfp-2", "DPFP, ν = 2", "#4a90c2"),
    Point("multi30k-dpfp-3", "DPFP, ν = 3", "#1f4e79"),
    Point("multi30k-delta", "DPFP, ν = 1, delta rule in the decoder", "#b03a5b"),
]


def main() -> None:
    options, flags = parse(sys.argv[1:])
    runs = [(seed, point) for seed in options.seeds for point in POINTS]
    with ThreadPoolExecutor(options.at_once) as pool:
        codes = list(pool.map(lambda run: carry_out(run[1], run[0], options, flags), runs))  # pyright: ignore
    for seed, point in runs:
        score(point.folder(options.runs, seed), options.device)
    print(table(options.runs, options.seeds))
    if options.results is not None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        found = {"command": shlex.join(["python", *sys.argv]), "runs": collected(options.runs, options.seeds)}
        options.results.write_text(json.dumps(found, indent=2) + "\n")
    if options.curves is not None:
        draw(options.runs, options.seeds, options.curves)
    sys.exit(max(codes))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description="Seven recipes on Multi30k, English to German, and a table.", allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are (default: runs)")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, help="a file for all the numbers, such as multi30k.json")
    parser.add_argument("--curves", type=Path, help="a file for a picture of the validations, such as curves.svg")
    return parser.parse_known_args(arguments)


def score(folder: Path, device: str) -> None:
    """The test split of a run that is finished, once."""
    from palimpsest import load
    from palimpsest.files import write_atomically

    if (folder / SCORED).exists() or not (folder / FINISHED).exists():
        return
    trained = load(folder, device=device)
    found = trained.evaluate(trained.tokens().splits["test"])
    told = {"checkpoint": trained.checkpoint, **found.to_json()}
    write_atomically(folder / SCORED, json.dumps(told, indent=2) + "\n")


def table(runs: Path, seeds: list[int]) -> str:
    """The mean of the seeds that are finished and, where there are several, their standard deviation."""
    lines = [
        "| attention | seeds | BLEU | chrF | nats per sub-word | minutes | tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in POINTS:
        found = [one for seed in seeds if (one := read(point.folder(runs, seed)))]
        if found:
            cells = [spread([one["test"][name] for one in found], form) for name, form in SCORES.items()]
            minutes, speed = (mean(one[name] for one in found) for name in ("minutes", "tokens_per_second"))
            lines.append(f"| {point.label} | {len(found)} | {' | '.join(cells)} | {minutes:.1f} | {speed:,.0f} |")
    return "\n".join(lines)


def spread(values: list[float], form: str) -> str:
    middle = form.format(mean(values))
    return f"{middle} ± {form.format(stdev(values))}" if len(values) > 1 else middle


def collected(runs: Path, seeds: list[int]) -> dict[str, Any]:
    folders = {point.name: {str(seed): read(point.folder(runs, seed)) for seed in seeds} for point in POINTS}
    return {name: {seed: one for seed, one in found.items() if one} for name, found in folders.items()}


def read(folder: Path) -> dict[str, Any] | None:
    """All that a finished run has to tell."""
    if not (folder / SCORED).exists():
        return None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = (SCORED, FINISHED, "environment.json")
    test, valid, environment = (json.loads((folder / name).read_text()) for name in files)
    steps, validations = ([line for line in lines if line["event"] == event] for event in ("train", "valid"))
    return {
        "test": test,
        "valid": valid,
        "environment": {name: environment.get(name) for name in MACHINE},
        "minutes": steps[-1]["seconds"] / 60,
        "tokens_per_second": median(line["tokens_per_second"] for line in steps),
        "validations": [{name: line.get(name) for name in ("step", "tokens", "nats", "bleu")} for line in validations],
    }


def draw(runs: Path, seeds: list[int], picture: Path) -> None:
    """Validation against tokens read: nats, and BLEU of what is translated greedily; the mean of the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    sides = figure.subplots(1, 2)
    for point in POINTS:
        found = [one["validations"] for seed in seeds if (one := read(point.folder(runs, seed)))]
        steps = list(zip(*found, strict=True))
        for axes, name in zip(sides, ("nats", "bleu"), strict=True):
            tokens = [mean(one["tokens"] for one in step) / 1e6 for step in steps]
            axes.plot(
                tokens, [mean(one[name] for one in step) for step in steps], label=point.label, color=point.colour
            )
            axes.set(xlabel="million sub-words of German", ylabel={"nats": "nats per sub-word", "bleu": "BLEU"}[name])
    sides[1].legend(fontsize="small")
    figure.savefig(picture)


if __name__ == "__main__":
    main()
