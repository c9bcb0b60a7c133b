"""Mixers: the parts of a model in which tokens meet. Imported here, so that each is known by name."""

from .fast_weight import FastWeight
from .mixer import Mixer
from .softmax_attention import SoftmaxAttention

__all__ = ["FastWeight", "Mixer", "SoftmaxAttention"]
