"""`try_compiled.py KERNEL`: what a fused kernel is tried with, tried with the kernel as it is compiled for an H200.

As JSON, a trial each. `--case NAME` is for one alone, `--warps N` for so many in each kernel of the scan, and
`--without WORD` leaves instructions out, so that there is a fault to be found.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from sys import path

path.append(str(Path(__file__).parents[1]))
import device  # before all that imports triton
import torch

from palimpsest.kernels import self_test
from palimpsest.kernels.fused import scan
from palimpsest.kernels.self_test import WIDER, Case, Trial, addressed, fading, rewriting

TOKENS = (1, 3500, 1)  # three parts, and in each what is done to a page is looked at more than once
CPU = torch.device("cpu")


def cases() -> Iterator[Case]:
    """Those of the trial, and parts of a long sequence in which soon nothing is left of a page, or much for long."""
    yield from self_test.cases()
    chance = torch.Generator().manual_seed(0)
    page = addressed(WIDER, WIDER, TOKENS, chance)
    erase, write = rewriting(TOKENS, chance).values()
    log_keep, by_feature = fading(TOKENS, chance), fading((*TOKENS, WIDER), chance)
    rules = {
        "Delta": {"erase": erase, "write": write},
        "Delta, one gate": {"erase": erase},
        "Delta, one gate, little": {"erase": erase / 20},
        "GatedDelta": {"erase": erase, "write": write, "log_keep": log_keep / 10},
        "GatedDelta, one gate": {"erase": erase, "log_keep": log_keep / 100},
        "GatedSum": {"write": write, "log_keep": log_keep / 100},
        "FeatureGatedDelta": {"erase": erase, "write": write, "log_keep": by_feature / 100},
    }
    for rule, gates in rules.items():
        compute = self_test.scan_by_one_gate if "one gate" in rule else self_test.scan
        yield Case("parts", rule, ["fused"], page | gates, compute, definition="chunked", plain="chunked")


def trials(kernel: str, name: str | None) -> Iterator[Trial]:
    for case in cases():
        if case.kernel == kernel and name in (None, case.name):
            yield from case.first_trials(CPU)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel")
    parser.add_argument("--case")
    parser.add_argument("--warps", type=int)
    parser.add_argument("--without")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    changes = {}
    if chosen.warps:
        changes = {f"{name}_warps": chosen.warps for name in ("carry", "back", "gradient", "prepare")}
    if chosen.kernel == "parts":
        changes["parts"] = 3
    usual = scan.settings_for
    scan.settings_for = lambda *about: replace(usual(*about), **changes)
    if chosen.without:
        device.changed = lambda ptx: "\n".join(line for line in ptx.splitlines() if chosen.without not in line)
    print(json.dumps([asdict(trial) for trial in trials(chosen.kernel, chosen.case)]))


if __name__ == "__main__":
    main()
