"""What attention may add to the product of a query and a key: a word on how far apart they are."""

from typing import NamedTuple

from torch import Tensor


class Relative(NamedTuple):
    """Row δ of the tables speaks of the key δ tokens before the query: score += query · table[δ] + bias[δ]."""

    queries: Tensor | None  # b t h k; None: those that ask for contents ask for distances too
    table: Tensor  # r h k
    bias: Tensor | None = None  # r h

    def times(self, scale: float) -> "Relative":
        """All scores multiplied."""
        queries, bias = (None if x is None else x * scale for x in (self.queries, self.bias))
        return Relative(queries, self.table, bias)

    def of_heads(self, heads: slice | list[int]) -> "Relative":
        queries = None if self.queries is None else self.queries[:, :, heads]
        return Relative(queries, self.table[:, heads], None if self.bias is None else self.bias[:, heads])

    def within(self, distances: int) -> "Relative":
        """The same for the nearest `distances` keys only."""
        if len(self.table) == distances:  # a slice of everything would still be one to go back through
            return self
        return self._replace(table=self.table[:distances], bias=None if self.bias is None else self.bias[:distances])
