"""Decoding: translations token by token, from the state after all the tokens before.

A hypothesis is a row of the batch. Its state is a value: the rows of those that are followed up are gathered, whichever
mixers the model has, and a page never grows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..batch import Source
from ..spec import Count, NotNegative, Size, Spec
from ..state import rows_of
from .generation import Sampling


class Hypothesis(NamedTuple):
    tokens: list[int]  # without the one that ends it
    log_probability: float
    score: float  # what hypotheses are compared by


class Decoding(Spec):
    """How a translation is looked for; it has at most `growth` × the source's tokens + `extra` tokens, then it ends."""

    growth: float
    extra: int

    @property
    def rows(self) -> int:
        """Hypotheses of a sentence that are followed at once."""
        return 1

    def limits(self, source: Source) -> Tensor:
        """The most tokens that the translation of each sentence may have, `b`."""
        return (self.growth * source.present.sum(1) + self.extra).long()

    @torch.inference_mode()
    def translate(
        self, model: nn.Module, source: Source, end: int, generator: torch.Generator | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses found for each sentence, the best first; `end` is the token that ends one."""
        was_training = model.training
        model.eval()
        try:
            chance = torch.Generator().manual_seed(1) if generator is None else generator
            return self.search(model, source, end, chance)
        finally:
            model.train(was_training)

    def search(self, model: nn.Module, source: Source, end: int, generator: torch.Generator) -> list[list[Hypothesis]]:
        raise NotImplementedError


class OneByOne(Decoding):
    """One hypothesis a sentence, which is never taken back."""

    def choose(self, log_probabilities: Tensor, generator: torch.Generator) -> Tensor:
        """`b tokens` -> `b`"""
        raise NotImplementedError

    def search(self, model: nn.Module, source: Source, end: int, generator: torch.Generator) -> list[list[Hypothesis]]:
        state, limits = model.begin(source), self.limits(source)  # pyright: ignore[reportCallIssue]
        sentences = torch.arange(len(limits))
        found: list[list[int]] = [[] for _ in limits]
        totals, last = [0.0] * len(limits), torch.full_like(limits, end)
        for length in range(int(limits.max()) + 1):
            log_probabilities, state = model.predict(last[:, None], state)  # pyright: ignore[reportCallIssue]
            last = self.choose(log_probabilities, generator).to(limits.device)
            last = torch.where(limits == length, end, last)
            added = log_probabilities.gather(1, last[:, None]).squeeze(1)
            for sentence, token, more in zip(sentences.tolist(), last.tolist(), added.tolist(), strict=True):
                totals[sentence] += more
                found[sentence] += [token] if token != end else []
            going_on = (last != end).nonzero().squeeze(1)
            if not len(going_on):
                break
            if len(going_on) < len(last):
                last, limits, state = last[going_on], limits[going_on], rows_of(state, going_on)
                sentences = sentences[going_on.cpu()]
        return [[Hypothesis(tokens, total, total)] for tokens, total in zip(found, totals, strict=True)]


@dataclass(frozen=True)
class Greedy(OneByOne):
    """The likeliest token each time."""

    growth: NotNegative = 2.0  # tokens of a translation for each of its source, at most
    extra: Count = 10  # … and so many more

    def choose(self, log_probabilities: Tensor, generator: torch.Generator) -> Tensor:
        return log_probabilities.argmax(-1)


@dataclass(frozen=True)
class Sampled(OneByOne):
    """Each token drawn, from the model's own distribution or a sharper one."""

    sampling: Sampling = Sampling(temperature=1.0)
    growth: NotNegative = 2.0  # tokens of a translation for each of its source, at most
    extra: Count = 10  # … and so many more

    def choose(self, log_probabilities: Tensor, generator: torch.Generator) -> Tensor:
        return self.sampling.draw(log_probabilities, generator)


@dataclass(frozen=True)
class BeamSearch(Decoding):
    """The likeliest `beam` beginnings are all followed up; ended ones are compared by log-probability / length^penalty.

    A sentence is done when `beam` of its hypotheses have ended. The token that ends one counts to its length.
    """

    beam: Size = 5
    length_penalty: float = 1.0  # 0: the sum of log-probabilities, which favours the short; 1: their mean
    growth: NotNegative = 2.0  # tokens of a translation for each of its source, at most
    extra: Count = 10  # … and so many more

    @property
    def rows(self) -> int:
        return self.beam

    def search(self, model: nn.Module, source: Source, end: int, generator: torch.Generator) -> list[list[Hypothesis]]:
        beam, limits = self.beam, self.limits(source)
        state = model.begin(source)  # pyright: ignore[reportCallIssue]
        ended: list[list[Hypothesis]] = [[] for _ in limits]
        sentences = torch.arange(len(limits), device=limits.device)  # b, those that are not done
        totals = torch.zeros(len(limits), 1, device=limits.device)  # b beam; of no tokens there is but one beginning
        tokens = limits.new_full((len(limits), 1), end)  # (b beam) t, each row with what it began with
        for length in range(int(limits.max()) + 1):
            log_probabilities, state = model.predict(tokens[:, -1:], state)  # pyright: ignore[reportCallIssue]
            found = best_candidates(log_probabilities, totals, limits[sentences] == length, beam, end)
            ends = found.ends[:, :beam] & found.totals[:, :beam].isfinite()
            owners, beginnings = sentences[ends.nonzero()[:, 0]], tokens[found.parents[:, :beam][ends], 1:]
            for sentence, line, total in zip(
                owners.tolist(), beginnings.tolist(), found.totals[:, :beam][ends].tolist(), strict=True
            ):
                ended[sentence].append(Hypothesis(line, total, total / (length + 1) ** self.length_penalty))
            kept = found.totals.masked_fill(found.ends, -torch.inf).topk(min(beam, found.totals.shape[1]))
            done = torch.tensor([len(ended[sentence]) >= beam for sentence in sentences.tolist()], device=limits.device)
            going_on = (~done & kept.values.isfinite().any(1)).nonzero().squeeze(1)
            if not len(going_on):
                break
            places = kept.indices[going_on]
            parents, last = (z[going_on].gather(1, places).flatten() for z in (found.parents, found.tokens))
            sentences, totals = sentences[going_on], kept.values[going_on]
            tokens, state = torch.cat([tokens[parents], last[:, None]], dim=1), rows_of(state, parents)
        return [sorted(hypotheses, key=lambda one: -one.score) for hypotheses in ended]


class Candidates(NamedTuple):
    """The likeliest ways to go on with the hypotheses of each sentence, the best first."""

    totals: Tensor  # b c, log-probabilities
    parents: Tensor  # b c, rows of the batch
    tokens: Tensor  # b c
    ends: Tensor  # b c, whether the token ends it


def best_candidates(log_probabilities: Tensor, totals: Tensor, must_end: Tensor, beam: int, end: int) -> Candidates:
    """log-probabilities `(b beam) tokens`, totals `b beam`, must_end `b`.

    Twice as many as the beam: if all hypotheses of a sentence could end, as many others would still be there.
    """
    sentences, width = totals.shape
    others = torch.ones(log_probabilities.shape[1], dtype=torch.bool, device=totals.device)
    others[end] = False
    following = log_probabilities.view(sentences, width, -1)
    following = following.masked_fill(must_end[:, None, None] & others, -torch.inf)
    everything = (totals.to(following.dtype)[..., None] + following).flatten(1)
    best = everything.topk(min(2 * beam, everything.shape[1]))
    parents, tokens = best.indices // len(others), best.indices % len(others)
    parents = parents + width * torch.arange(sentences, device=totals.device)[:, None]
    return Candidates(best.values, parents, tokens, tokens == end)
