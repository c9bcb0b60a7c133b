"""Cases of models: weights go in through the importer, numbers come out of the public model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from carried_states import as_carried
from closeness import close
from safetensors.torch import load_file
from torch import Tensor

from palimpsest.batch import Batch
from palimpsest.legacy import from_adaptive_span, from_transformer_xl, pickles
from palimpsest.legacy.adaptive_span import AdaptivePastAttention
from palimpsest.mixers.delta_mlp import DeltaMLPMixer
from palimpsest.mixers.softmax_attention import HiddenState
from palimpsest.models.language_model import LanguageNetwork
from palimpsest.state import detach

LENGTHS = ("tgt_len", "ext_len", "mem_len")


def read_case(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "weights.safetensors"), load_file(folder / "io.safetensors")


def within(actual: Tensor, expected: Tensor, absolute: float | Tensor, what: str, relative: float = 0.0) -> None:
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    excess = ((actual - expected).abs() - absolute - relative * expected.abs()).max() if expected.numel() else -1
    assert excess <= 0, f"{what}: off by {(actual - expected).abs().max():.1e}"


# --------------------------------------------------------------------------- Transformer-XL and lmtool-fwms


def build_transformer_xl(settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LanguageNetwork:
    return from_transformer_xl.translate(weights, settings).build().eval()


def changed(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What the model was made with, and what the case changed afterwards in its changed form."""
    later = dict(config.get("eval_reset") or {})
    settings = {"max_klen": sum(settings[name] for name in LENGTHS), **settings}
    if lengths := later.pop("reset_length", None):
        later |= zip(LENGTHS, lengths, strict=True)
    return {**settings, **later}


def check_transformer_xl(folder: Path) -> None:
    config, weights, _ = read_case(folder)
    settings = changed(config["constructor"], config)
    check_segments(folder, settings, build_transformer_xl(settings, weights))


def check_pickled(path: Path, folder: Path) -> None:
    """A whole module tells its own settings."""
    checkpoint, (config, _, _) = pickles.read(path), read_case(folder)
    settings = changed(from_transformer_xl.told_by_module(checkpoint.attributes), config)
    check_segments(folder, settings, build_transformer_xl(settings, checkpoint.weights))


def check_segments(folder: Path, settings: Mapping[str, Any], model: LanguageNetwork) -> None:
    config, weights, io = read_case(folder)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found + idle_numbers(model, weights) == config["n_params"]
    state = before = None
    total, last = torch.zeros(()), torch.empty(config["bsz"], 0, model.spec.width)
    for segment, length in enumerate(config["seg_lens"]):
        data, target = (io[f"seg{segment}.{name}"].T.long() for name in ("data", "target"))
        again = data.shape[1] - length  # tokens that are read once more, and not scored
        targets = torch.cat([torch.zeros_like(data[:, :again]), target], dim=1)
        nats, state = model(Batch(data, targets), state)
        total = total + nats[:, again:].sum()
        within(nats[:, again:].T, io[f"seg{segment}.loss"], 2e-5, f"the loss of segment {segment}")
        hidden, after = model.read(data, before)
        within(hidden.transpose(0, 1), io[f"seg{segment}.hidden"], 2e-5, f"the hidden states of segment {segment}")
        check_other_forms(model, nats[:, again:], hidden[:, again:], io, segment, settings.get("cutoffs", []))
        if all(isinstance(block, HiddenState) for block in after.blocks):
            check_memories(after, io, segment)
            last = check_last_memory(last, hidden.detach(), io, segment, settings)
            state = before = detach(state)
        elif config["carry_over_fast_weight"]:
            check_carried(after, io, segment)
            state = before = detach(state)
        else:
            state = before = None
    total.backward()
    expected = from_transformer_xl.translate(gradients_of(io, weights), settings).weights
    check_gradients(model, expected, config.get("params_without_grad", []))


def gradients_of(io: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the weights; tied ones have one, and others none."""
    return {name: io.get(f"grad.{name}", torch.full_like(weight, torch.nan)) for name, weight in weights.items()}


def check_other_forms(
    model: LanguageNetwork, nats: Tensor, hidden: Tensor, io: Mapping[str, Tensor], segment: int, cutoffs: list[int]
) -> None:
    """The same losses cluster by cluster, and what they are taken from: each where the case has it."""
    if (grouped := io.get(f"seg{segment}.loss_grouped")) is not None:
        found = by_cluster(nats.T, io[f"seg{segment}.target"], cutoffs)
        within(found, grouped.flatten(), 2e-5, f"the losses of segment {segment} by cluster")
    if (logits := io.get(f"seg{segment}.logits")) is not None:
        found = model.head.log_probabilities(hidden.transpose(0, 1).flatten(0, 1))
        within(found, logits.flatten(0, 1).log_softmax(-1), 2e-5, f"the scores of segment {segment}")


def by_cluster(losses: Tensor, targets: Tensor, cutoffs: list[int]) -> Tensor:
    """In the order in which the originals' adaptive softmax returns them."""
    clusters = torch.bucketize(targets.flatten(), torch.tensor(cutoffs), right=True)
    return losses.flatten()[clusters.argsort(stable=True)]


def check_memories(state: Any, io: Mapping[str, Tensor], segment: int) -> None:
    for layer, block in enumerate(state.blocks):
        slots = block.hidden.shape[1]
        if slots or f"seg{segment}.new_mems.{layer}" in io:
            memory = block.hidden[:, max(0, slots - int(block.seen.min())) :]
            check_memory(memory, io, segment, layer)


def check_carried(state: Any, io: Mapping[str, Tensor], segment: int) -> None:
    """Fast weights and whatever else is handed on, layer by layer."""
    for layer, block in enumerate(state.blocks):
        for number, ours in enumerate(as_carried(block)):
            name = f"seg{segment}.new_mems.{layer}.{number}"
            theirs = io.get(name, io.get(f"seg{segment}.new_mems.{layer}"))
            assert (ours is None) == (theirs is None), name
            if ours is not None:
                within(ours, theirs, 1e-4, name, relative=1e-5)


def idle_numbers(model: LanguageNetwork, weights: Mapping[str, Tensor]) -> int:
    """Of the original's Delta MLP: it projects twice as many keys and values as it uses, and we do not."""
    mixers = [block.mixer for block in model.stack()]
    theirs = sum(weight.numel() for name, weight in weights.items() if name.endswith("dec_attn.qkv_net.weight"))
    ours = sum(mixer.project.weight.numel() for mixer in mixers if isinstance(mixer, DeltaMLPMixer))
    return theirs - ours if ours else 0


def check_memory(memory: Tensor, io: Mapping[str, Tensor], segment: int, layer: int) -> None:
    expected = io[f"seg{segment}.new_mems.{layer}"].transpose(0, 1)
    within(memory, expected, 1e-4, f"memory {layer} after segment {segment}", relative=1e-5)


def check_last_memory(
    memory: Tensor, hidden: Tensor, io: Mapping[str, Tensor], segment: int, settings: Mapping[str, Any]
) -> Tensor:
    """The originals keep what leaves the last layer too, though nothing reads it; we do not."""
    both = torch.cat([memory, hidden], 1)[:, : hidden.shape[1] + max(0, memory.shape[1] - settings["ext_len"])]
    kept = both[:, max(0, both.shape[1] - settings["mem_len"]) :]
    names = [name for name in io if name.startswith(f"seg{segment}.new_mems.")]
    if names:
        check_memory(kept, io, segment, len(names) - 1)
    return kept


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
        within(nats.mean(), io[f"seg{segment}.loss"].reshape(()), tolerance, f"mean loss of {what}")
        total = nats.mean() + penalty
        within(total, io[f"seg{segment}.total_loss"].reshape(()), tolerance, f"total loss of {what}")
        check_lengths(model, state, after, config["per_segment"][segment], what)
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


def check_lengths(model: LanguageNetwork, before: Any, after: Any, expected: Mapping[str, Any], what: str) -> None:
    assert [block.hidden.shape[1] for block in before.blocks] == expected["cache_in_len"], f"caches before {what}"
    assert [block.hidden.shape[1] for block in after.blocks] == expected["cache_out_len"], f"caches after {what}"
    mixers = [block.mixer for block in model.stack()]
    if "current_val" in expected:
        ratios = torch.stack([mixer.ratio for mixer in mixers])
        within(ratios, torch.tensor(expected["current_val"], dtype=ratios.dtype), 1e-7, f"spans of {what}")
        found = [(mixer.window(), mixer.slots(), max(mixer.gauges()["span"])) for mixer in mixers]
        windows = [mixers[0].spec.limit - trimmed for trimmed in expected["trim_len"]]
        assert found == list(zip(windows, expected["cache_size"], expected["max_span"], strict=True)), what


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
