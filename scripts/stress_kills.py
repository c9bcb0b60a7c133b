"""Does a run that is killed again and again end like one that never was? On a CPU the answer is yes, bit for bit.

    python scripts/stress_kills.py                      fifty kills, a few minutes
    python scripts/stress_kills.py --kills 10 --seed 3
    python scripts/stress_kills.py --ranks 2 --spread Sharded

A small run is started with `palimpsest train … --resume auto`, killed with SIGKILL at a moment drawn at random, and
started again with the same words. Four of five kills come a moment after a step drawn at random, so that they fall
where steps are made, written down, validated and saved; the fifth comes at any time soon after the start. Of several
ranks one drawn at random is killed, and torchrun starts them all again.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

LINE = "line {} says {} again and again, and so on.\n"
FLAGS = (
    "--steps {} --batch 2 --segment 16 --width 24 --layers 2 --order Contiguous --carry --log-every 1 "
    "--validate-every 5 --save-every 3 --device cpu --threads 1"
)
MOMENT = 0.2  # seconds, several steps
MEASURED = ("seconds", "tokens_per_second", "mfu", "memory")  # of the machine and the process, not of the training


def main() -> None:
    options = parse()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        text, whole, killed = (Path(place) / name for name in ("text.txt", "whole", "killed"))
        text.write_text("".join(LINE.format(i % 7, "abc"[i % 3]) for i in range(300)))
        begun = time.monotonic()
        finish(start(text, whole, options))
        seconds = time.monotonic() - begun
        print(f"a run of {options.steps} steps takes {seconds:.1f} s when nobody kills it", flush=True)
        steps = sorted(chance.randint(1, options.steps) for _ in range(options.kills))
        process = start(text, killed, options)
        for number, step in enumerate(steps, start=1):
            if number % 5:
                wait_for(step, process)
                time.sleep(chance.uniform(0, MOMENT))
            else:
                time.sleep(chance.uniform(0, seconds / 5))
            if options.ranks == 1:
                print(f"kill {number:>3}  {kill(process, killed)}", flush=True)
                process = start(text, killed, options)
            else:
                print(f"kill {number:>3}  {kill_one(process, options.ranks, chance)}{where(killed)}", flush=True)
        finish(process)
        faults = differences(whole, killed)
    print("\n".join(faults) or f"after {options.kills} kills all is as if there had been none, bit for bit")
    sys.exit(1 if faults else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill a small run again and again, and compare it with a whole one.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the run, by torchrun")
    parser.add_argument("--spread", default="Replicated", help="or Sharded")
    return parser.parse_args()


def start(text: Path, folder: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    command = ["-m", "palimpsest", "train", str(text), "--folder", str(folder), "--resume", "auto"]
    if options.ranks > 1:
        many = f"--standalone --nproc-per-node {options.ranks} --max-restarts {options.kills} --monitor-interval 0.1"
        command = ["-m", "torch.distributed.run", *many.split(), *command]
    flags = [*FLAGS.format(options.steps).split(), "--spread", options.spread]
    return subprocess.Popen(
        [sys.executable, *command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, words = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the run ended with {process.returncode}:\n{words}")


def wait_for(step: int, process: subprocess.Popen[str]) -> None:
    """Until it tells of this step or a later one, or has ended."""
    assert process.stderr is not None
    for line in process.stderr:
        told = re.search(r"step +(\d+)/", line)
        if told and int(told[1]) >= step:
            return


def kill(process: subprocess.Popen[str], folder: Path) -> str:
    """Says where that was. A run that ended of itself must have ended well."""
    process.send_signal(signal.SIGKILL)
    _, words = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"the run ended of itself with {process.returncode}:\n{words}")
    return f"{where(folder)}{'' if process.returncode else '; it had ended before'}"


def kill_one(launcher: subprocess.Popen[str], ranks: int, chance: random.Random) -> str:
    """Of the processes that torchrun has started, as soon as there are so many; nobody, if all have ended."""
    while len(found := children(launcher.pid)) < ranks:
        if launcher.poll() is not None:
            return "all had ended before; "
        time.sleep(0.01)
    number = chance.randrange(ranks)
    os.kill(found[number], signal.SIGKILL)
    return f"process {number + 1} of {ranks}; "


def children(parent: int) -> list[int]:
    """Those that are alive."""
    told = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return sorted(int(pid) for pid, state in map(str.split, told.splitlines()) if not state.startswith("Z"))


def where(folder: Path) -> str:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return "nothing written down yet"
    saved = sorted(one.name for one in (folder / "checkpoints").glob("step-*"))
    return f"{path.read_text().count(chr(10))} lines, {', '.join(saved)}"


def differences(one: Path, other: Path) -> list[str]:
    """In what two finished runs are not the same: numbers, weights, marks, scores, samples."""
    looks = {
        "metrics.jsonl": metrics,
        "checkpoints": checkpoints,
        "checkpoints/best.json": Path.read_text,
        "evaluation.json": Path.read_text,
        "samples.txt": Path.read_text,
    }
    return [f"{name} differs" for name, look in looks.items() if look(one / name) != look(other / name)]


def metrics(path: Path) -> list[dict[str, float]]:
    """Its lines, but for what was measured of the machine."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in MEASURED} for line in lines]


def checkpoints(folder: Path) -> dict[str, str]:
    """Which there are, and a checksum of the weights of each."""
    return {path.parent.name: sha256(path.read_bytes()).hexdigest() for path in folder.glob("step-*/model.safetensors")}


if __name__ == "__main__":
    main()
