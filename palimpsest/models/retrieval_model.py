"""Models of retrieval tasks: pairs of a key and a value go in, then queries; out comes one number for each value."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from ..mixers.fast_weight import FastWeight
from ..mixers.mixer import Mixer
from ..mixers.recall import recall_of
from ..spec import Size, Spec
from ..state import map_state
from .block import Block, PreNorm
from .initialisations import Initialisation, Scaled


class RetrievalModel(Spec):
    def make(self, keys: int, values: int) -> "RetrievalNetwork":
        raise NotImplementedError

    def build(self, keys: int, values: int, seed: int = 0) -> "RetrievalNetwork":
        """For so many different keys and values; chance comes from the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make(keys, values)


class RetrievalNetwork(nn.Module):
    def chance(self, times: int, generator: torch.Generator) -> Tensor | None:
        """What so many calls draw by chance, one after another, if they do."""
        return None

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, chance: Tensor | None = None) -> Tensor:
        """keys, values `b t` and queries `b q` -> `b q v`"""
        raise NotImplementedError


@dataclass(frozen=True)
class ProjectedPairs(RetrievalModel):
    """The model of the paper: keys are made of the pair, queries of the key alone, values are one-hot; one head."""

    memory: Mixer = FastWeight(heads=1)
    key_width: Size = 64
    embedding: float = 2.2  # numbers in a key's embedding, for each key

    def make(self, keys: int, values: int) -> "ProjectedNetwork":
        return ProjectedNetwork(self, keys, values)


class ProjectedNetwork(RetrievalNetwork):
    def __init__(self, spec: ProjectedPairs, keys: int, values: int):
        super().__init__()
        self.spec, self.values = spec, values
        width = max(1, int(spec.embedding * keys))
        self.embedding = nn.Parameter(torch.randn(keys, width))
        self.key = PairLinear(values, width, spec.key_width)
        self.query = nn.Linear(width, spec.key_width)
        self.recall = recall_of(spec.memory, values + width, spec.key_width, values)

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, chance: Tensor | None = None) -> Tensor:
        written, asked = self.key(self.embedding, keys, values), rows(self.query(self.embedding), queries)
        heard, asking = self.tokens(keys, values, queries) if self.recall.listens else (written, asked)
        return self.recall(written, values, asked, heard, asking)

    def tokens(self, keys: Tensor, values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """What is shown and what is asked, as a one-hot value beside the key's embedding; a query has no value."""
        shown, asked = rows(self.embedding, keys), rows(self.embedding, queries)
        nothing = asked.new_zeros(*queries.shape, self.values)
        pairs = torch.cat([one_hot(values, self.values).to(shown.dtype), shown], dim=-1)
        return pairs, torch.cat([nothing, asked], dim=-1)


class PairLinear(nn.Linear):
    """A linear map of a one-hot value beside a key's embedding. Its results are looked up, not multiplied."""

    def __init__(self, values: int, width: int, out: int):
        super().__init__(values + width, out)
        self.values = values

    def forward(self, embedding: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        of_values, of_keys = self.weight[:, : self.values].T, self.weight[:, self.values :]
        return rows(linear(embedding, of_keys, self.bias), keys) + rows(of_values, values)


def rows(table: Tensor, numbers: Tensor) -> Tensor:
    """`n d` and `b t` -> `b t d`. Its gradient is added up in place, which neither sorts nor waits."""
    return table.index_select(0, numbers.flatten()).view(*numbers.shape, -1)


@dataclass(frozen=True)
class PairTokens(RetrievalModel):
    """Any block of ours: each pair is a token, the query is the last one, and its output says the value."""

    block: Block = PreNorm(FastWeight(), None)
    width: Size = 64
    layers: Size = 1
    initialisation: Initialisation = Scaled()

    def make(self, keys: int, values: int) -> "TokenNetwork":
        return TokenNetwork(self, keys, values)


class TokenNetwork(RetrievalNetwork):
    def __init__(self, spec: PairTokens, keys: int, values: int):
        super().__init__()
        self.key, self.value = nn.Embedding(keys, spec.width), nn.Embedding(values, spec.width)
        self.query = nn.Embedding(keys, spec.width)
        stack = [spec.block.at(layer) for layer in range(spec.layers)]
        self.blocks = nn.ModuleList(block.build(spec.width) for block in stack)
        self.norm = stack[-1].closing_norm(spec.width)
        self.head = nn.Linear(spec.width, values)
        spec.initialisation.apply(self, torch.Generator().manual_seed(torch.initial_seed() % 2**63))

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, chance: Tensor | None = None) -> Tensor:
        shown, asked = self.key(keys) + self.value(values), self.query(queries)
        count = queries.shape[1]
        x = asked.flatten(0, 1)[:, None]  # each query by itself, so that none hears of another
        for block in self.blocks:
            shown, state = block(shown)
            x, _ = block(x, map_state(lambda leaf: leaf.repeat_interleave(count, dim=0), state))
        return self.head(self.norm(x)).view(*queries.shape, -1)
