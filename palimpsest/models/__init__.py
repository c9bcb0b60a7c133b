"""Models: mixers stacked into blocks, between an embedding and a head."""
