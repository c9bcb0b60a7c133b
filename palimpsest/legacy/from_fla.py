"""DeltaNet and Gated DeltaNet of flash-linear-attention: folders with their settings and weights in our words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import UserError, unknown
from ..memory.convolutions import ShortConvolution
from ..memory.feature_maps import EluPlusOne, FeatureMap, Identity, Silu
from ..memory.key_scales import KeyScale, SumToOne, UnitNorm
from ..memory.read_outs import GatedNorm, UngatedNorm
from ..memory.update_rules import Delta, GatedDelta, UpdateRule
from ..mixers.fast_weight import FastWeight
from ..models.block import PreNorm
from ..models.feed_forward import GatedSilu
from ..models.heads import SoftmaxHead
from ..models.language_model import LanguageModel
from ..models.norms import RMSNorm
from .pickles import Checkpoint
from .settings import NUMBER, SIZE, SIZE_OR_NONE, Imported, Settings, Weights, translating

ORIGINAL = "flash-linear-attention"
# those that the oldest folders do not tell, by the original's names
COMMON = {
    "use_short_conv": True, "conv_size": 4, "allow_neg_eigval": False, "norm_eps": 1e-6, "hidden_act": "swish",
    "output_gate_activation": "swish", "attn": None, "attnres_block_size": None, "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}  # fmt: skip
DEFAULTS = {
    "delta_net": {
        **COMMON, "use_gate": False, "expand_k": 1.0, "expand_v": 1.0, "use_beta": True, "qk_norm": "l2",
        "qk_activation": "silu",
    },
    "gated_deltanet": {**COMMON, "use_gate": True, "expand_v": 2.0, "num_v_heads": None},
}  # fmt: skip
BOUNDS = {
    **dict.fromkeys(("hidden_size", "num_heads", "num_hidden_layers", "vocab_size", "head_dim", "conv_size"), SIZE),
    **dict.fromkeys(("expand_k", "expand_v", "norm_eps"), NUMBER),
    "max_position_embeddings": SIZE, "num_v_heads": SIZE_OR_NONE,
}  # fmt: skip
MAPS: dict[str, FeatureMap] = {"silu": Silu(), "elu": EluPlusOne(), "identity": Identity()}
SCALES: dict[str, KeyScale] = {"l2": UnitNorm(1e-6), "sum": SumToOne()}
SAYABLE = {
    "attn": (None,),
    "attnres_block_size": (None,),
    "hidden_act": ("swish",),
    "output_gate_activation": ("swish", "silu"),
    "use_beta": (True,),
    "qk_activation": tuple(MAPS),
    "qk_norm": tuple(SCALES),
}


# -------------------------------------------------------------------------------------------- the folder


def from_folder(folder: Path) -> Imported:
    """The model that the original saved in this folder: `from_folder(folder).build()`."""
    found = read(folder)
    return translate(found.weights, found.attributes)


@translating(ORIGINAL)
def read(folder: Path) -> Checkpoint:
    """config.json, and the weights in one file or in several with an index."""
    settings = read_json(folder, "config.json")
    if (folder / "model.safetensors.index.json").exists():
        index = read_json(folder, "model.safetensors.index.json")
        names = sorted({Path(name).name for name in index["weight_map"].values()})
    else:
        names = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for name in names:
        try:
            weights |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{folder / name} cannot be read as safetensors: {error}") from error
    return Checkpoint(weights, settings, "state dict")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f"{folder} has no {name} that can be read: give a folder that {ORIGINAL} saved, with config.json and "
            "model.safetensors in it"
        )
    return found


# ------------------------------------------------------------------------------------------ the sentence


@translating(ORIGINAL)
def translate(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Imported:
    """The model that has these weights, as the original names them, under these settings, as it calls them."""
    kind = given.get("model_type", "unnamed")
    if kind not in DEFAULTS:
        raise unknown(f"model of {ORIGINAL}", str(kind), list(DEFAULTS))
    settings = Settings({**DEFAULTS[kind], **given}, ORIGINAL)
    settings.check(BOUNDS)
    refuse_unsayable(settings)
    ours = rename(Weights(weights, ORIGINAL))
    epsilon, tied = settings["norm_eps"], bool(settings["tie_word_embeddings"])
    if tied:  # of an untied model that lacks its head, the embedding is no head
        ours.setdefault("head.project.weight", ours["embedding.table.weight"])
    feed_forward = GatedSilu(ours["blocks.0.feed_forward.down.weight"].shape[1])
    model = LanguageModel(
        width=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        block=PreNorm(mixer=MIXERS[kind](settings), feed_forward=feed_forward, norm=RMSNorm(epsilon)),
        head=SoftmaxHead(tied=tied),
    )
    return Imported(model, settings["vocab_size"], settings["max_position_embeddings"], settings, ours)


def refuse_unsayable(settings: Settings) -> None:
    """Refuse what we have no words for."""
    for name, known in SAYABLE.items():
        if name in settings and settings[name] not in known:
            allowed = " or ".join(f"{name}={value}" for value in known)
            raise UserError(f"a {ORIGINAL} model with {name}={settings[name]} cannot be imported, only with {allowed}")
    if settings.get("qk_norm") == "sum" and not MAPS[settings["qk_activation"]].non_negative:
        raise UserError(
            f"a {ORIGINAL} model with qk_norm=sum and qk_activation={settings['qk_activation']} cannot be imported: "
            "it divides by a sum that may be zero"
        )


def delta_net(settings: Settings) -> FastWeight:
    heads, width = settings["num_heads"], settings["hidden_size"]
    keys, values = (int(width * settings[ratio]) // heads for ratio in ("expand_k", "expand_v"))
    return memory(
        settings,
        feature_map=MAPS[settings["qk_activation"]],
        key_scale=SCALES[settings["qk_norm"]],
        update_rule=Delta(beta=None, limit=limit(settings)),
        heads=heads,
        head_width=keys,
        value_width=values,
    )


def gated_delta_net(settings: Settings) -> FastWeight:
    keys, width = settings["num_heads"], settings["head_dim"]
    return memory(
        settings,
        feature_map=Silu(),
        key_scale=SCALES["l2"],
        update_rule=GatedDelta(beta=limit(settings) / 2, limit=limit(settings)),
        heads=settings["num_v_heads"] or keys,
        key_heads=keys,
        head_width=width,
        value_width=int(width * settings["expand_v"]),
    )


MIXERS = {"delta_net": delta_net, "gated_deltanet": gated_delta_net}


def memory(
    settings: Settings, *, update_rule: UpdateRule, heads: int, head_width: int, value_width: int, **parts: Any
) -> FastWeight:
    """What both have in common: short convolutions, the SiLU of values, reads scaled and normed for each head."""
    read_out = GatedNorm if settings["use_gate"] else UngatedNorm
    return FastWeight(
        update_rule=update_rule,
        read_out=read_out(scale=head_width**-0.5, epsilon=settings["norm_eps"]),
        heads=heads,
        convolution=ShortConvolution(settings["conv_size"]) if settings["use_short_conv"] else None,
        value_map=Silu(),
        head_width=head_width,
        value_width=value_width,
        **parts,
    )


def limit(settings: Settings) -> float:
    return 2.0 if settings["allow_neg_eigval"] else 1.0


# ------------------------------------------------------------------------------------------- the weights

BESIDE_LAYERS = {
    "model.embeddings.weight": "embedding.table.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.project.weight",
}
NAMES = {
    "attn_norm.weight": "mixer.norm.weight",
    "attn.b_proj.weight": "mixer.update_rule.beta.weight",
    "attn.a_proj.weight": "mixer.update_rule.forget.weight",
    "attn.dt_bias": "mixer.update_rule.forget.bias",
    "attn.A_log": "mixer.update_rule.log_rate",
    "attn.o_norm.weight": "mixer.read_out.norm.weight",
    "attn.g_proj.weight": "mixer.read_out.gate.weight",
    "attn.o_proj.weight": "mixer.out.weight",
    "mlp_norm.weight": "norm.weight",
    "mlp.down_proj.weight": "feed_forward.down.weight",
}
JOINED = {
    "mixer.project.weight": ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"),
    "mixer.convolution.taps": ("attn.q_conv1d.weight", "attn.k_conv1d.weight", "attn.v_conv1d.weight"),
    "feed_forward.up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),  # until 2025 the first held both
}
UNUSED = {"attn.D"}  # saved by the first Gated DeltaNets, and never read


def rename(weights: Weights) -> dict[str, Tensor]:
    """By our names, and no smaller than float32: half precision saves room on disk, and adds errors here."""
    if "model.layers.0.attn.q_proj.weight" not in weights or "model.layers.0.mlp.down_proj.weight" not in weights:
        raise UserError(f"these weights are not a language model of {ORIGINAL}: there is no model.layers.0.attn.q_proj")
    ours = {"embedding.table.weight": weights["model.embeddings.weight"]}
    layers: set[int] = set()
    for name, weight in weights.items():
        if name in BESIDE_LAYERS:
            ours[BESIDE_LAYERS[name]] = weight
        elif name.startswith("model.layers."):
            layers.add(int(name.split(".")[2]))
        else:
            raise unsaid(name)
    for number in sorted(layers):
        layer = rename_layer(number, weights.within(f"model.layers.{number}."))
        ours |= {f"blocks.{number}.{name}": weight for name, weight in layer.items()}
    half = (torch.float16, torch.bfloat16)
    return {name: weight.float() if weight.dtype in half else weight for name, weight in ours.items()}


def rename_layer(number: int, layer: Weights) -> dict[str, Tensor]:
    parts = {part for joined in JOINED.values() for part in joined}
    for name in layer.keys() - NAMES.keys() - parts - UNUSED:
        raise unsaid(f"model.layers.{number}.{name}")
    ours = {NAMES[name]: weight for name, weight in layer.items() if name in NAMES}
    for name, joined in JOINED.items():
        found = {part: layer[part].flatten(1) for part in joined if part in layer}
        if len({weight.shape[1] for weight in found.values()}) > 1:
            shapes = ", ".join(f"{layer.prefix}{part} {tuple(layer[part].shape)}" for part in found)
            raise UserError(f"these weights read as many numbers, and their shapes differ: {shapes}")
        if found:
            ours[name] = torch.cat([*found.values()])
    biased = {"feed_forward.up": "mlp.gate_proj.weight", "feed_forward.down": "mlp.down_proj.weight"}  # ours have
    if "mixer.update_rule.log_rate" in ours:
        biased["mixer.update_rule.beta"] = "attn.b_proj.weight"
    biases = {name: layer[theirs].new_zeros(len(ours[f"{name}.weight"])) for name, theirs in biased.items()}
    return ours | {f"{name}.bias": bias for name, bias in biases.items()}


def unsaid(name: str) -> UserError:
    return UserError(f"the weight {name} is part of no {ORIGINAL} model that can be imported: {', '.join(DEFAULTS)}")
