"""The original toolkits: what they do in their own way, as parts, and their checkpoints in our words."""

from . import (
    adaptive_span,
    corpora,
    favor,
    from_lmtool_memory,
    initialisations,
    lmtool_recurrent,
    protocols,
    retrieval,
    schedules,
    streams,
    transformer_xl,
    vocabularies,
)
