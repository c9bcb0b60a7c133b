"""The fast weight memories of lmtool-fwms: three maps × three rules, as settings and weights in our words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, cat
from torch.nn.functional import linear

from ..errors import UserError
from ..look import Look
from ..memory.feature_maps import DPFP, EluPlusOne, FeatureMap
from ..memory.key_scales import SumToOne, Unscaled
from ..memory.read_outs import Normalised, Plain, ReadOut
from ..memory.update_rules import Delta, NormalisedDelta, Sum
from ..mixers.fast_weight import Address, FastWeight, FastWeightMixer, FastWeightState
from ..mixers.mixer import Mixer
from ..models.block import Block, PostNorm
from ..models.feed_forward import Relu
from ..models.norms import LayerNorm
from .favor import TransposedFavor
from .lmtool_recurrent import Arranged, NormBefore, NormFirst
from .settings import Settings
from .transformer_xl import PreNormUnclosed

# of attn_type: the last digit is the map, the others are the rule
QUADRATIC, DELTA, SUM, NORMALISED = 0, 20, 30, 40
ELU, FAVOR, DPFP_MAP = 4, 5, 6
KINDS = tuple(
    rule + feature_map for rule in (QUADRATIC, DELTA, SUM, NORMALISED) for feature_map in (ELU, FAVOR, DPFP_MAP)
)
DEFAULTS = {"skip_attn_normalization": False, "remove_ff": False, "proj_dim": 256, "n_roll": 3}
DIVISOR = 1e-5  # added to whatever reads are divided by


@dataclass(frozen=True)
class BareQueryMemory(FastWeight):
    """A memory that, under pre-norm, is asked with the bare input and written with the normed one."""

    def build(self, width: int, norm=None) -> "BareQueryMixer":
        return BareQueryMixer(self, width, norm)


class BareQueryMixer(FastWeightMixer):
    def address(
        self, x: Tensor, state: FastWeightState, starts: Tensor | None = None, look: Look | None = None
    ) -> Address:
        address = super().address(x, state, starts, look)
        if self.norm is None:
            return address
        return address._replace(queries=self.features_of(linear(x, self.project.weight[: self.widths[0]]), look))


def translate_block(settings: Settings) -> Block:
    kind = settings["attn_type"]
    common = {
        "mixer": translate_mixer(settings),
        "feed_forward": None
        if settings["remove_ff"] and kind >= DELTA
        else Relu(settings["d_inner"], settings["dropout"]),
        "norm": LayerNorm(),
        "dropout": settings["dropout"],
    }
    if not settings["pre_lnorm"]:
        return PostNorm(**common)
    if kind < DELTA:
        return PreNormUnclosed(**common)
    return Arranged(**common, around_mixer=NormFirst(), around_feed_forward=NormBefore())


def translate_mixer(settings: Settings) -> Mixer:
    rule, scale = settings["attn_type"] // 10 * 10, settings["d_head"] ** -0.5
    common = {"feature_map": map_of(settings), "heads": settings["n_head"], "head_width": settings["d_head"]}
    if rule == QUADRATIC:  # scores are scaled before they are divided by their sum and a little more
        return BareQueryMemory(
            key_scale=Unscaled(), update_rule=Sum(), read_out=Normalised(epsilon=DIVISOR / scale), **common
        )
    read_out: ReadOut = Plain(scale) if settings["skip_attn_normalization"] else Normalised(scale, DIVISOR)
    if rule == SUM:
        return FastWeight(key_scale=Unscaled(), update_rule=Sum(), read_out=read_out, **common)
    normalised = rule == NORMALISED and not settings["skip_attn_normalization"]
    update_rule = NormalisedDelta(beta=None, epsilon=DIVISOR) if normalised else Delta(beta=None)
    return FastWeight(key_scale=SumToOne(), update_rule=update_rule, read_out=read_out, **common)


def map_of(settings: Settings) -> FeatureMap:
    return {
        ELU: EluPlusOne(),
        # where pages are carried, the original reads them under other directions than it wrote them under
        FAVOR: TransposedFavor(settings["proj_dim"], redraw=None if settings["carry_over_fast_weight"] else 1),
        DPFP_MAP: DPFP(settings["n_roll"]),
    }[settings["attn_type"] % 10]


def told_by_layer(first: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings that can be read off the weights of the first layer."""
    told: dict[str, Any] = {"remove_ff": "pos_ff.CoreNet.0.weight" not in first}
    if (matrix := first.get("dec_attn.proj_matrix")) is not None:
        told["d_head"], told["proj_dim"] = matrix.shape
    return told


def rename_layer(weights: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """The weights of one layer, by their names inside it, by our names inside a block."""
    heads, width, kind = settings["n_head"], settings["d_head"], settings["attn_type"]
    norm = "mixer.norm" if settings["pre_lnorm"] and kind < DELTA else "mixer_norm"
    names = {**NAMES, "dec_attn.layer_norm": norm}
    ours: dict[str, Tensor] = {}
    for name, weight in weights.items():
        part, _, end = name.rpartition(".")
        if part in names:
            ours[f"{names[part]}.{end}"] = weight
        elif part in ("dec_attn.qkv_net", "dec_attn.qkvb_net"):  # the originals keep all that is of one head together
            rows = heads * (3 * width + part.endswith("qkvb_net"))
            if len(weight) != rows:
                raise UserError(
                    f"{name} of a layer has {len(weight)} rows, and n_head={heads} with d_head={width} ask for {rows}: "
                    "give both with --set, as they were when the model was trained"
                )
            by_head = weight.unflatten(0, (heads, -1))
            vectors = by_head[:, : 3 * width].unflatten(1, (3, width))
            ours["mixer.project.weight"] = vectors.transpose(0, 1).flatten(0, 2)
            if part == "dec_attn.qkvb_net":
                ours["mixer.update_rule.beta.weight"] = by_head[:, -1]
        elif part == "dec_attn.q_net":
            ours["mixer.project.weight"] = cat([weight, weights["dec_attn.kv_net.weight"]])
        elif end == "proj_matrix":
            ours["mixer.feature_map.matrix"] = weight
    return ours


NAMES = {
    "dec_attn.o_net": "mixer.out",
    "pos_ff.CoreNet.0": "feed_forward.up",
    "pos_ff.CoreNet.3": "feed_forward.down",
    "pos_ff.layer_norm": "norm",
}


def check_directions(weights: Mapping[str, Tensor], settings: Settings) -> None:
    if settings["attn_type"] % 10 == FAVOR and "layers.0.dec_attn.proj_matrix" not in weights:
        raise UserError(
            "the random directions of FAVOR+ are not in this state dict, and without them it is another model: "
            "import the whole module that lmtool-fwms saved, best_model.pt"
        )
