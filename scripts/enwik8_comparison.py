"""A softmax model, a delta model and a hybrid on enwik8, one after the other: bits per byte, and curves.

    palimpsest data prepare enwik8
    python scripts/enwik8_comparison.py --runs runs --results enwik8.json --curves enwik8.svg
    python scripts/enwik8_comparison.py --recipes enwik8-hybrid --steps 500

Any other flag is one of `palimpsest train`.

Scores are of the test split, every byte of it but the first: the last 5,000,000 of the corpus. A second number leaves
targets that are newlines out, which Transformer-XL's published one does.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RECIPES = ("enwik8-softmax", "enwik8-delta", "enwik8-hybrid")


def main() -> None:
    options, flags = parse(sys.argv[1:])
    found = {name: carry_out(name, options, flags) for name in options.recipes}
    print(table(found))
    if options.results is not None:
        options.results.write_text(json.dumps(found, indent=2) + "\n")
    if options.curves is not None:
        draw(found, options.curves)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Three models on enwik8, and a table.", allow_abbrev=False)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are (default: runs)")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--stride", type=int, default=256)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--curves", type=Path)
    return parser.parse_known_args(arguments)


def carry_out(name: str, options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    folder = options.runs / name
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "palimpsest", "train", name, "--folder", str(folder), *flags], check=True)
    trained = time.monotonic()
    score = score_of(folder, options.context, options.stride)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return score | {
        "seconds": {"train": trained - start, "evaluate": time.monotonic() - trained},
        "train": [pick(line) for line in lines if line["event"] == "train"],
        "valid": [pick(line) for line in lines if line["event"] == "valid"],
    }


def pick(line: dict[str, Any]) -> dict[str, float]:
    return {key: line[key] for key in ("step", "tokens", "seconds", "nats", "tokens_per_second", "mfu") if key in line}


def score_of(folder: Path, context: int, stride: int) -> dict[str, Any]:
    from palimpsest import load
    from palimpsest.evaluation.perplexity import SlidingWindow, read_text

    run = load(folder, "latest")
    test = run.tokens().splits["test"]
    with run.recipe.run.precision.at_work(run.world.device):
        tally = read_text(run.model, test.ids, SlidingWindow(context, stride), run.world)
    newline = run.codec.encode("\n")[0]
    counted = tally.times.bool().numpy()
    told = counted & (test.ids != newline)
    nats = tally.nats.numpy()
    bits = {
        "bits_per_byte": nats[counted].mean() / math.log(2),
        "bits_per_byte_without_newlines": nats[told].mean() / math.log(2),
    }
    return {"parameters": sum(p.numel() for p in run.model.parameters()), "targets": int(counted.sum()), **bits}


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| model | parameters | bits per byte | without newlines | training s | evaluation s | tokens |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, one in found.items():
        bits = f"{one['bits_per_byte']:.4f} | {one['bits_per_byte_without_newlines']:.4f}"
        seconds = f"{one['seconds']['train']:.0f} | {one['seconds']['evaluate']:.0f}"
        lines.append(f"| {name} | {one['parameters']:,} | {bits} | {seconds} | {one['train'][-1]['tokens']:,} |")
    return "\n".join(lines)


def draw(found: dict[str, dict[str, Any]], picture: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, one in found.items():
        (line,) = axes.plot(
            [each["seconds"] / 60 for each in one["train"]],
            [each["nats"] / math.log(2) for each in one["train"]],
            alpha=0.4,
            label=name,
        )
        axes.plot(
            [each["seconds"] / 60 for each in one["valid"]],
            [each["nats"] / math.log(2) for each in one["valid"]],
            "o-",
            color=line.get_color(),
        )
    axes.set(xlabel="minutes of training", ylabel="bits per byte (points: validation)", ylim=(0.95, 1.6))
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main()
