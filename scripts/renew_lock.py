"""Renew requirements.lock: ask pip for the newest versions that go together, and write them down.

    make lock                       the newest of everything; torch stays where it is
    make lock ARGS="--torch 2.14.0"

Nothing is installed. Only pip is needed: run it with the Python the lock is meant for.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
WANTED = ".[dev]"

# What a CUDA build of torch brings along depends on the machine, and torch itself pins it.
BELONGS_TO_THE_MACHINE = re.compile(r"(nvidia|cuda)-.*|triton")

HEADER = """\
# The versions palimpsest is tested with. Used as constraints, so only what is wanted gets installed:
#
#     pip install -c requirements.lock -e .            (or -e '.[dev]')
#
# torch has no local label and nothing has a hash: the CPU build and the CUDA builds all fit.
# Renewed by `make lock`; do not edit by hand.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Renew requirements.lock.")
    parser.add_argument("--torch", metavar="VERSION", help="the version of torch to pin (default: as it is pinned now)")
    torch = parser.parse_args().torch or pinned("torch")
    versions = resolve(torch)
    LOCK.write_text(HEADER + "".join(f"{name}=={versions[name]}\n" for name in sorted(versions)))
    print(f"{LOCK.name}: {len(versions)} versions, torch {versions['torch']}")


def pinned(name: str) -> str:
    found = re.search(rf"^{name}==(\S+)$", LOCK.read_text() if LOCK.exists() else "", re.MULTILINE)
    if not found:
        sys.exit(f"{LOCK.name} does not pin {name} yet: say which version with --{name} VERSION")
    return found[1]


def resolve(torch: str) -> dict[str, str]:
    """What pip would install into an empty environment, by name, without local labels."""
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text(f"torch=={torch}\n")
        report = pip("install", "--dry-run", "--ignore-installed", "--report", "-", "-c", str(constraints), WANTED)
    found = {}
    for package in report["install"]:
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        if name != "palimpsest" and not BELONGS_TO_THE_MACHINE.fullmatch(name):
            found[name] = package["metadata"]["version"].partition("+")[0]
    return found


def pip(*arguments: str) -> dict:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        sys.exit(f"pip could not resolve {WANTED}; {LOCK.name} is as it was")
    return json.loads(answer.stdout)


if __name__ == "__main__":
    main()
