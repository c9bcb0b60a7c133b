"""Features made on chip are those of the parts of the same name, and so are their gradients."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from closeness import close
from torch import Tensor

from palimpsest.kernels.fused import features as on_chip
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, Favor, FeatureMap, Identity, Silu
from palimpsest.memory.key_scales import KeyScale, SumToOne, UnitNorm, Unscaled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, TILE = 9, 16
MAPS = [EluPlusOne(), Silu(), Identity(), *(DPFP(nu) for nu in (1, 2, 3)), Favor(directions=12, scale=0.5)]
SCALES = [Unscaled(), SumToOne(), UnitNorm()]
SENTENCES = [
    (feature_map, scale)
    for feature_map in MAPS
    for scale in SCALES
    if feature_map.non_negative or not scale.needs_non_negative
]
NAMES = [f"{feature_map} × {scale}" for feature_map, scale in SENTENCES]


@triton.jit
def there_and_back(
    raw,
    matrix,
    mapped,
    gradient,
    back,
    tokens,
    stride,
    LOOK: tl.constexpr,
    WIDTH: tl.constexpr,
    FEATURES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    APART: tl.constexpr,
    C: tl.constexpr,
):
    token = tl.arange(0, C)
    inside = token < tokens
    rows = raw + token.to(tl.int64) * WIDTH * stride
    here = token[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    there = token[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    made = on_chip.features(rows, inside, stride, matrix, LOOK, WIDTH, FEATURES, SIZE)
    tl.store(mapped + here, made)
    wanted = tl.load(gradient + here)
    found = on_chip.raw_gradient(wanted, rows, inside, stride, matrix, LOOK, WIDTH, FEATURES, SIZE, WIDE, APART)
    tl.store(back + there, found)


def on_chip_of(
    feature_map: FeatureMap, scale: KeyScale, raw: Tensor, gradient: Tensor, exact: bool, apart: bool = True
):
    """Features and the raw numbers' gradient in a tile with poison around the tokens, and in what is returned."""
    width, features = raw.shape[-1], gradient.shape[-1]
    size: Any = on_chip.holding(features)
    wide: Any = on_chip.holding(width)
    tile = torch.full((TILE, 2 * width), torch.nan, dtype=raw.dtype, device=DEVICE)
    tile[:TOKENS, ::2] = raw
    gradients = torch.randn(TILE, size, device=DEVICE)
    gradients[:TOKENS, :features] = gradient
    mapped, back = (torch.full((TILE, columns), torch.nan, device=DEVICE) for columns in (size, wide))
    matrix = feature_map.build(width).matrix.to(DEVICE) if isinstance(feature_map, Favor) else mapped
    look = (
        type(feature_map).__name__,
        type(scale).__name__,
        getattr(feature_map, "nu", 1),
        getattr(scale, "floor", getattr(scale, "epsilon", 0.0)),
        getattr(feature_map, "epsilon", 0.0),
        getattr(feature_map, "scale", 1.0),
        exact,
    )
    choices: dict[str, Any] = {
        "LOOK": look,
        "WIDTH": width,
        "FEATURES": features,
        "SIZE": size,
        "WIDE": wide,
        "APART": apart,
        "C": TILE,
    }
    there_and_back[(1,)](tile, matrix, mapped, gradients, back, TOKENS, 2, **choices)
    return mapped, back


def some_raw(width: int, dtype: torch.dtype) -> Tensor:
    """One token is all zeros and one is tiny, so that kinks and floors are met."""
    raw = torch.randn(TOKENS, width)
    raw[2], raw[3], raw[4, ::3] = 0.0, raw[3] * 1e-4, 0.0
    return raw.to(dtype)


def agrees(
    feature_map: FeatureMap, scale: KeyScale, width: int, dtype: torch.dtype, exact: bool, apart: bool = True
) -> None:
    raw = some_raw(width, dtype)
    exactly = raw.double().requires_grad_()
    expected = scale(feature_map.build(width).double()(exactly))
    gradient = torch.randn(expected.shape)
    (exact_gradient,) = torch.autograd.grad(expected, exactly, gradient.double())
    mapped, back = on_chip_of(feature_map, scale, raw, gradient, exact, apart)
    for found, wanted, what in ((mapped, expected.detach(), "features"), (back, exact_gradient, "gradient")):
        inside = torch.zeros(found.shape, dtype=torch.bool)
        inside[:TOKENS, : wanted.shape[-1]] = True
        assert (found.cpu()[~inside] == 0).all(), f"{what}: not zero beyond"
        close(found.cpu()[inside].view(wanted.shape), wanted, 1e-5, what)


@pytest.mark.parametrize("width", [8, 12, 16])
@pytest.mark.parametrize(("feature_map", "scale"), SENTENCES, ids=NAMES)
def test_features_and_their_gradient_are_those_of_the_parts(feature_map, scale, width):
    agrees(feature_map, scale, width, torch.float32, exact=True)


@pytest.mark.parametrize("feature_map", [DPFP(3), Favor(directions=24)], ids=str)
def test_warps_with_tokens_of_their_own_find_the_same_gradient(feature_map):
    agrees(feature_map, SumToOne(), 12, torch.float32, exact=True, apart=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("feature_map", "scale"), SENTENCES, ids=NAMES)
def test_half_precision_is_only_read(feature_map, scale, dtype):
    agrees(feature_map, scale, 12, dtype, exact=True)


@pytest.mark.parametrize("feature_map", [EluPlusOne(), DPFP(2), Favor(directions=12, scale=0.5)], ids=str)
def test_a_sum_below_the_floor_counts_as_the_floor(feature_map):
    some = feature_map.build(12)(some_raw(12, torch.float32)).sum(-1)
    floor = 1.1 * some.median().item()
    assert some.min() < floor < some.max()
    agrees(feature_map, SumToOne(floor), 12, torch.float32, exact=True)


def test_a_length_is_never_less_than_that_of_its_epsilon():
    agrees(Silu(), UnitNorm(epsilon=0.5), 12, torch.float32, exact=True)


@pytest.mark.parametrize(
    ("feature_map", "scale"), [(EluPlusOne(), SumToOne(floor=0.0)), (Silu(), UnitNorm(epsilon=0.0))], ids=str
)
def test_without_a_floor_there_are_still_zeros_beyond_the_tokens(feature_map, scale):
    raw = torch.randn(TOKENS, 12)
    for found in on_chip_of(feature_map, scale, raw, torch.randn(TOKENS, 12), exact=True):
        assert found.isfinite().all()
        assert (found[TOKENS:] == 0).all()


@pytest.mark.parametrize(("feature_map", "scale"), SENTENCES, ids=NAMES)
def test_what_is_not_a_number_is_not_hidden_and_stays_in_its_token(feature_map, scale):
    raw = torch.randn(TOKENS, 12)
    raw[5, 7] = torch.nan
    mapped, _ = on_chip_of(feature_map, scale, raw, torch.randn(TOKENS, feature_map.features(12)), exact=True)
    assert mapped.isnan().any(-1).nonzero().tolist() == [[5]]
