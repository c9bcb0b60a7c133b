"""Data: texts, tokens and the order in which they are read. Imported here, so that corpora are known by name."""

from . import parallel, shopping_lists, standard, standard_pairs
