"""The synthetic experiments of fast-weight-transformers: its chance, its model, its evaluation, its command lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention.positions import NoPositions
from ..data.retrieval import Capacity, Overwriting, Period, Questions, RetrievalTask, Source, last_values
from ..errors import UserError, unknown
from ..experiment.retrieval import Retrieval
from ..memory.feature_maps import DPFP, EluPlusOne, Favor, FeatureMap, Tanh
from ..memory.key_scales import SumToOne, Unscaled
from ..memory.read_outs import Normalised, Plain
from ..memory.update_rules import Delta, Sum
from ..mixers.bounded_memory import BoundedMemory, last_bounded_page
from ..mixers.fast_weight import FastWeight
from ..mixers.mixer import Mixer
from ..mixers.recall import BoundedRecall, FastWeightRecall, Recall, SoftmaxRecall, weigh
from ..mixers.softmax_attention import SoftmaxAttention
from ..models.retrieval_model import PairLinear, ProjectedPairs, RetrievalNetwork, rows

MOST_QUERIES = 200  # of a sequence, at evaluation: those of the smallest keys

# --------------------------------------------------------------------------------------------------- the tasks


@dataclass(frozen=True)
class OriginalCapacity(Capacity):
    """Capacity, drawn and evaluated as fast-weight-transformers does without --replace."""

    def open(self, batch: int, seed: int) -> Source:
        return OriginalSource(self, batch, seed)


@dataclass(frozen=True)
class OriginalOverwriting(Overwriting):
    """Overwriting, drawn and evaluated as fast-weight-transformers does with --replace: on half the length trained."""

    def open(self, batch: int, seed: int) -> Source:
        return OriginalSource(self, batch, seed)


class OriginalSource(Source):
    """The original's draws, bit for bit: sample by sample from numpy's first generator."""

    def __init__(self, task: RetrievalTask, batch: int, seed: int):
        self.task, self.batch = task, batch
        self.chance = np.random.RandomState(seed)

    def position(self) -> dict:
        state: Any = self.chance.get_state(legacy=False)["state"]
        return {"key": state["key"].tolist(), "pos": int(state["pos"])}

    def seek(self, position: dict) -> None:
        key = np.array(position["key"], np.uint32)
        self.chance.set_state({"bit_generator": "MT19937", "state": {"key": key, "pos": position["pos"]}})

    def choose(self, length: int) -> np.ndarray:
        """What choice(range(keys), size=length) draws, without making the range."""
        if self.task.replaces:
            return self.chance.randint(0, self.task.keys, length)
        return self.chance.permutation(self.task.keys)[:length]

    def draw(self, samples: int) -> Questions:
        length = self.task.length
        keys, values = np.empty((2, samples, length), np.int16)
        places = np.empty((samples, 1), np.int64)
        for i in range(samples):
            keys[i], values[i] = self.choose(length), self.choose(length)
            places[i] = self.chance.randint(0, length)
        queries = np.take_along_axis(keys, places, axis=1)
        return Questions(keys, values, queries, last_values(keys, values, queries), np.ones((samples, 1), np.float32))

    def draw_all(self) -> Questions:
        """One sequence, as long as there are keys, and its first queries."""
        keys, values = (self.choose(self.task.keys).astype(np.int16)[None] for _ in range(2))
        queries = np.unique(keys)[None, :MOST_QUERIES]
        return Questions(keys, values, queries, last_values(keys, values, queries), np.ones_like(queries, np.float32))

    def period(self, steps: int, sequences: int) -> Period:
        drawn = self.draw(steps * self.batch)
        batches = Questions(*(field.reshape(steps, self.batch, -1) for field in drawn))
        batches = batches._replace(weights=batches.weights / self.batch)
        return Period(batches, in_chunks([self.draw_all() for _ in range(sequences)], self.batch))


def in_chunks(sequences: list[Questions], size: int) -> Questions:
    """A row for every chunk of queries: each chunk counts alike, however few queries are left for it."""
    width = min(size, max(sequence.queries.shape[1] for sequence in sequences))
    chunks = [
        sequence._replace(
            **{
                name: padded(field[:, start : start + size], width)
                for name, field in zip(("queries", "targets", "weights"), sequence[2:], strict=True)
            }
        )
        for sequence in sequences
        for start in range(0, sequence.queries.shape[1], size)
    ]
    joined = Questions(*(np.concatenate(fields) for fields in zip(*chunks, strict=True)))
    return joined._replace(weights=joined.weights / joined.weights.sum(1, keepdims=True) / len(chunks))


def padded(field: np.ndarray, width: int) -> np.ndarray:
    return np.pad(field, ((0, 0), (0, width - field.shape[1])))


# --------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class OriginalPairs(ProjectedPairs):
    """ProjectedPairs from the original's first numbers, and without what keeps features from vanishing."""

    def make(self, keys: int, values: int) -> "OriginalNetwork":
        return OriginalNetwork(self, keys, values)


class OriginalNetwork(RetrievalNetwork):
    def __init__(self, spec: OriginalPairs, keys: int, values: int):
        super().__init__()
        width, size = int(2 * keys * 1.1), spec.key_width
        # drawn in the original's order, with all that it draws and never uses
        nn.Embedding(values, values)
        embedding = nn.Embedding(2 * keys, width)
        self.key, unused = PairLinear(values, width, size), nn.Linear(values + width, size)
        self.query = nn.Linear(width, size)
        beta = None
        if not isinstance(spec.memory, SoftmaxAttention):
            nn.Linear(values + width, size)
            beta = PairLinear(values, width, 1)
        nn.init.normal_(embedding.weight)
        nn.init.xavier_uniform_(unused.weight)
        for layer in (self.key, self.query):
            if beta is None:
                nn.init.xavier_uniform_(layer.weight)
            else:
                nn.init.uniform_(layer.weight, -(size**-0.5), size**-0.5)
        self.embedding = nn.Parameter(embedding.weight[:keys].detach().clone())
        self.recall = original_recall(spec.memory, values + width, size, values)
        self.beta = beta if isinstance(self.recall, OriginalDelta | OriginalBounded) else None

    @torch.no_grad()
    def load_original(self, weights: Mapping[str, Tensor]) -> None:
        """The weights of the original's state_dict; what it never uses is left out."""
        self.embedding.copy_(weights["embeddingK.weight"][: len(self.embedding)])
        for name, layer in {"W_k": self.key, "W_q": self.query, "W_b": self.beta}.items():
            if layer is not None:
                layer.weight.copy_(weights[f"{name}.weight"])
                layer.bias.copy_(weights[f"{name}.bias"])

    def chance(self, times: int, generator: torch.Generator) -> Tensor | None:
        features = getattr(self.recall, "feature_map", None)
        return features.draw(times, generator) if isinstance(features, OriginalFavor) else None

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, chance: Tensor | None = None) -> Tensor:
        if chance is not None:
            self.recall.feature_map.directions = chance  # pyright: ignore[reportAttributeAccessIssue]
        asked = rows(self.query(self.embedding), queries)
        logits = asked if self.beta is None else self.beta(self.embedding, keys, values)
        return self.recall(self.key(self.embedding, keys, values), values, asked, logits, asked)


def original_recall(memory: Mixer, width: int, key_width: int, values: int) -> Recall:
    if isinstance(memory, SoftmaxAttention):
        return SoftmaxRecall(values)
    if isinstance(memory, BoundedMemory):
        recall = OriginalBounded(memory, width, key_width, values)
    elif isinstance(memory, FastWeight) and isinstance(memory.update_rule, Sum | Delta):
        kind = OriginalDelta if isinstance(memory.update_rule, Delta) else FastWeightRecall
        recall = kind(memory, width, key_width, values)
    else:
        raise UserError(f"fast-weight-transformers had no memory like {memory}")
    if isinstance(memory.feature_map, Favor):
        recall.feature_map = OriginalFavor(memory.feature_map.directions, key_width)
    return recall


class OriginalDelta(FastWeightRecall):
    """Keys are divided by their sum, which may be zero; what is read by the query's sum and a little more."""

    def __init__(self, spec: FastWeight, width: int, key_width: int, values: int):
        super().__init__(spec, width, key_width, values)
        self.update_rule = nn.Identity()  # from the logits of β

    def answer(self, keys: Tensor, values: Tensor, queries: Tensor, heard: Tensor, asking: Tensor) -> Tensor:
        keys, queries = self.feature_map(keys), self.feature_map(queries)
        beta = heard.squeeze(-1).sigmoid()
        weights = weigh(queries, keys / keys.sum(-1, keepdim=True), beta, beta)
        return self.gather(weights, values) / (queries.sum(-1, keepdim=True) + 1e-6)


class OriginalBounded(BoundedRecall):
    """The page of the first token is not shrunk."""

    def __init__(self, spec: BoundedMemory, width: int, key_width: int, values: int):
        super().__init__(spec, width, key_width, values)
        self.beta = nn.Identity()

    def page(self, keys: Tensor, shown: Tensor, beta: Tensor) -> Tensor:
        first = shown[:, 0, :, None] * (beta[:, 0, None] * keys[:, 0])[:, None]
        return last_bounded_page(keys[:, 1:], shown[:, 1:], beta[:, 1:], first)


class OriginalFavor(nn.Module):
    """FAVOR+ with other directions in every call, and nothing to keep its features from vanishing."""

    def __init__(self, directions: int, width: int):
        super().__init__()
        self.width, self.count = width, directions
        self.directions = self.draw(1, torch.default_generator)[0]

    def draw(self, times: int, generator: torch.Generator) -> Tensor:
        """`times d m`. A direction may point either way: its features come in pairs."""
        blocks = -(-self.count // self.width)
        shape = times, blocks, self.width, self.width
        squares = torch.randn(shape, generator=generator, device=generator.device).double()
        triangles = torch.linalg.cholesky_ex(squares.mT @ squares, upper=True).L  # which does not wait for the GPU
        orthogonal = torch.linalg.solve_triangular(triangles, squares, upper=True, left=False)
        drawn = orthogonal * squares.norm(dim=-1)[..., None, :]
        return drawn.transpose(1, 2).flatten(2)[..., : self.count].to(torch.get_default_dtype())

    def forward(self, x: Tensor) -> Tensor:
        projected = x @ self.directions
        logs = torch.cat([projected, -projected], dim=-1) - x.square().sum(-1, keepdim=True) / 2
        return logs.exp() * (2 * self.count) ** -0.5


# -------------------------------------------------------------------------------------------- the command lines


@dataclass(frozen=True)
class CommandLine:
    """One of the original's: which attention, with which argument, which rule, and for how many keys."""

    attention: str = "softmax"
    argument: int = 0
    rule: str = "sum"
    replace: bool = False
    begin: int = 20
    end: int = 20
    step: int = 20
    width: int = 64
    batch: int = 32

    @property
    def label(self) -> str:
        """`dpfp1 sum`, as in the names of the original's logs."""
        if self.attention == "softmax":
            return "softmax cat"
        return f"{self.attention}{self.argument or ''} {self.rule}"

    def numbers(self) -> range:
        return range(self.begin, self.end + 1, self.step)

    def original(self) -> Iterator[Retrieval]:
        """The published protocol; its seed is one, whatever is asked for."""
        slowly = (self.attention, self.rule) == ("tanh", "fwm")
        model = OriginalPairs(self.memory(stabilised=False), self.width)
        for keys in self.numbers():
            task = OriginalOverwriting(keys) if self.replace else OriginalCapacity(keys)
            yield Retrieval(task, model, rate=1e-4 if slowly else 1e-3, batch=128 if slowly else self.batch, seed=1)

    def asked(self, seeds: tuple[int, ...]) -> Iterator[Retrieval]:
        """The same questions, asked rightly."""
        model = ProjectedPairs(self.memory(stabilised=True), self.width)
        for keys in self.numbers():
            task = Overwriting(keys) if self.replace else Capacity(keys)
            for seed in seeds:
                yield Retrieval(task, model, batch=self.batch, seed=seed)

    def memory(self, stabilised: bool) -> Mixer:
        if self.attention == "softmax":
            return SoftmaxAttention(NoPositions(), heads=1)
        features = self.feature_map(stabilised)
        if self.rule == "sum":
            return FastWeight(features, Unscaled(), Sum(), Normalised(), heads=1)
        if self.rule == "ours":
            return FastWeight(features, SumToOne(), Delta(), Plain(), heads=1)
        if self.rule == "fwm":
            return BoundedMemory(features, heads=1)
        raise unknown("rule", self.rule, ["sum", "ours", "fwm"])

    def feature_map(self, stabilised: bool) -> FeatureMap:
        if self.attention in ("dpfp", "favor") and self.argument < 1:
            raise UserError(f"{self.attention} needs an argument of at least 1; found {self.argument}")
        if self.attention == "favor":
            favor = Favor(self.argument, scale=1.0, epsilon=0.0)
            return replace(favor, scale=self.width**-0.25, epsilon=Favor.epsilon) if stabilised else favor
        maps = {"linear": EluPlusOne(), "dpfp": DPFP(self.argument or 1), "tanh": Tanh()}
        if self.attention not in maps:
            raise unknown("attention", self.attention, ["softmax", "favor", *maps])
        return maps[self.attention]


SETTINGS = (
    (
        ("softmax", 0, "sum"),
        ("linear", 0, "sum"),
        *(("dpfp", nu, "sum") for nu in (1, 2, 3)),
        *(("favor", directions, "sum") for directions in (64, 128, 512)),
    ),
    (
        ("dpfp", 1, "sum"),
        ("dpfp", 1, "ours"),
        ("dpfp", 2, "ours"),
        ("linear", 0, "ours"),
        ("favor", 64, "ours"),
        ("favor", 128, "ours"),
        ("tanh", 0, "fwm"),
        ("dpfp", 1, "fwm"),
    ),
)
LINES = tuple(
    CommandLine(*memory, replace=setting == 1, end=(600, 200)[setting])
    for setting, memories in enumerate(SETTINGS)
    for memory in memories
)
