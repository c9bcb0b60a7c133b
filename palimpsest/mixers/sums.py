"""Sums of features that reads are divided by."""

import torch
from torch import Tensor

from ..errors import UserError
from ..memory.feature_maps import FeatureMap
from ..memory.key_scales import KeyScale
from ..memory.read_outs import ReadOut
from .fast_weight import KeySum


def fresh_sum(memory: Tensor) -> KeySum:
    """Of no keys at all, for a page `b h k v`."""
    return KeySum(torch.zeros_like(memory[..., :1]), torch.ones_like(memory[:, 0, 0, 0], dtype=torch.bool))


def refuse_signed(feature_map: FeatureMap, key_scale: KeyScale, read_out: ReadOut | None = None) -> None:
    """Refuse a map with negative features beside a part that divides by their sum."""
    sums = [key_scale] if key_scale.needs_non_negative else []
    sums += [read_out] if read_out is not None and read_out.counts_keys else []
    if sums and not feature_map.non_negative:
        one, other = type(sums[0]).__name__, type(feature_map).__name__
        raise UserError(f"{one} divides by a sum of features, and {other} has negative ones: the sum may be zero")
