"""A softmax model, a delta model and a hybrid on enwik8, each in minutes of one GPU: bits per byte, and curves.

    palimpsest data prepare enwik8
    python benchmarks/enwik8.py                                             all three, one after the other
    python benchmarks/enwik8.py --recipes enwik8-hybrid --steps 500         any other flag is one of `palimpsest train`
    python benchmarks/enwik8.py --recipes --curves docs/pictures/enwik8.svg train none, draw what was found before

A model is trained and scored in one go, and the clock runs from before torch is loaded until the score is there. Scores
are of the test split, every byte of it but the first, each from 1,793 to 2,048 bytes before it, in the precision of the
training. A second number leaves targets that are newlines out, as Transformer-XL's published one does.

What was found before stays in the file of results, but for models that are trained again.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

BEGUN = time.monotonic()  # torch takes its time too
RESULTS = Path(__file__).parent / "results" / "enwik8-h200.json"
COLOURS = {"enwik8-softmax": "#222222", "enwik8-delta": "#1f4e79", "enwik8-hybrid": "#b03a5b"}
CURVE = ("step", "tokens", "seconds", "nats", "tokens_per_second", "mfu", "memory")
CONTEXT, STRIDE = 2048, 256


def main() -> None:
    options, flags = parse(sys.argv[1:])
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    begun = BEGUN
    for name in options.recipes:
        found[name] = carry_out(name, options.runs, flags, begun)
        options.output.write_text(json.dumps(found, indent=2) + "\n")
        begun = time.monotonic()
    print(table(found))
    if options.curves is not None:
        draw(found, options.curves)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--recipes", nargs="*", default=[*COLOURS], help="which (%(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are (%(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the numbers go, as JSON (%(default)s)")
    parser.add_argument("--curves", type=Path, help="a file for a picture, such as curves.svg")
    return parser.parse_known_args(arguments)


def carry_out(name: str, runs: Path, flags: list[str], begun: float) -> dict[str, Any]:
    """One model from its recipe to its score."""
    from measuring_gpu import surroundings_gpu

    from palimpsest import train
    from palimpsest.cli.overrides import override
    from palimpsest.cli.recipes import find_recipe

    folder = train(override(find_recipe(name), flags, "benchmarks/enwik8.py"), runs / name)
    trained = time.monotonic()
    score = score_of(folder)
    seconds = {"train": trained - begun, "evaluate": time.monotonic() - trained, "all": time.monotonic() - begun}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curves = {event: [pick(line) for line in lines if line["event"] == event] for event in ("train", "valid")}
    recipe = json.loads((folder / "recipe.json").read_text())
    return surroundings_gpu() | {"recipe": recipe, "seconds": seconds} | score | curves


def pick(line: dict[str, Any]) -> dict[str, float]:
    return {key: line[key] for key in CURVE if key in line}


def score_of(folder: Path) -> dict[str, Any]:
    from palimpsest import load
    from palimpsest.evaluation.perplexity import SlidingWindow, read_text

    run = load(folder, "latest")
    ids = run.tokens().splits["test"].ids
    with run.recipe.run.precision.at_work(run.world.device):
        tally = read_text(run.model, ids, SlidingWindow(CONTEXT, STRIDE), run.world)
    counted = tally.times.bool().numpy()
    others = counted & (ids != run.codec.encode("\n")[0])
    bits = tally.nats.numpy() / math.log(2)
    return {
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "targets": int(counted.sum()),
        "bits_per_byte": float(bits[counted].mean()),
        "targets_without_newlines": int(others.sum()),
        "bits_per_byte_without_newlines": float(bits[others].mean()),
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model | parameters | bits per byte | without newlines | bytes read | seconds in all |",
        "|---" * 6 + "|",
    ]
    for name, one in found.items():
        bits = f"{one['bits_per_byte']:.4f} | {one['bits_per_byte_without_newlines']:.4f}"
        read, seconds = f"{one['train'][-1]['tokens']:,}", f"{one['seconds']['all']:.0f}"
        lines.append(f"| {name} | {one['parameters']:,} | {bits} | {read} | {seconds} |")
    return "\n".join(lines)


def draw(found: dict[str, dict[str, Any]], picture: Path) -> None:
    """Training losses against minutes, and where each model was validated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xlabel="minutes of training", ylabel="bits per byte (points: validation)", ylim=(0.95, 1.6)
    )
    for name, one in found.items():
        for event, style in (("train", "-"), ("valid", "o")):
            minutes = [line["seconds"] / 60 for line in one[event]]
            bits = [line["nats"] / math.log(2) for line in one[event]]
            axes.plot(minutes, bits, style, color=COLOURS.get(name), label=name if event == "train" else None)
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main()
