"""Cases of models: weights go in through the importer, numbers come out of the public model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from closeness import close
from safetensors.torch import load_file
from torch import Tensor

from palimpsest.batch import Batch
from palimpsest.legacy import from_adaptive_span, from_transformer_xl, pickles
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.models.language_model import LanguageNetwork
from palimpsest.state import detach


def read_case(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "weights.safetensors"), load_file(folder / "io.safetensors")


def within(actual: Tensor, expected: Tensor, absolute: float, what: str, relative: float = 0.0) -> None:
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    excess = ((actual - expected).abs() - absolute - relative * expected.abs()).max() if expected.numel() else -1
    assert excess <= 0, f"{what}: off by {(actual - expected).abs().max():.1e}"


# --------------------------------------------------------------------------- Transformer-XL and lmtool-fwms


def build_transformer_xl(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LanguageNetwork:
    return from_transformer_xl.translate(weights, settings).build().eval()


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the model was made with; the settings that were changed afterwards in their changed form."""
    changed = config.get("eval_reset") or {}
    settings = {**config["constructor"], **{name: value for name, value in changed.items() if name != "reset_length"}}
    if changed.get("reset_length"):
        made = config["constructor"]
        settings["max_klen"] = made["tgt_len"] + made["ext_len"] + made["mem_len"]
        settings["tgt_len"], settings["ext_len"], settings["mem_len"] = changed["reset_length"]
    return settings


def check_transformer_xl(folder: Path) -> None:
    config, weights, _ = read_case(folder)
    settings = settings_of(config)
    check_segments(folder, settings, build_transformer_xl(settings, weights))


def check_pickled(path: Path, folder: Path) -> None:
    """A whole module tells its own settings."""
    checkpoint = pickles.read(path)
    settings = from_transformer_xl.told_by_module(checkpoint.attributes)
    check_segments(folder, settings, build_transformer_xl(settings, checkpoint.weights))


def check_segments(folder: Path, settings: Mapping[str, Any], model: LanguageNetwork) -> None:
    config, weights, io = read_case(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == config["n_params"]
    state = before = None
    total = torch.zeros(())
    for segment in range(len(config["seg_lens"])):
        data, target = (io[f"seg{segment}.{name}"].T.long() for name in ("data", "target"))
        again = data.shape[1] - target.shape[1]  # tokens that are read once more, and not scored
        targets = torch.cat([torch.zeros_like(data[:, :again]), target], dim=1)
        nats, state = model(Batch(data, targets), state)
        total = total + nats[:, again:].sum()
        within(nats[:, again:].T, io[f"seg{segment}.loss"], 2e-5, f"the loss of segment {segment}")
        hidden, after = model.read(data, before)
        within(hidden.transpose(0, 1), io[f"seg{segment}.hidden"], 2e-5, f"the hidden states of segment {segment}")
        check_memories(after, io, segment)
        state = before = detach(state)
    total.backward()
    expected = from_transformer_xl.translate(gradients_of(io, weights), settings).weights
    check_gradients(model, expected, config.get("params_without_grad", []))


def gradients_of(io: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the weights; tied ones have one, and others none."""
    return {name: io.get(f"grad.{name}", torch.full_like(weight, torch.nan)) for name, weight in weights.items()}


def check_memories(state: Any, io: Mapping[str, Tensor], segment: int) -> None:
    for layer, block in enumerate(state.blocks):
        if (expected := io.get(f"seg{segment}.new_mems.{layer}")) is None:
            continue
        expected = expected.transpose(0, 1)
        memory = block.hidden[:, block.hidden.shape[1] - expected.shape[1] :] if expected.ndim == 3 else expected
        within(memory, expected, 1e-4, f"memory {layer} after segment {segment}", relative=1e-5)


def check_gradients(model: LanguageNetwork, expected: Mapping[str, Tensor], without: list[str], tolerance=1e-4) -> None:
    for name, parameter in model.named_parameters():
        if expected[name].isnan().all():
            assert parameter.grad is None or not parameter.grad.any() or without, name
            continue
        assert parameter.grad is not None, name
        close(parameter.grad, expected[name], tolerance, name)


# ------------------------------------------------------------------------------------------ adaptive-span


def build_adaptive_span(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LanguageNetwork:
    return from_adaptive_span.translate(weights, config).build().eval()


def check_adaptive_span(folder: Path) -> None:
    config, weights, io = read_case(folder)
    adaptive_io = config["adapt_io_params"]["adapt_io_enabled"]
    check_adaptive_segments(config, weights, io, "", 2e-5 if adaptive_io else 5e-6, 2e-5 if adaptive_io else 1e-5)
    doubled = {name: weight.double() if weight.is_floating_point() else weight for name, weight in weights.items()}
    double_io = {name.removeprefix("f64."): value for name, value in io.items() if name.startswith("f64.")}
    same_inputs = {name: value.double() if value.is_floating_point() else value for name, value in io.items()}
    # the original computes adaptive inputs and outputs in float32 whatever it is told
    tolerance = 5e-6 if adaptive_io else 1e-10
    caches = [name for name in same_inputs if ".cache." in name]
    double_io = {name: value for name, value in same_inputs.items() if name not in caches} | double_io
    check_adaptive_segments(config, doubled, double_io, "f64 ", tolerance, tolerance)


def check_adaptive_segments(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    io: Mapping[str, Tensor],
    kind: str,
    tolerance: float,
    gradient_tolerance: float,
) -> None:
    model = build_adaptive_span(config, weights)
    assert sum(parameter.numel() for parameter in model.parameters()) == config["n_params"]
    state = model.initial_state(config["batch"])
    state = state._replace(
        blocks=tuple(block._replace(hidden=io[f"cache0.l{i}"]) for i, block in enumerate(state.blocks))
    )
    for segment in range(config["segments"]):
        x, y = (io[f"seg{segment}.{name}"].long() for name in "xy")
        model.zero_grad()
        nats, after = model(Batch(x, y), state)
        out = io[f"seg{segment}.out"]
        expected = out if out.ndim == 2 else -out.gather(-1, y[..., None]).squeeze(-1)
        what = f"{kind}segment {segment}"
        within(nats, expected, tolerance, f"the loss of {what}")
        if out.ndim == 3:
            hidden, _ = model.read(x, state)
            within(model.head.log_probabilities(hidden.flatten(0, 1)).view_as(out), out, tolerance, f"out of {what}")
        penalties = [module.penalty() for module in model.modules() if hasattr(module, "penalty")]
        penalty = sum(penalties, torch.zeros(()))
        within(penalty.reshape(()), io[f"seg{segment}.span_loss"].reshape(()), tolerance, f"span loss of {what}")
        total = nats.mean() + penalty
        within(total, io[f"seg{segment}.total_loss"].reshape(()), tolerance, f"total loss of {what}")
        for layer, block in enumerate(after.blocks):
            if (cache := io.get(f"seg{segment}.cache.l{layer}")) is not None:
                within(block.hidden, cache, tolerance, f"cache {layer} after {what}")
        state = detach(after)
    total.backward()
    gradients = {
        name: io.get(f"seg{segment}.grad.{name}", torch.full_like(weight, torch.nan))
        for name, weight in weights.items()
    }
    renamed = from_adaptive_span.rename(gradients)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        within(parameter.grad, renamed[name], gradient_tolerance, f"{kind}gradient of {name}")


def check_spans(path: Path) -> None:
    """How far a layer looks and how much it keeps, for many spans."""
    for row in json.loads(path.read_text()):
        spec = AdaptivePastAttention(row["L"], heads=len(row["vals"]), ramp=row["ramp"])
        mixer = spec.build(len(row["vals"]))
        with torch.no_grad():
            mixer.ratio.copy_(torch.tensor(row["vals"]))
        assert mixer.window() == row["L"] - row["trim_len"], row
        assert mixer.slots() == row["cache_size"], row
        assert max(mixer.gauges()["span"]) == row["max_span"], row
