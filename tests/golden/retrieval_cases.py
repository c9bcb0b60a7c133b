"""The synthetic experiments of fast-weight-transformers: draws, models and training, against ours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closeness import close
from model_cases import within
from safetensors.torch import load_file
from torch import Tensor

from palimpsest.data.retrieval import Questions, RetrievalTask
from palimpsest.evaluation.retrieval import squared_errors
from palimpsest.experiment.retrieval import Outcome, Run, Shelf
from palimpsest.legacy.retrieval import (
    CommandLine,
    OriginalCapacity,
    OriginalNetwork,
    OriginalOverwriting,
    OriginalSource,
)


def task_of(config: dict[str, Any]) -> RetrievalTask:
    keys, length = config["n_keys"], config["seq_len"]
    task = OriginalOverwriting(keys, length / keys) if config["replace"] else OriginalCapacity(keys)
    assert task.length == length
    return task


def line_of(config: dict[str, Any]) -> CommandLine:
    return CommandLine(
        config["attn_name"],
        config["attn_arg"],
        config["update_rule"],
        config["replace"],
        begin=config["n_keys"],
        end=config["n_keys"],
        width=config["hidden_size"],
        batch=config.get("batch_size", 32),
    )


# ------------------------------------------------------------------------------------------------------- draws


def check_draws(folder: Path) -> None:
    """Every number of every call, in the order of the calls."""
    tensors = load_file(folder / "io.safetensors")
    for case in json.loads((folder / "config.json").read_text())["cases"]:
        source = OriginalSource(task_of(case), case["batch_size"], case["np_seed"])
        mine = {name: value for name, value in tensors.items() if name.startswith(case["tag"] + ".")}
        batches = 0
        for call in case["calls"]:
            if call == "get_all_queries":
                check_all(source.draw_all(), mine, f"{case['tag']}.all", case["n_keys"])
                continue
            size = call.removeprefix("get_batch(").removesuffix(")")
            drawn = source.draw(case["batch_size"] if size == "bs" else int(size))
            check_batch(drawn, mine, f"{case['tag']}.batch{batches}", case["n_keys"])
            batches += 1


def as_theirs(drawn: Questions, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, q and y: values come after the keys."""
    shown = np.stack([drawn.keys, drawn.values + keys], axis=1)
    return tuple(torch.from_numpy(field.astype(np.int64)) for field in (shown, drawn.queries, drawn.targets + keys))


def check_batch(drawn: Questions, expected: dict[str, Tensor], name: str, keys: int) -> None:
    for field, mine in zip("xqy", as_theirs(drawn, keys), strict=True):
        close(mine, expected[f"{name}.{field}"], 0, f"{name}.{field}")


def check_all(drawn: Questions, expected: dict[str, Tensor], name: str, keys: int) -> None:
    shown, queries, targets = as_theirs(drawn, keys)
    if f"{name}.x" in expected:
        close(shown.expand(queries.shape[1], -1, -1), expected[f"{name}.x"], 0, f"{name}.x")
    else:
        close(shown[0], expected[f"{name}.x_row0"], 0, f"{name}.x_row0")
        assert queries.shape[1] == expected[f"{name}.n"].item()
    close(queries.T, expected[f"{name}.q"], 0, f"{name}.q")
    close(targets.T, expected[f"{name}.y"], 0, f"{name}.y")


# ------------------------------------------------------------------------------------------------------ models


def check_model(folder: Path) -> None:
    """Reads, loss and every gradient: float32 as the original ran, and float64."""
    config = json.loads((folder / "config.json").read_text())
    weights, io = (load_file(folder / f"{name}.safetensors") for name in ("weights", "io"))
    network = build(config, weights)
    check_pass(network, config, io, "", 5e-6, 1e-5)
    reads = answer(network, config, io, "eval.")
    within(reads, io["eval.y_hat"], 5e-6, "the reads at evaluation")
    double = {name: value.double() if value.is_floating_point() else value for name, value in io.items()}
    check_pass(build(config, weights).double(), config, double, "f64.", 1e-10, 1e-10)


def build(config: dict[str, Any], weights: dict[str, Tensor]) -> OriginalNetwork:
    asked = next(line_of(config).original())
    network = asked.model.build(config["n_keys"], config["n_values"])
    network.load_original(weights)
    return network


def answer(network: OriginalNetwork, config: dict[str, Any], io: dict[str, Tensor], call: str = "") -> Tensor:
    keys, values = io[f"{call}x"].unbind(1)
    return network(keys, values - config["n_keys"], io[f"{call}q"], io.get("Omega")).squeeze(1)


def check_pass(network, config, io, kind: str, reads_within: float, gradients_within: float) -> None:
    network.zero_grad()
    reads = answer(network, config, io)
    within(reads, io[f"{kind}y_hat"], reads_within, f"{kind}y_hat")
    loss = squared_errors(reads[:, None], io["y"] - config["n_keys"]).mean()
    within(loss, io[f"{kind}loss"], reads_within, f"{kind}loss")
    loss.backward()
    expected = io[f"{kind}grad.embeddingK.weight"][: config["n_keys"]]
    within(network.embedding.grad, expected, gradients_within, "embeddingK")
    layers = {"W_k": network.key, "W_q": network.query, "W_b": network.beta}
    for name, layer in layers.items():
        for which in ("weight", "bias"):
            parameter = f"{name}.{which}"
            if layer is None:
                assert f"{kind}grad.{parameter}" not in io
            else:
                within(getattr(layer, which).grad, io[f"{kind}grad.{parameter}"], gradients_within, parameter)
    learned = {f"{name}.{which}" for name, layer in layers.items() if layer for which in ("weight", "bias")}
    assert not learned & set(config["params_without_grad"])


# ---------------------------------------------------------------------------------------------------- training


def check_training(folder: Path) -> None:
    """From the seed alone: the first numbers, the first batch, the loss of every step and the last weights."""
    config, io = json.loads((folder / "config.json").read_text()), load_file(folder / "io.safetensors")
    (asked,) = line_of(config).original()
    assert (asked.rate, asked.batch, asked.seed) == (config["lr"], config["batch_size"], config["seed"])
    device = torch.device("cpu")
    shelf = Shelf(device)
    run = Run(Outcome(asked), shelf, device)
    check_start(run.network, config)
    in_float64(run)
    period = asked.open().period(asked.every, asked.sequences)
    for field, mine in zip(
        "xqy", as_theirs(Questions(*(f[0, :4] for f in period.batches)), asked.task.keys), strict=True
    ):
        close(mine, io[f"step1.{field}_first4"], 0, f"the first batch, {field}")
    shelf.fill(period)
    run.begin()
    for _ in range(config["steps"]):
        run.step()
    check_losses(run.losses[: config["steps"]].tolist(), config["train_losses"])
    if config.get("eval_loss_at_100") is not None and config["steps"] == asked.every:
        found = run.evaluate()[0].item()
        assert abs(found / config["eval_loss_at_100"] - 1) <= 1e-3, f"evaluation: {found}"
    for name, layer in {"W_k": run.network.key, "W_q": run.network.query}.items():
        close(layer.weight.detach(), io[f"final.{name}.weight"], 1e-3, f"{name} after the last step")


def in_float64(run: Run) -> None:
    """From the same first numbers, so that a rounding of ours does not tip a scale that theirs left as it was."""
    run.network.double()
    run.losses = run.losses.double()
    run.optimiser = torch.optim.Adam(run.parameters, run.asked.rate)


def check_start(network: OriginalNetwork, config: dict[str, Any]) -> None:
    layers = {"W_k": network.key, "W_q": network.query} | ({"W_b": network.beta} if network.beta else {})
    for name, layer in layers.items():
        for which in ("weight", "bias"):
            value, (total, size) = getattr(layer, which).double(), config["init_sum_abssum"][f"{name}.{which}"]
            assert abs(value.sum().item() - total) <= 1e-6 * size, f"{name}.{which} does not start as the original's"
            assert abs(value.abs().sum().item() - size) <= 1e-6 * size, f"{name}.{which}"
    first = config["init_first3"]["embeddingK.weight"]
    close(network.embedding.detach().flatten()[:3], torch.tensor(first), 1e-6, "the embedding")


def check_losses(found: list[float], expected: list[float]) -> None:
    """Within 1e-5 for ten steps, then within 1e-3: rounding errors grow."""
    assert len(found) == len(expected)
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True), start=1):
        tolerance = 1e-5 if step <= 10 else 1e-3
        assert abs(mine / theirs - 1) <= tolerance, f"step {step}: {mine}, expected {theirs}"
