"""Does the delta rule beat the sum, does carrying the page on help? Eight small models on WikiText-2, and a table.

    palimpsest data prepare wikitext-2
    python scripts/wikitext_2_table.py                                   three seeds of each, one run after the other
    python scripts/wikitext_2_table.py --at-once 4 --device cuda         four runs side by side on one GPU
    python scripts/wikitext_2_table.py --seeds 1 --steps 100             any other flag is one of `palimpsest train`

What is finished is not run again, and what was stopped goes on where it was: the same command continues.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import exp
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

RULES = {"Sum": "wikitext-2-sum", "Delta": "wikitext-2-delta"}
MAPS = {"ELU": "EluPlusOne", "DPFP": "DPFP"}
READINGS = {"fresh": [], "carried": ["--carry", "--evaluation", "CarriedState", "--evaluation.segment", "4096"]}


class Point(NamedTuple):
    rule: str
    feature_map: str
    reading: str

    def flags(self) -> list[str]:
        return [RULES[self.rule], "--feature-map", MAPS[self.feature_map], *READINGS[self.reading]]

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / "-".join(["wikitext-2", *self, "seed", str(seed)]).lower()


POINTS = [Point(*choices) for choices in product(RULES, MAPS, READINGS)]


def main() -> None:
    options, flags = parse(sys.argv[1:])
    runs = product(options.seeds, POINTS)
    with ThreadPoolExecutor(options.at_once) as pool:
        codes = list(pool.map(lambda run: carry_out(run[1], run[0], options, flags), runs))
    print(table(options.runs, options.seeds))
    if options.curves is not None:
        draw(options.runs, options.seeds, options.curves)
    sys.exit(max(codes))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Eight small models on WikiText-2, and a table.", allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are (default: runs)")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--curves", type=Path, help="a file for a picture of the training losses, such as curves.svg")
    return parser.parse_known_args(arguments)


def carry_out(point: Point, seed: int, options: argparse.Namespace, flags: list[str]) -> int:
    """The run's exit code; that of a run that is finished is zero."""
    folder = point.folder(options.runs, seed)
    if (folder / "evaluation.json").exists():
        return 0
    if (folder / "recipe.json").exists():
        verb = ["resume", str(folder)]
    else:
        own = ["--seed", str(seed), "--device", options.device, "--folder", str(folder)]
        verb = ["train", *point.flags(), *own, *flags]
    done = subprocess.run([sys.executable, "-m", "palimpsest", *verb], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-6:]
    print(f"{folder.name}: {'done' if done.returncode == 0 else chr(10).join(last)}", flush=True)
    return done.returncode


def table(runs: Path, seeds: list[int]) -> str:
    """Nats per word on the validation split, their spread over the seeds, and the perplexity of their mean."""
    lines = ["| rule | features | page | seeds | nats per word | ± | perplexity |", "|---|---|---|---|---|---|---|"]
    for point in POINTS:
        if nats := scores(point, runs, seeds):
            spread = f"{stdev(nats):.4f}" if len(nats) > 1 else ""
            cells = [*point, str(len(nats)), f"{mean(nats):.4f}", spread, f"{exp(mean(nats)):.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scores(point: Point, runs: Path, seeds: list[int]) -> list[float]:
    """Of the seeds that are finished."""
    files = [point.folder(runs, seed) / "evaluation.json" for seed in seeds]
    return [json.loads(file.read_text())["nats_per_token"] for file in files if file.exists()]


def draw(runs: Path, seeds: list[int], picture: Path) -> None:
    """Training loss against words read, the mean of the seeds and how far they lie apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="million words read", ylabel="nats per word in training")
    colours = {"Sum": {"ELU": "#c77b30", "DPFP": "#8f3b1b"}, "Delta": {"ELU": "#4a90c2", "DPFP": "#1f4e79"}}
    for point in POINTS:
        curves = [curve for seed in seeds if (curve := losses(point.folder(runs, seed)))]
        if not curves:
            continue
        words = [tokens / 1e6 for tokens, _ in curves[0]]
        columns = list(zip(*([nats for _, nats in curve] for curve in curves), strict=True))
        colour, line = colours[point.rule][point.feature_map], "-" if point.reading == "fresh" else "--"
        axes.plot(words, [mean(column) for column in columns], label=" ".join(point), color=colour, linestyle=line)
        axes.fill_between(words, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2)
    axes.legend(fontsize="small")
    figure.savefig(picture)


def losses(folder: Path) -> list[tuple[int, float]]:
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["tokens"], line["nats"]) for line in lines if line["event"] == "train"]


if __name__ == "__main__":
    main()
