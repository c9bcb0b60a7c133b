"""Layers of lmtool-fwms' recurrent models: what their weights tell, and where each of them goes."""

import pytest
import torch
from torch import Tensor

from palimpsest.legacy import from_lmtool_recurrent as recurrent
from palimpsest.legacy.lmtool_recurrent import Alone, Arranged, NormAfterAlone, NormFirst, NormFirstAlone, Unnormed
from palimpsest.legacy.settings import Settings
from palimpsest.mixers.recurrent_delta import RecurrentDeltaNet
from palimpsest.models.block import PostNorm

WIDTH, HEADS, HEAD_WIDTH = 8, 2, 4
COMMON = {
    "attn_type": 0, "n_head": HEADS, "d_head": HEAD_WIDTH, "d_model": WIDTH, "d_inner": 12, "dropout": 0.0,
    "pre_lnorm": False, **recurrent.DEFAULTS,
}  # fmt: skip


def settings(kind: int, **others) -> Settings:
    return Settings({**COMMON, "attn_type": kind, **others}, "lmtool-fwms")


def net(name: str, gates: int, hidden: int) -> dict[str, tuple[int, ...]]:
    inputs = {"weight_ih_l0": (WIDTH,), "weight_hh_l0": (hidden,), "bias_ih_l0": (), "bias_hh_l0": ()}
    return {f"{name}.{end}": (gates * hidden, *rest) for end, rest in inputs.items()}


def attention(kind: int) -> dict[str, tuple[int, ...]]:
    """The names and shapes inside `dec_attn`, but for the norm."""
    each, said, dh = HEADS * HEAD_WIDTH, (WIDTH, HEADS * HEAD_WIDTH), HEAD_WIDTH
    recurrent_weights = {f"R_{name}": (1, HEADS, dh, dh) for name in "qkv"} | {"r_b": (1, HEADS, 1, dh)}
    lstm = {"qkv_net.weight": (HEADS * (15 * dh + 6), WIDTH)}
    rnn = {"qkvb_net.weight": (HEADS * (5 * dh + 2), WIDTH)}
    return {
        54: {
            "qkv_net.weight": (WIDTH + 4 * 5 * WIDTH + 2 * HEADS, WIDTH),
            "fast_net_layer_norms.0.weight": (dh,),
            "fast_net_layer_norms.0.bias": (dh,),
            "o_net.weight": said,
        },
        64: {"slow_net.weight": (HEADS * (5 * dh + 2), WIDTH), "o_net.weight": said},
        80: {**net("rnn_func", 1, WIDTH), "out_proj.weight": (WIDTH, WIDTH)},
        90: {**net("lstm_func", 4, WIDTH), "out_proj.weight": (WIDTH, WIDTH)},
        124: {**rnn, "out_proj.weight": said},
        134: {**rnn, "o_net.weight": said},
        224: {**lstm, "out_proj.weight": said},
        **{kind: {**lstm, "o_net.weight": said} for kind in (234, 244, 254)},
        324: {**net("slow_net", 4, 3 * each + HEADS), "o_net.weight": said},
        934: {**recurrent_weights, "slow_net.weight": (3 * each + HEADS, WIDTH), "o_net.weight": said},
    }[kind]


def layer(kind: int) -> dict[str, Tensor]:
    shapes = {f"dec_attn.{name}": shape for name, shape in attention(kind).items()}
    for part, width, inner in (("0", WIDTH, 12), ("3", 12, WIDTH)):
        shapes |= {f"pos_ff.CoreNet.{part}.weight": (inner, width), f"pos_ff.CoreNet.{part}.bias": (inner,)}
    for part in ("dec_attn", "pos_ff"):
        shapes |= {f"{part}.layer_norm.{end}": (WIDTH,) for end in ("weight", "bias")}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


every_kind = pytest.mark.parametrize("kind", recurrent.KINDS)


@every_kind
@pytest.mark.parametrize("pre_lnorm", (False, True))
def test_every_weight_of_a_layer_has_its_place(kind, pre_lnorm):
    chosen, weights = settings(kind, pre_lnorm=pre_lnorm), layer(kind)
    block = recurrent.translate_block(chosen).build(recurrent.width_of(chosen))
    ours = recurrent.rename_layer(weights, chosen)
    block.load_state_dict(ours)
    if kind != recurrent.DELTA_MLP:  # of which the original wastes half
        assert sum(weight.numel() for weight in ours.values()) == sum(weight.numel() for weight in weights.values())


@pytest.mark.parametrize("kind", [kind for kind in recurrent.KINDS if kind in (54, 64, 80, 90, 324, 934)])
def test_a_layer_tells_what_it_is(kind):
    told = recurrent.told_by_layer(layer(kind))
    assert told["attn_type"] == kind
    assert not told["remove_ff"]
    if kind in (54, 934):
        assert (told["n_head"], told["d_head"]) == (HEADS, HEAD_WIDTH)


@pytest.mark.parametrize("kind", (124, 134, 224, 254))
def test_a_layer_that_could_be_several_things_tells_nothing(kind):
    assert recurrent.told_by_layer(layer(kind)) == {}


def test_the_rows_of_a_delta_mlp_that_are_used_are_taken():
    """Per head: the query, then keys and values of which the originals' second halves are idle, then β."""
    chosen = settings(54, n_head=2, d_head=1, d_model=2, fast_net_depth=1)
    rows = torch.arange(2 + 4 * (2 + 8) + 4)[:, None]
    first = [0, 2, 3, 4, 5, 6, 12, 13, 14, 15, 16, 42, 43]
    second = [1, 22, 23, 24, 25, 26, 32, 33, 34, 35, 36, 44, 45]
    assert recurrent.used_rows(rows, chosen).flatten().tolist() == first + second


@pytest.mark.parametrize(
    "removed, pre_lnorm, expected",
    (
        (("remove_res",), False, NormAfterAlone()),
        (("remove_res",), True, NormFirstAlone()),
        (("remove_lnorm",), True, Unnormed()),
        (("remove_lnorm", "remove_res"), False, Alone()),
        ((), True, NormFirst()),
    ),
)
def test_what_is_removed_from_a_layer_is_not_there(removed, pre_lnorm, expected):
    chosen = settings(recurrent.PLAIN_LSTM, pre_lnorm=pre_lnorm, **dict.fromkeys(removed, True))
    block = recurrent.translate_block(chosen)
    assert isinstance(block, Arranged)
    assert block.around_mixer == expected
    names = {name.partition(".")[0] for name in block.build(WIDTH).state_dict()}
    assert ("mixer_norm" in names) == ("remove_lnorm" not in removed)


def test_the_rest_cannot_be_removed():
    removed = {name: True for name in recurrent.DEFAULTS if name.startswith("remove_")}
    block = recurrent.translate_block(settings(recurrent.RECURRENT_DELTA, skip_attn_normalization=True, **removed))
    assert isinstance(block, PostNorm)
    assert block.feed_forward is None
    assert isinstance(block.mixer, RecurrentDeltaNet)


def test_the_state_may_be_wider_than_the_model():
    chosen = settings(recurrent.PLAIN_RNN, d_model=24, d_res=WIDTH, remove_ff=True)
    assert recurrent.width_of(chosen) == WIDTH
    assert recurrent.translate_block(chosen).build(WIDTH).mixer.initial_state(3).said.shape == (3, 24)
