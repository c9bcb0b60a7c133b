"""Training runs of the originals, step for step, carried out by our trainer."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_cases import build_adaptive_span, build_transformer_xl, read_case, within
from safetensors.torch import load_file
from torch import Tensor
from toys import metrics, quiet

from palimpsest.evaluation.perplexity import Protocol, evaluate
from palimpsest.legacy import from_adaptive_span, from_transformer_xl, protocols, schedules, streams
from palimpsest.models.language_model import LanguageNetwork
from palimpsest.training.log import Log
from palimpsest.training.optimisers import SGD, Adagrad, Adam, Optimiser
from palimpsest.training.schedules import Schedule
from palimpsest.training.trainer import Run, Trainer
from palimpsest.world import ALONE


class Recorder(Trainer):
    """Keeps what the originals wrote down after each step."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.records: list[dict[str, Any]] = []

    def report(self) -> None:
        super().report()
        ratios = [module.ratio.tolist() for module in self.model.modules() if hasattr(module, "ratio")]
        caches = [block.hidden for block in self.state.blocks]
        self.records.append({"spans": ratios, "cache_len": [c.shape[1] for c in caches], "caches": caches})


def trained(
    model: LanguageNetwork,
    order,
    ids: np.ndarray,
    batch: int,
    segment: int,
    seed: int,
    optimiser: Optimiser,
    schedule: Schedule,
    run: Run,
    validation: tuple[np.ndarray, Protocol] | None,
    folder: Path,
) -> Recorder:
    stream = order.build(ids, batch, segment, seed)

    def validate() -> dict[str, float]:
        if validation is None:
            return {"nats": 0.0}
        return {"nats": evaluate(model, validation[0], validation[1], None, 1).nats_per_token}

    with Log(folder / "metrics.jsonl", run.steps, quiet()) as log:
        trainer = Recorder(model, stream, validate, optimiser, schedule, run, folder, log, ALONE)
        trainer.fit()
    return trainer


def check_transformer_xl(folder: Path, work: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    args = config["args"]
    text = json.loads(find_text(folder, args["dataset"]).read_text())
    model = build_transformer_xl(config["constructor"], load_file(folder / "weights_init.safetensors"))
    order = (streams.TransformerXLRandomLengths if args["varlen"] else streams.TransformerXLSegments)(args["ext_len"])
    memory = args["mem_len"] + args["tgt_len"] - args["eval_tgt_len"] if args["mem_len"] else 0
    protocol = protocols.TransformerXLColumns(
        args["eval_tgt_len"], memory, args["ext_len"], rows=args["eval_batch_size"]
    )
    run = Run(
        steps=args["max_step"],
        carry=True,
        accumulation=args["batch_chunk"],
        clip=args["clip"],
        log_every=1,
        validate_every=args["eval_interval"],
    )
    valid = shortened(np.array(text["valid"]), args["eval_batch_size"], args["max_eval_steps"] * args["eval_tgt_len"])
    trainer = trained(
        model, order, np.array(text["train"]), args["batch_size"], args["tgt_len"], args["seed"],
        optimiser_of(args["optim"], args["lr"], args["mom"]), schedule_of(args), run, (valid, protocol), work,
    )  # fmt: skip
    lines = metrics(work)
    steps = [line for line in lines if line["event"] == "train"]
    calls = exact(config["model_call_loss"]).view(-1, args["batch_chunk"]).mean(1)
    within(of(steps, "nats"), calls, 1e-4, "the losses")
    within(of(steps, "rate") * args["lr"], exact(config["lr_used"]), 1e-12, "the rates")
    within(of(steps, "gradient_norm"), exact(config["grad_norm_before_clip"]), 0.0, "the norms", relative=1e-4)
    # we also validate after the last step
    valid = [line for line in lines if line["event"] == "valid" and line["step"] % args["eval_interval"] == 0]
    within(of(valid, "nats"), exact(config["valid_loss"]), 1e-4, "the validation losses")
    expected = from_transformer_xl.translate(load_file(folder / "weights_final.safetensors"), config["constructor"])
    check_weights(trainer, expected.weights, 1e-3 if args["optim"] == "adam" else 1e-5)


def find_text(folder: Path, dataset: str) -> Path:
    """The encoded text lies beside the runs."""
    found = [path for parent in folder.parents for path in (parent / "data").glob(f"txl_{dataset}.json")]
    assert found, f"no txl_{dataset}.json beside {folder}"
    return found[0]


def of(lines: list[dict], name: str) -> Tensor:
    return exact([line[name] for line in lines])


def exact(numbers: list) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def optimiser_of(name: str, rate: float, momentum: float, clip: float | None = None) -> Optimiser:
    return {"adam": Adam(rate), "sgd": SGD(rate, momentum), "adagrad": Adagrad(rate, clip)}[name]


def schedule_of(args: dict[str, Any]) -> Schedule:
    warmup, floor = args["warmup_step"], args["eta_min"] / args["lr"]
    if args["scheduler"] == "dev_perf":
        return schedules.TransformerXLPlateau(warmup, args["decay_rate"], args["patience"], args["lr_min"] / args["lr"])
    return {
        "cosine": schedules.TransformerXLCosine(warmup, floor),
        "constant": schedules.TransformerXLConstant(warmup),
        "inv_sqrt": schedules.TransformerXLInverseSquareRoot(warmup),
    }[args["scheduler"]]


def shortened(ids: np.ndarray, rows: int, targets: int) -> np.ndarray:
    """The text of which each row has so many targets, if any number is given."""
    if targets <= 0:
        return ids
    return ids[: len(ids) // rows * rows].reshape(rows, -1)[:, : targets + 1].flatten()


def check_weights(trainer: Recorder, expected: dict[str, Tensor], tolerance: float) -> None:
    for name, parameter in trainer.model.named_parameters():
        within(parameter.detach(), expected[name], tolerance, f"{name} in the end")


def check_adaptive_span(folder: Path, work: Path) -> None:
    config, weights, io = read_case(folder)
    model = build_adaptive_span(config, weights)
    steps, name, clip = config["steps"], config["optim"], config["grad_clip"] or None
    ids, rows = io["data"].flatten().numpy(), config["batch"]
    run = Run(
        steps=len(steps),
        carry=True,
        accumulation=config["batch_split"],
        clip=None if name == "adagrad" else clip,
        log_every=1,
        validate_every=len(steps),
    )
    protocol = protocols.AdaptiveSpanBlocks(config["block_size"], rows)
    trainer = trained(
        model, streams.AdaptiveSpanBlocks(), ids, rows, config["block_size"], config["python_random_seed"],
        optimiser_of(name, config["lr"], config["momentum"], clip),
        schedules.AdaptiveSpanWarmup(config["lr_warmup"]), run, (ids, protocol), work,
    )  # fmt: skip
    lines = [line for line in metrics(work) if line["event"] == "train"]
    within(of(lines, "nats"), of(steps, "loss"), 1e-5, "the losses")
    within(of(lines, "rate") * config["lr"], of(steps, "lr"), 1e-12, "the rates")
    for number, (ours, theirs) in enumerate(zip(trainer.records, steps, strict=True)):
        within(torch.tensor(ours["spans"]), torch.tensor(theirs["spans"]), 1e-4, f"spans after step {number}")
        assert ours["cache_len"] == theirs["cache_len"], f"caches after step {number}"
        if any(theirs["cache_abs_sum"]):  # the original empties them when it leaps back, ours when it goes on
            sums = torch.tensor([cache.abs().sum().item() for cache in ours["caches"]])
            within(sums, torch.tensor(theirs["cache_abs_sum"]), 1e-3, f"caches after step {number}", relative=1e-5)
    score = evaluate(model, ids, protocol, None, 1)
    assert abs(score.nats_per_token - config["full_eval_loss"]) < 1e-5
    check_validation(model, protocol, io["data"].numpy(), config)
    final = {name.removeprefix("final."): value for name, value in io.items() if name.startswith("final.")}
    check_active_weights(trainer, from_adaptive_span.rename({**weights, **final}), config)


def check_validation(model: LanguageNetwork, protocol: Protocol, rows: np.ndarray, config: dict[str, Any]) -> None:
    """The original's validation between iterations: a tenth of their updates, unless it leaps back meanwhile."""
    name = next(name for name in config if re.fullmatch(r"val_iter_nbatches\d+_loss", name))
    targets = max(1, int(re.sub(r"\D", "", name)) // 10) * config["block_size"]
    if targets < rows.shape[1] - config["block_size"]:
        score = evaluate(model, rows[:, : targets + 1].flatten(), protocol, None, 1)
        assert abs(score.nats_per_token - config[name]) < 1e-5, name
        assert targets == config["val_iter_pos_after"], name


def check_active_weights(trainer: Recorder, expected: dict[str, Tensor], config: dict[str, Any]) -> None:
    """All but the vectors of distances that no mask ever reached: rounding alone moves those, differently each time."""
    params, limit = config["adapt_span_params"], config["attn_span"]
    ratios = [params["adapt_span_init"], *(r for step in config["steps"] for layer in step["spans"] for r in layer)]
    active = min(limit, int(max(ratios) * limit) + params["adapt_span_ramp"])
    for name, parameter in trainer.model.named_parameters():
        rows = slice(active if name.endswith("vectors.table") else None)
        within(parameter.detach()[rows], expected[name][rows], 1e-4, f"{name} in the end")
