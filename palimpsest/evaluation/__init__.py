"""Evaluation: it is handed a model and tokens, and counts every target exactly once."""
