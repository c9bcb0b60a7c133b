"""The forms of the memory scan that compute in whatever they are given, float64 included."""

from palimpsest.kernels import BACKENDS

EXACT_BACKENDS = {name: form for name, form in BACKENDS.items() if name != "fused"}  # whose laws are in tests/fused
