"""Arithmetic without parameters. Doors are memory_scan, and counted_scan where its keys are counted,
relative_attention, linear_cross_entropy and short_convolution: several forms each, and one answer.
"""

from ..gates import Gates
from ..relative import Relative
from .attention import ATTENTION_BACKENDS, relative_attention
from .convolution import CONVOLUTION_BACKENDS, short_convolution
from .cross_entropy import CROSS_ENTROPY_BACKENDS, linear_cross_entropy
from .precision import memory_dtype
from .scan import BACKENDS, BackendRefused, choose_backend, counted_scan, memory_scan

__all__ = [
    "ATTENTION_BACKENDS",
    "BACKENDS",
    "CONVOLUTION_BACKENDS",
    "CROSS_ENTROPY_BACKENDS",
    "BackendRefused",
    "Gates",
    "Relative",
    "choose_backend",
    "counted_scan",
    "linear_cross_entropy",
    "memory_dtype",
    "memory_scan",
    "relative_attention",
    "short_convolution",
]
