"""Recipes: one experiment each, as a Python value named `recipe`. The docstring gives command, time and score."""
