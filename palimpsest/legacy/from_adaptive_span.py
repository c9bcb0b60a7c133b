"""Models of adaptive-span: their settings and weights in our words."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, equal

from ..attention.persistent import PersistentVectors
from ..errors import UserError
from ..models.block import PostNorm
from ..models.embeddings import AdaptiveEmbedding, Embedding, TokenEmbedding
from ..models.feed_forward import Relu
from ..models.heads import AdaptiveSoftmax, Head, SoftmaxHead
from ..models.language_model import LanguageModel
from ..models.norms import LayerNorm
from .adaptive_span import AdaptivePastAttention, PastAttention
from .initialisations import PyTorchStart
from .settings import COUNT, LIST, NUMBER, SIZE, Imported, Settings, Weights, translating

ORIGINAL = "adaptive-span"
# those that weights alone do not tell, by the originals' names
DEFAULTS = {
    "dropout": 0.0, "emb_dropout": 0.0, "adapt_span_ramp": 32, "adapt_span_init": 0.0, "adapt_span_loss": 0.0,
    "adapt_span_cache": True, "block_size": 512,
}  # fmt: skip
BOUNDS = {
    **dict.fromkeys(("attn_span", "hidden_size", "nb_heads", "nb_layers", "inner_hidden_size", "vocab_size"), SIZE),
    **dict.fromkeys(("adapt_span_ramp", "block_size", "adapt_io_divval"), SIZE),
    **dict.fromkeys(("dropout", "emb_dropout", "adapt_span_init", "adapt_span_loss"), NUMBER),
    "pers_mem_size": COUNT, "adapt_io_cutoffs": LIST,
}  # fmt: skip


@translating(ORIGINAL)
def translate(weights: Mapping[str, Tensor], given: Mapping[str, Any]) -> Imported:
    """The model that has these weights, as the original names them, under these settings, as it calls them."""
    settings = Settings({**DEFAULTS, **told_by(Weights(weights, ORIGINAL)), **flat(given)}, ORIGINAL)
    settings.check(BOUNDS)
    persistent = PersistentVectors(settings["pers_mem_size"]) if settings["pers_mem_size"] else None
    common = (settings["attn_span"], persistent, settings["nb_heads"], settings["dropout"])
    if settings["adapt_span_enabled"]:
        mixer = AdaptivePastAttention(
            *common,
            ramp=settings["adapt_span_ramp"],
            initial=float(settings["adapt_span_init"]),
            penalty=float(settings["adapt_span_loss"]),
            shrink_cache=settings["adapt_span_cache"],
        )
    else:
        mixer = PastAttention(*common)
    feed_forward = None if persistent else Relu(settings["inner_hidden_size"], settings["dropout"])
    embedding, head = embedding_and_head(settings)
    model = LanguageModel(
        width=settings["hidden_size"],
        layers=settings["nb_layers"],
        block=PostNorm(mixer=mixer, feed_forward=feed_forward, norm=LayerNorm()),
        embedding=embedding,
        head=head,
        initialisation=PyTorchStart(),
    )
    return Imported(model, settings["vocab_size"], settings["block_size"], settings, rename(weights))


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The original keeps its settings in groups, such as `adapt_span_params`."""
    groups = [value for name, value in given.items() if name.endswith("_params") and isinstance(value, Mapping)]
    return {name: value for group in (given, *groups) for name, value in group.items()}


def told_by(weights: Weights) -> dict[str, Any]:
    """The settings that can be read off the shapes of the weights."""
    if "key_pe" not in weights:
        raise UserError("these weights are not an adaptive-span model: there is no key_pe")
    _, head_width, span = weights["key_pe"].shape
    width = len(weights["layers.0.attn.proj_query.weight"])
    told: dict[str, Any] = {
        "attn_span": span,
        "hidden_size": width,
        "nb_heads": width // head_width,
        "nb_layers": len({name.split(".")[1] for name in weights if name.startswith("layers.")}),
        "adapt_span_enabled": any(name.endswith("current_val") for name in weights),
        "pers_mem_size": 0,
    }
    if (up := weights.get("layers.0.ff.fc1.weight")) is not None:
        told["inner_hidden_size"] = len(up)
    if (values := weights.get("layers.0.attn.attn.persistent_memory.val")) is not None:
        told["pers_mem_size"] = values.shape[1]
    tables = [weight for name, weight in weights.items() if name.startswith("in_emb.emb_layers.")]
    told["adapt_io_enabled"] = bool(tables)
    if not tables:
        return told | {"vocab_size": len(weights["in_emb.weight"])}
    sizes = [len(table) for table in tables]
    out = weights["out_emb.out_layers.0.weight"]
    return told | {
        "vocab_size": sum(sizes),
        "adapt_io_cutoffs": [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)],
        "adapt_io_divval": width // tables[1].shape[1] if len(tables) > 1 else 1,
        "adapt_io_tied": tables[0].shape == out.shape and equal(tables[0], out),
    }


def embedding_and_head(settings: Settings) -> tuple[Embedding, Head]:
    dropout = settings["emb_dropout"]
    if not settings["adapt_io_enabled"]:
        return TokenEmbedding(dropout=dropout), SoftmaxHead(bias=True, dropout=dropout)
    cutoffs, divisor = tuple(settings["adapt_io_cutoffs"]), settings["adapt_io_divval"]
    tied = bool(settings["adapt_io_tied"])
    projections = tuple(range(len(cutoffs) + 1)) if tied else ()
    head = AdaptiveSoftmax(cutoffs, divisor, tied=tied, tied_projections=projections, dropout=dropout)
    return AdaptiveEmbedding(cutoffs, divisor, dropout=dropout), head


NAMES = {
    "attn.proj_query": "mixer.queries",
    "attn.proj_key": "mixer.keys",
    "attn.proj_val": "mixer.values",
    "attn.proj_out": "mixer.out",
    "norm1": "mixer_norm",
    "ff.fc1": "feed_forward.up",
    "ff.fc2": "feed_forward.down",
    "norm2": "norm",
}
BESIDE_LAYERS = {
    "in_emb.weight": "embedding.table.weight",
    "out_emb.weight": "head.project.weight",
    "out_emb.bias": "head.project.bias",
}
TABLES = {
    "in_emb.emb_layers": "embedding.tables",
    "in_emb.emb_projs": "embedding.projections",
    "out_emb.out_layers": "head.tables",
    "out_emb.out_projs": "head.projections",
}


def rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By our names and in our order; whatever is there, so that gradients can be renamed too."""
    ours: dict[str, Tensor] = {}
    layers = sorted({int(name.split(".")[1]) for name in weights if name.startswith("layers.")})
    for layer in layers:
        theirs, mine = f"layers.{layer}.", f"blocks.{layer}."
        present = {name.removeprefix(theirs): weight for name, weight in weights.items() if name.startswith(theirs)}
        for name, weight in present.items():
            part, _, end = name.rpartition(".")
            if part in NAMES:
                ours[f"{mine}{NAMES[part]}.{end}"] = weight
            elif name == "attn.attn.adaptive_span._mask.current_val":
                ours[f"{mine}mixer.ratio"] = weight.flatten()
            elif name == "attn.attn.persistent_memory.key":
                ours[f"{mine}mixer.persistent.keys"] = weight.transpose(1, 2)
            elif name == "attn.attn.persistent_memory.val":
                ours[f"{mine}mixer.persistent.values"] = weight
        if "key_pe" in weights:  # the original begins with the farthest token
            ours[f"{mine}mixer.vectors.table"] = weights["key_pe"][0].T.flip(0)
    for name, weight in weights.items():
        if name in BESIDE_LAYERS:
            ours[BESIDE_LAYERS[name]] = weight
        elif name.startswith("out_emb.cluster_proj"):  # clusters are counted backwards
            ours[f"head.clusters.{name.rpartition('.')[2]}"] = weight.flip(0)
        elif (table := next((one for one in TABLES if name.startswith(one)), None)) is not None:
            number = name.removeprefix(table).strip(".").split(".")[0]
            end = "bias" if name.endswith("bias") else "weight"
            ours[f"{TABLES[table]}.{number}.{end}"] = weight
    return ours
