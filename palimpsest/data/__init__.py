"""From text to batches: vocabularies, corpora, token files and the order in which they are read."""
