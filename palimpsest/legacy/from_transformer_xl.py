"""Models of Transformer-XL (its PyTorch half) and of lmtool-fwms: their settings and weights in our words."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, cat, equal

from ..attention.positions import LearnedRelative, NoPositions, SinusoidalRelative
from ..errors import UserError
from ..mixers.mixer import Mixer
from ..mixers.softmax_attention import SoftmaxAttention
from ..models.block import Block, PostNorm
from ..models.feed_forward import Relu
from ..models.language_model import LanguageModel
from ..models.norms import LayerNorm
from . import from_lmtool_memory as memory
from . import from_lmtool_recurrent as recurrent
from .initialisations import TransformerXLStart
from .settings import COUNT, LIST, NUMBER, SIZE, SIZE_OR_NONE, WHOLE, Imported, Settings, Weights, translating
from .transformer_xl import (
    AbsoluteAttention,
    CodesAtEveryLayer,
    CountdownLearned,
    CountdownSinusoidal,
    DroppedSinusoidalRelative,
    FirstLayerCodes,
    PreNormUnclosed,
    SparingAdaptiveEmbedding,
    SparingAdaptiveSoftmax,
    SwappedSegmentCache,
)

ORIGINAL = "Transformer-XL or lmtool-fwms"
# those of the originals' constructors, by their names
DEFAULTS = {
    **memory.DEFAULTS, **recurrent.DEFAULTS, "carry_over_fast_weight": False,
    "dropout": 0.0, "dropatt": 0.0, "pre_lnorm": False, "tgt_len": 70, "ext_len": 0, "mem_len": 0,
    "same_length": False, "clamp_len": -1, "no_pos": False,
}  # fmt: skip
BOUNDS = {
    **dict.fromkeys(("n_layer", "n_token", "n_head", "d_model", "d_head", "d_inner", "d_embed", "div_val"), SIZE),
    **dict.fromkeys(("tgt_len", "proj_dim", "n_roll", "fast_net_depth"), SIZE), "d_res": SIZE_OR_NONE,
    **dict.fromkeys(("mem_len", "ext_len"), COUNT), "clamp_len": WHOLE,
    **dict.fromkeys(("dropout", "dropatt"), NUMBER), **dict.fromkeys(("cutoffs", "tie_projs"), LIST),
}  # fmt: skip
# of attn_type; lmtool has many more, for fast weight memories and recurrent nets
KINDS = RELATIVE, LEARNED_RELATIVE, ABSOLUTE, LEARNED_ABSOLUTE = range(4)


@translating(ORIGINAL)
def translate(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Imported:
    """The model that has these weights, as the originals name them, under these settings, as they call them."""
    weights = Weights(weights, ORIGINAL)
    settings = Settings({**DEFAULTS, **told_by(weights), **given}, ORIGINAL)
    settings.check(BOUNDS)
    kind = settings["attn_type"]
    if kind not in (*KINDS, *memory.KINDS, *recurrent.KINDS):
        raise UserError(f"attn_type {kind} was never a model, or a broken one: there is nothing to import")
    memory.check_directions(weights, settings)
    model = LanguageModel(
        width=recurrent.width_of(settings),
        layers=settings["n_layer"],
        block=block_of(settings),
        embedding=embedding_of(settings),
        head=head_of(settings),
        initialisation=TransformerXLStart(),
    )
    return Imported(model, settings["n_token"], settings["tgt_len"], settings, rename(weights, settings))


@translating(ORIGINAL)
def told_by_module(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a whole module remembers, by the paths of its attributes."""
    names = {
        "pre_lnorm": "layers.0.dec_attn.pre_lnorm",
        "dropout": "drop.p",
        "dropatt": "layers.0.dec_attn.dropatt.p",
        "div_val": "crit.div_val",
        "cutoffs": "crit.cutoffs",
        **{name: name for name in ("attn_type", "n_head", "d_head", "tgt_len", "ext_len", "mem_len", "max_klen")},
        **{name: name for name in ("same_length", "clamp_len", "no_pos", "d_res")},
    }
    told = {name: attributes[path] for name, path in names.items() if path in attributes}
    if (normalised := attributes.get("layers.0.dec_attn.normalize_attn_scores")) is not None:
        told["skip_attn_normalization"] = not normalised
    if "cutoffs" in told:
        told["cutoffs"] = told["cutoffs"][:-1]  # the last is the size of the vocabulary
    return told


def told_by(weights: Weights) -> dict[str, Any]:
    """The settings that can be read off the shapes of the weights."""
    told: dict[str, Any] = {}
    layers = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
    first = weights.within("layers.0.")
    if not any(name.startswith("dec_attn.") for name in first):
        raise UserError("these weights are not a Transformer-XL or lmtool-fwms model: there is no layers.0.dec_attn")
    tables = numbered(weights, "word_emb.emb_layers.{}.weight")
    projections = numbered(weights, "word_emb.emb_projs.{}")
    out_projections = numbered(weights, "crit.out_projs.{}")
    told["d_embed"] = weights["word_emb.emb_layers.0.weight"].shape[1]
    told |= {"n_layer": len(layers), "n_token": sum(len(table) for table in tables)}
    told["d_model"] = told["d_embed"] if not projections else projections[0].shape[0]
    if (up := first.get("pos_ff.CoreNet.0.weight")) is not None:
        told["d_inner"] = len(up)
    if len(tables) > 1:
        sizes = [len(table) for table in tables]
        told["cutoffs"] = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
        told["div_val"] = tables[0].shape[1] // tables[1].shape[1]
    elif "crit.cluster_weight" not in weights:
        told |= {"cutoffs": [], "div_val": 1}
    else:
        told["div_val"] = 1
    told["tie_weight"] = same(tables[0], weights.get("crit.out_layers.0.weight"))
    theirs = projections if len(projections) > 1 else projections * len(out_projections)
    told["tie_projs"] = [same(*pair) for pair in zip(theirs, out_projections, strict=False)]
    if "dec_attn.r_net.weight" in first:
        told["attn_type"] = RELATIVE
    elif "r_bias" in weights:
        told["attn_type"] = LEARNED_RELATIVE
    elif "r_emb" in weights:
        told["attn_type"] = LEARNED_ABSOLUTE
    told |= memory.told_by_layer(first) | recurrent.told_by_layer(first)
    for name in ("r_w_bias", "r_emb"):
        if name in weights:
            told["n_head"], told["d_head"] = weights[name].shape[-2:]
    return told


def numbered(weights: Mapping[str, Tensor], pattern: str) -> list[Tensor]:
    found, number = [], 0
    while (name := pattern.format(number)) in weights:
        found.append(weights[name])
        number += 1
    return found


def same(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape and equal(one, other)


def block_of(settings: Settings) -> Block:
    for family in (memory, recurrent):
        if settings["attn_type"] in family.KINDS:
            return family.translate_block(settings)
    kind = PreNormUnclosed if settings["pre_lnorm"] else PostNorm
    block = kind(
        mixer=mixer_of(settings),
        feed_forward=Relu(settings["d_inner"], settings["dropout"]),
        norm=LayerNorm(),
        dropout=settings["dropout"],
    )
    if settings["attn_type"] == LEARNED_ABSOLUTE:
        return CodesAtEveryLayer(block)
    return FirstLayerCodes(block) if settings["attn_type"] == ABSOLUTE and not settings["no_pos"] else block


def mixer_of(settings: Settings) -> Mixer:
    kind, clamp = settings["attn_type"], clamp_of(settings)
    span = SwappedSegmentCache(settings["mem_len"], bool(settings["same_length"]), settings["ext_len"])
    common = {
        "span": span,
        "heads": settings["n_head"],
        "head_width": settings["d_head"],
        "dropout": settings["dropatt"],
    }
    reach = settings["tgt_len"] + settings["ext_len"] + settings["mem_len"]
    if kind == RELATIVE:
        positions = SinusoidalRelative(clamp)
        if settings["dropout"]:
            positions = DroppedSinusoidalRelative(clamp, dropout=settings["dropout"])
        return SoftmaxAttention(positions=positions, **common)
    if kind == LEARNED_RELATIVE:
        return SoftmaxAttention(positions=LearnedRelative(settings.get("max_klen", reach), clamp), **common)
    if kind == ABSOLUTE:
        return AbsoluteAttention(memory_codes=None if settings["no_pos"] else CountdownSinusoidal(clamp), **common)
    return AbsoluteAttention(memory_codes=CountdownLearned(settings.get("max_klen", reach)), **common)


def clamp_of(settings: Settings) -> int | None:
    return settings["clamp_len"] if settings["clamp_len"] > 0 else None


def embedding_of(settings: Settings) -> SparingAdaptiveEmbedding:
    absolute = settings["attn_type"] not in (RELATIVE, LEARNED_RELATIVE, LEARNED_ABSOLUTE) and not settings["no_pos"]
    return SparingAdaptiveEmbedding(
        cutoffs=tuple(settings["cutoffs"]),
        divisor=settings["div_val"],
        inner=settings["d_embed"],
        positions=CountdownSinusoidal(clamp_of(settings)) if absolute else NoPositions(),
        dropout=settings["dropout"],
    )


def head_of(settings: Settings) -> SparingAdaptiveSoftmax:
    clusters = range(len(settings["cutoffs"]) + 1)
    return SparingAdaptiveSoftmax(
        cutoffs=tuple(settings["cutoffs"]),
        divisor=settings["div_val"],
        inner=settings["d_embed"],
        tied=bool(settings["tie_weight"]),
        tied_projections=tuple(i for i, tied in zip(clusters, settings["tie_projs"], strict=False) if tied),
        dropout=settings["dropout"],
    )


def rename(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """By our names and in our order; whatever is there, so that gradients can be renamed too."""
    ours: dict[str, Tensor] = {}
    inside = "block." if settings["attn_type"] == LEARNED_ABSOLUTE else ""
    for layer in range(settings["n_layer"]):
        renamed = family_of(settings["attn_type"])(weights.within(f"layers.{layer}."), settings)
        ours |= {f"blocks.{layer}.{inside}{name}": weight for name, weight in renamed.items()}
    tables = {
        "word_emb.emb_layers": "embedding.tables",
        "word_emb.emb_projs": "embedding.projections",
        "crit.out_layers": "head.tables",
        "crit.out_projs": "head.projections",
    }
    for name, weight in weights.items():
        if name in ("crit.cluster_weight", "crit.cluster_bias"):  # the originals count clusters backwards
            ours[f"head.clusters.{name.rpartition('_')[2]}"] = weight.flip(0)
        elif (table := next((theirs for theirs in tables if name.startswith(theirs)), None)) is not None:
            end = "" if name.endswith((".weight", ".bias")) else ".weight"
            ours[tables[table] + name.removeprefix(table) + end] = weight
        else:
            for layer in range(settings["n_layer"]):
                ours |= of_layer(name, weight, f"blocks.{layer}.{inside}mixer.", layer, settings["attn_type"])
    return ours


def family_of(kind: int) -> Callable[[Mapping[str, Tensor], Settings], dict[str, Tensor]]:
    """Who knows the names of such a layer."""
    return next((family.rename_layer for family in (memory, recurrent) if kind in family.KINDS), rename_layer)


def rename_layer(weights: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """The weights of one layer of softmax attention, by their names inside it, by our names inside a block."""
    names = {
        "dec_attn.qkv_net": "mixer.project",
        "dec_attn.r_net": "mixer.positions.project",
        "dec_attn.o_net": "mixer.out",
        "dec_attn.layer_norm": "mixer.norm" if settings["pre_lnorm"] else "mixer_norm",
        "pos_ff.CoreNet.0": "feed_forward.up",
        "pos_ff.CoreNet.3": "feed_forward.down",
        "pos_ff.layer_norm": "norm",
    }
    ours: dict[str, Tensor] = {}
    for name, weight in weights.items():
        part, _, end = name.rpartition(".")
        if part in names:
            ours[f"{names[part]}.{end}"] = weight
        elif part == "dec_attn.q_net":
            ours["mixer.project.weight"] = cat([weight, weights["dec_attn.kv_net.weight"]])
    return ours


def of_layer(name: str, weight: Tensor, mixer: str, layer: int, kind: int) -> dict[str, Tensor]:
    """What one layer has of the weights that stand beside the layers; the originals count distances backwards."""
    positions = f"{mixer}positions."
    return {
        (RELATIVE, "r_w_bias"): lambda: {f"{positions}biases.content": weight},
        (RELATIVE, "r_r_bias"): lambda: {f"{positions}biases.place": weight},
        (LEARNED_RELATIVE, "r_w_bias"): lambda: {f"{positions}content": weight[layer]},
        (LEARNED_RELATIVE, "r_bias"): lambda: {f"{positions}bias": weight[layer].flip(0)},
        (LEARNED_RELATIVE, "r_emb"): lambda: {f"{positions}table": weight[layer].flip(0)},
        (LEARNED_ABSOLUTE, "r_emb"): lambda: {f"{mixer}codes.table.weight": weight[layer].flip(0).flatten(1)},
    }.get((kind, name), dict)()
