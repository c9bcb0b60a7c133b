"""The recurrent fast weight programmers of lmtool-fwms, and its RNN and LSTM: settings and weights in our words."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, arange, cat

from ..memory.feature_maps import EluPlusOne, Softmax
from ..memory.key_scales import SumToOne, Unscaled
from ..memory.read_outs import Normalised, Plain, ReadOut
from ..mixers.delta_delta import DeltaDeltaNet, EmptyPage, LearnedPage
from ..mixers.delta_lstm import BareCandidate, DeltaLSTM, SigmoidCandidate, SkippingCandidate
from ..mixers.delta_rnn import DeltaRNN
from ..mixers.feedback import SoftmaxFeedback, SoftmaxState
from ..mixers.lstm import LSTM
from ..mixers.mixer import Mixer
from ..mixers.out_projection import OutProjection
from ..mixers.recurrent_delta import RecurrentDeltaNet
from ..mixers.rnn import RNN
from ..mixers.slow_lstm import SlowLSTM
from ..models.block import Block, PostNorm
from ..models.feed_forward import Relu
from ..models.norms import LayerNorm
from .lmtool_recurrent import (
    Alone,
    Arranged,
    Arrangement,
    BluntlyNormalisedRecurrentDeltaNet,
    ForgetfulDeltaMLP,
    NormAfter,
    NormAfterAlone,
    NormBefore,
    NormFirst,
    NormFirstAlone,
    SumToAlmostOne,
    Unnormed,
)
from .settings import Settings

# of attn_type
DELTA_MLP, DELTA_DELTA, PLAIN_RNN, PLAIN_LSTM, SLOW_LSTM, RECURRENT_DELTA = 54, 64, 80, 90, 324, 934
SOFTMAX_STATE_RNN, DELTA_RNN = 124, 134
SOFTMAX_STATE_LSTM, SIGMOID_LSTM, SKIPPING_LSTM, DELTA_LSTM = DELTA_LSTMS = 224, 234, 244, 254
KINDS = (
    *(DELTA_MLP, DELTA_DELTA, PLAIN_RNN, PLAIN_LSTM, SLOW_LSTM, RECURRENT_DELTA),
    *(SOFTMAX_STATE_RNN, DELTA_RNN, *DELTA_LSTMS),
)
BARE = (PLAIN_RNN, PLAIN_LSTM, SOFTMAX_STATE_RNN, SOFTMAX_STATE_LSTM)  # of which parts may be removed
FED_ALWAYS = (DELTA_MLP, DELTA_DELTA)  # whose feed-forward part may not

# those of the originals' constructors, by their names
DEFAULTS = {
    "d_res": None, "remove_ff": False, "remove_lnorm": False, "remove_res": False, "remove_out_proj": False,
    "skip_attn_normalization": False, "fast_net_depth": 1, "use_slow_base_weights": False,
}  # fmt: skip
DIVISOR = 1e-5  # added to whatever reads are divided by
GUARD = 1e-6  # added to what the kernels' softmax divides by


def width_of(settings: Settings) -> int:
    """Of the model; the originals' d_model may be that of the recurrent state alone."""
    return settings["d_res"] or settings["d_model"]


def translate_block(settings: Settings) -> Block:
    common = {
        "mixer": translate_mixer(settings),
        "feed_forward": feed_forward_of(settings),
        "norm": LayerNorm(),
        "dropout": settings["dropout"],
    }
    around, before = arrangement_of(settings), settings["pre_lnorm"]
    if around == NormAfter() and not before:
        return PostNorm(**common)
    return Arranged(**common, around_mixer=around, around_feed_forward=NormBefore() if before else NormAfter())


def feed_forward_of(settings: Settings) -> Relu | None:
    if settings["remove_ff"] and settings["attn_type"] not in FED_ALWAYS:
        return None
    return Relu(settings["d_inner"], settings["dropout"])


def arrangement_of(settings: Settings) -> Arrangement:
    """Of the norm and the residual path around the mixer."""
    removable = settings["attn_type"] in BARE
    alone = removable and settings["remove_res"]
    if removable and settings["remove_lnorm"]:
        return Alone() if alone else Unnormed()
    if settings["pre_lnorm"]:
        return NormFirstAlone() if alone else NormFirst()
    return NormAfterAlone() if alone else NormAfter()


def translate_mixer(settings: Settings) -> Mixer:
    kind = settings["attn_type"]
    out = None if settings["remove_out_proj"] else OutProjection(settings["dropout"])
    if kind == PLAIN_RNN:
        return RNN(settings["d_model"], out)
    if kind == PLAIN_LSTM:
        return LSTM(settings["d_model"], out)
    heads: dict[str, Any] = {"heads": settings["n_head"], "head_width": settings["d_head"]}
    scale = settings["d_head"] ** -0.5
    if kind == DELTA_MLP:
        inner = 4 * settings["d_model"] // settings["n_head"]
        return ForgetfulDeltaMLP(EluPlusOne(), SumToAlmostOne(), settings["fast_net_depth"], inner, **heads)
    if kind == DELTA_DELTA:
        first = LearnedPage(1.0, 2.0) if settings["use_slow_base_weights"] else EmptyPage()
        return DeltaDeltaNet(EluPlusOne(), SumToAlmostOne(), first, **heads)
    if kind == SOFTMAX_STATE_RNN:
        return DeltaRNN(Softmax(), Unscaled(), SoftmaxState(), read_out_of(settings, 1.0), out, **heads)
    if kind == DELTA_RNN:
        return DeltaRNN(feedback=SoftmaxFeedback(GUARD), read_out=read_out_of(settings, scale), **heads)
    if kind == SOFTMAX_STATE_LSTM:
        return DeltaLSTM(feedback=SoftmaxState(), candidate=SigmoidCandidate(), out=out, **heads)
    if kind in DELTA_LSTMS:
        candidates = {SIGMOID_LSTM: SigmoidCandidate(), SKIPPING_LSTM: SkippingCandidate(), DELTA_LSTM: BareCandidate()}
        return DeltaLSTM(feedback=SoftmaxFeedback(GUARD), candidate=candidates[kind], scale=scale, **heads)
    if kind == SLOW_LSTM:
        return SlowLSTM(EluPlusOne(), SumToOne(), read_out_of(settings, scale), **heads)
    if settings["skip_attn_normalization"]:
        return RecurrentDeltaNet(scale, **heads)
    return BluntlyNormalisedRecurrentDeltaNet(scale, epsilon=DIVISOR, **heads)


def read_out_of(settings: Settings, scale: float) -> ReadOut:
    return Plain(scale) if settings["skip_attn_normalization"] else Normalised(scale, DIVISOR)


def told_by_layer(first: Mapping[str, Tensor]) -> dict[str, Any]:
    """The settings that can be read off the weights of the first layer; nothing, where it is none of these kinds."""
    told: dict[str, Any] = {"remove_ff": "pos_ff.CoreNet.0.weight" not in first}
    attention = {name.removeprefix("dec_attn."): weight for name, weight in first.items()}
    of_net = {name.partition(".")[0]: weight for name, weight in attention.items() if name.endswith("weight_ih_l0")}
    if "rnn_func" in of_net or "lstm_func" in of_net:
        kind, gates = (PLAIN_RNN, 1) if "rnn_func" in of_net else (PLAIN_LSTM, 4)
        (inputs,) = of_net.values()
        told |= {"attn_type": kind, "d_model": len(inputs) // gates, "d_res": inputs.shape[1]}
        told |= {"n_head": 1, "d_head": told["d_model"]}  # which there is no use for
        told |= {
            "remove_lnorm": "layer_norm.weight" not in attention,
            "remove_out_proj": "out_proj.weight" not in attention,
        }
    elif "slow_net" in of_net:
        told["attn_type"] = SLOW_LSTM
    elif "R_q" in attention:
        told |= {"attn_type": RECURRENT_DELTA, "n_head": attention["R_q"].shape[1], "d_head": attention["R_q"].shape[2]}
    elif norms := [weight for name, weight in attention.items() if name.startswith("fast_net_layer_norms.")]:
        width, head_width = len(attention["o_net.weight"]), len(norms[0])
        told |= {"attn_type": DELTA_MLP, "n_head": width // head_width, "d_head": head_width}
        told["fast_net_depth"] = len(norms) // 2
    elif "slow_net.weight" in attention:
        told |= {"attn_type": DELTA_DELTA, "use_slow_base_weights": "fast_net_slow_weights" in attention}
    else:
        return {}
    return told


NAMES = {
    "dec_attn.layer_norm": "mixer_norm",
    "dec_attn.qkvb_net": "mixer.project",
    "dec_attn.qkv_net": "mixer.project",
    "dec_attn.o_net": "mixer.out",
    "dec_attn.out_proj": "mixer.out",
    "dec_attn.rnn_func": "mixer.net",
    "dec_attn.lstm_func": "mixer.net",
    "dec_attn": "mixer",
    "pos_ff.CoreNet.0": "feed_forward.up",
    "pos_ff.CoreNet.3": "feed_forward.down",
    "pos_ff.layer_norm": "norm",
}


def rename_layer(weights: Mapping[str, Tensor], settings: Settings) -> dict[str, Tensor]:
    """The weights of one layer, by their names inside it, by our names inside a block."""
    kind, ours = settings["attn_type"], {}
    names = NAMES | {"dec_attn.slow_net": "mixer.programmer" if kind == SLOW_LSTM else "mixer.project"}
    for name, weight in weights.items():
        part, _, end = name.rpartition(".")
        if part.startswith("dec_attn.fast_net_layer_norms."):
            part, end = "dec_attn", f"block_norms.{part.rpartition('.')[2]}.{end}"
        elif end == "fast_net_slow_weights":
            end = "first_page.page"
        elif end == "R_q":
            others = (weights[f"{part}.{other}"][0] for other in ("R_k", "R_v"))
            end, weight = "hear", cat([weight[0], *others, weights[f"{part}.r_b"][0].mT], dim=-1)
        elif end in ("R_k", "R_v", "r_b"):
            continue
        elif kind == DELTA_MLP and part == "dec_attn.qkv_net":
            weight = used_rows(weight, settings)
        ours[f"{names[part]}.{end}"] = weight
    return ours


def used_rows(weight: Tensor, settings: Settings) -> Tensor:
    """Of the projection of a Delta MLP: the original makes twice the keys and values that it uses."""
    heads, depth, outer = settings["n_head"], settings["fast_net_depth"], settings["d_head"]
    inner = 4 * settings["d_model"] // heads
    pair = outer + inner
    queries, vectors, betas = arange(len(weight)).split([heads * outer, heads * 4 * depth * pair, heads * 2 * depth])
    keys, values = vectors.view(heads, 2, 2 * depth, pair)[:, :, :depth].unbind(1)
    by_block = cat([keys, values], dim=-1).flatten(1)
    return weight[cat([queries.view(heads, -1), by_block, betas.view(heads, -1)], dim=1).flatten()]
