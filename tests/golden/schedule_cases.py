"""Learning rates and Adagrad steps of the originals, against ours. Expected values are read here only."""

import json
from pathlib import Path

import torch
from closeness import close
from safetensors.torch import load_file

from palimpsest.legacy.schedules import (
    AdaptiveSpanWarmup,
    TransformerXLConstant,
    TransformerXLCosine,
    TransformerXLInverseSquareRoot,
    TransformerXLPlateau,
)
from palimpsest.training.adagrad import ClippedAdagrad
from palimpsest.training.schedules import Schedule


def check(path: Path) -> None:
    """A file of the form train/lr_schedules.json: the rate of every update."""
    for name, case in json.loads(path.read_text()).items():
        schedule, validations = schedule_of(case), validations_of(case)
        for step, expected in enumerate(case["lr_used_per_update"]):
            before = [found for found in validations if found[0] <= step]
            rate = case["lr"] * schedule.share(step, case["max_step"], before)
            assert abs(rate - expected) <= 1e-12, f"{name}, update {step + 1}: {rate}, expected {expected}"


def schedule_of(case: dict) -> Schedule:
    warmup, rate = case["warmup"], case["lr"]
    if case["sched"] == "cosine":
        return TransformerXLCosine(warmup, case.get("eta_min", 0.0) / rate)
    if case["sched"] == "constant":
        return TransformerXLConstant(warmup)
    if case["sched"] == "inv_sqrt":
        return TransformerXLInverseSquareRoot(warmup)
    assert case["sched"] == "dev_perf", f"an unknown schedule: {case['sched']}"
    floor = case.get("lr_min", 0.0) / rate
    return TransformerXLPlateau(warmup, case.get("decay_rate", 0.5), case.get("patience", 0), floor)


def validations_of(case: dict) -> list[tuple[int, float]]:
    every = case.get("eval_interval", 0)
    return [(every * (number + 1), nats) for number, nats in enumerate(case.get("evals", []))]


def check_adagrad(folder: Path) -> None:
    """A folder of the form adaptive_span/adagrad: rates, parameters and sums after every step."""
    tensors = load_file(folder / "io.safetensors")
    for case in json.loads((folder / "config.json").read_text()):
        check_steps(case, {name.split(".", 1)[1]: value for name, value in tensors.items() if of(case, name)})


def of(case: dict, name: str) -> bool:
    return name.startswith(case["tag"] + ".")


def check_steps(case: dict, tensors: dict[str, torch.Tensor]) -> None:
    count = sum(name.endswith(".init") for name in tensors)
    parameters = [torch.nn.Parameter(tensors[f"p{number}.init"].clone()) for number in range(count)]
    optimiser = ClippedAdagrad(
        parameters,
        case["lr"],
        clip=case["grad_clip"] or None,
        rate_decay=case.get("lr_decay", 0.0),
        weight_decay=case.get("weight_decay", 0.0),
        initial=case.get("initial_accumulator_value", 0.0),
    )
    schedule = AdaptiveSpanWarmup(case["warmup"])
    for step, rate in enumerate(case["lr_used"]):
        share = schedule.share(step, len(case["lr_used"]))
        assert abs(case["lr"] * share - rate) <= 1e-12, f"{case['tag']}, step {step}"
        optimiser.param_groups[0]["lr"] = case["lr"] * share
        for number, parameter in enumerate(parameters):
            parameter.grad = tensors[f"s{step}.g{number}"].clone()
        optimiser.step()
        for number, parameter in enumerate(parameters):
            where = f"{case['tag']}, step {step}, tensor {number}"
            close(parameter.data, tensors[f"s{step}.p{number}"], 2e-7, where)
            close(optimiser.state[parameter]["sum"], tensors[f"s{step}.sum{number}"], 2e-7, f"{where}, sum")
