"""Arithmetic without parameters. Two doors, memory_scan and relative_attention: several forms each, and one answer."""

from ..gates import Gates
from ..relative import Relative
from .attention import ATTENTION_BACKENDS, relative_attention
from .precision import memory_dtype
from .scan import BACKENDS, BackendRefused, choose_backend, memory_scan

__all__ = [
    "ATTENTION_BACKENDS",
    "BACKENDS",
    "BackendRefused",
    "Gates",
    "Relative",
    "choose_backend",
    "memory_dtype",
    "memory_scan",
    "relative_attention",
]
