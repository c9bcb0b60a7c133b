"""Run folders as a training leaves them, written by hand: what pages are made from."""

import json
import math
from pathlib import Path

MIXER = {"part": "FastWeight", "feature_map": {"part": "DPFP", "nu": 3}, "rule": {"part": "Delta", "beta": 0.5}}
RECIPE = {
    "name": "tiny-shakespeare",
    "data": {"corpus": {"part": "TinyShakespeare"}, "batch": 16},
    "model": {"width": 128, "block": {"part": "PreNorm", "mixer": MIXER, "feed_forward": None}},
}
ENVIRONMENT = {"palimpsest": "0.1.0", "torch": "2.11.0", "device": "cpu", "parameters": 824_641}


def line(event: str, step: int, nats: float, **more: float) -> dict:
    return {"event": event, "step": step, "tokens": 4096 * step, "nats": nats, "seconds": 0.5 * step, **more}


def train_line(step: int) -> dict:
    nats = 1.5 + 3 / (1 + step) + 0.05 * math.sin(step)
    return line("train", step, nats, gradient_norm=0.5 + 1 / step, rate=min(1.0, step / 20), tokens_per_second=8192.0)


TRAIN = [train_line(step) for step in range(1, 101)]
VALID = [line("valid", step, 1.6 + 2 / step) for step in range(20, 101, 20)]
EVALUATION = {
    "split": "valid",
    "protocol": {"part": "Segments", "length": 256},
    "checkpoint": "step-00000100",
    "tokens": 111_539,
    "nats": 195_193.2,
    "nats_per_token": 1.75,
    "perplexity": 5.7546,
    "bits_per_token": 2.5247,
    "bits_per_character": 2.5247,
    "bits_per_byte": None,
    "by_position": [
        {"from": 0, "to": 1, "tokens": 436, "nats_per_token": 3.3},
        {"from": 1, "to": 2, "tokens": 436, "nats_per_token": 2.6},
        {"from": 2, "to": 256, "tokens": 110_667, "nats_per_token": 1.71},
    ],
}
SAMPLE = "ROMEO:\nO <b>brave</b> & new\n</pre><script>alert('world')</script>"


def write_run(folder: Path, recipe: dict | None = None, above: float = 0.0, steps: int = 100) -> Path:
    """A finished run, with losses so much above those of TRAIN and VALID; of `steps` steps it was evaluated after."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{**one, "nats": one["nats"] + above} for one in (*TRAIN, *VALID) if one["step"] <= steps]
    write_lines(folder, sorted(lines, key=lambda event: event["step"]))
    write_json(folder / "recipe.json", recipe or RECIPE)
    write_json(folder / "environment.json", ENVIRONMENT)
    write_json(folder / "evaluation.json", {**EVALUATION, "nats_per_token": EVALUATION["nats_per_token"] + above})
    (folder / "samples.txt").write_text(SAMPLE, "utf-8")
    return folder


def result(label: str, keys: int, loss: float, **more) -> dict:
    """A line of results.jsonl: a run of the retrieval laboratory."""
    scores = [(100, loss, 0.5)]
    asked = {"part": "Retrieval", "model": {"key_width": 64}}
    shared = {"length": keys, "replace": 0, "seed": 1, "steps": 100, "accuracy": 0.5, "end": "patience", "seconds": 1.0}
    return {
        "name": f"{label} {keys}",
        "label": label,
        "keys": keys,
        "loss": loss,
        "scores": scores,
        "asked": asked,
        **shared,
        **more,
    }


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value), "utf-8")


def append(folder, *lines: dict) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)


def write_lines(folder, lines) -> None:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
