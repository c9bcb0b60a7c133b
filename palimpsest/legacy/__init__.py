"""The original toolkits: what they do in their own way, as parts, and their checkpoints in our words."""

from . import (
    adaptive_span,
    corpora,
    initialisations,
    protocols,
    schedules,
    streams,
    transformer_xl,
    vocabularies,
)
