"""Mixers: the parts of a model in which tokens meet."""
