"""Arithmetic without parameters. One door: memory_scan, one recurrence with several forms and one answer."""

from ..gates import Gates
from .scan import BACKENDS, BackendRefused, choose_backend, memory_dtype, memory_scan

__all__ = ["BACKENDS", "BackendRefused", "Gates", "choose_backend", "memory_dtype", "memory_scan"]
