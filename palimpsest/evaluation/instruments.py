"""Instruments: what each head of each fast weight memory does with a text, read from a fresh page.

A mixer that can be looked into tells with `address(x, state)` what it asks of its page and what it writes on it.
All else follows, here in float64 and all tokens at once: with note = what a token adds under its key,

    note_i = write_i value_i − erase_i Σ_{j<i} kept_ij (key_i · key_j) note_j
    read_i = Σ_{j≤i} kept_ij (query_i · key_j) note_j = Σ_j attention_ij value_j
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import solve_triangular

from ..errors import UserError
from ..gates import Gates

RANKINGS = 16  # times at which the page is looked at
LONGEST = 1024  # tokens: of every head there are several numbers for each pair of them, and the report has one


@dataclass(frozen=True)
class Spread:
    """A gate over all tokens."""

    mean: float
    least: float
    largest: float

    @classmethod
    def of(cls, gate: Tensor | None) -> "Spread | None":
        return None if gate is None else cls(gate.mean().item(), gate.min().item(), gate.max().item())


@dataclass(frozen=True)
class HeadReadings:
    """What one head does. A gate that the rule does not have is None."""

    keep: Spread | None
    erase: Spread | None
    write: Spread | None
    write_norm: float  # of what is written, mean over tokens: |key| |write · value|
    erase_norm: float  # of what is taken away: |key| |erase · recall|
    collisions: float  # mean over tokens of the largest cosine, of either sign, between a key and an earlier one
    ranks: tuple[float, ...]  # effective rank of the page, as it grows
    attention: Tensor  # t t, what each token draws from each; where a token writes several times, from all its values

    def to_json(self) -> dict[str, Any]:
        """Attention as whole per cents of the largest weight of each row: a picture, for which that is enough."""
        shares = 100 * self.attention / self.attention.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        rows = [row[: i + 1] for i, row in enumerate(shares.round().int().tolist())]
        return asdict(self) | {"attention": rows}


@dataclass(frozen=True)
class LayerReadings:
    layer: int  # counted from one
    heads: tuple[HeadReadings, ...]


@dataclass(frozen=True)
class Inspection:
    tokens: tuple[str, ...]
    ranked_after: tuple[int, ...]  # tokens, for the ranks of each head
    layers: tuple[LayerReadings, ...]  # those that have a memory

    def to_json(self) -> dict[str, Any]:
        layers = [{"layer": one.layer, "heads": [head.to_json() for head in one.heads]} for one in self.layers]
        return {"tokens": list(self.tokens), "ranked_after": list(self.ranked_after), "layers": layers}


@torch.no_grad()
def read_instruments(model: nn.Module, ids: Tensor, pieces: tuple[str, ...]) -> Inspection:
    """The readings of a language model over one text, ids `t`; pieces are its tokens as people read them."""
    if len(ids) > LONGEST:
        raise UserError(
            f"{len(ids):,} tokens are too many to look at, for every head has numbers for each pair of them: "
            f"ask for a length of at most {LONGEST:,}"
        )
    times = ranked_after(len(ids))
    layers = []
    for layer, address in enumerate(overheard(model, ids), start=1):
        if address is not None:
            layers.append(LayerReadings(layer, tuple(HeadPage(*head).readings(times) for head in heads_of(address))))
    if not layers:
        raise UserError("no layer of this model has a fast weight memory that could be looked into")
    return Inspection(pieces, times, tuple(layers))


def ranked_after(length: int) -> tuple[int, ...]:
    """Times evenly apart, the last at the end."""
    return tuple(sorted({length * i // RANKINGS for i in range(1, RANKINGS + 1)} - {0}))


def overheard(model: Any, ids: Tensor) -> list[Any]:
    """What reaches each layer's page while the model reads; None where there is none."""
    addresses: dict[nn.Module, Any] = {}

    def listen(mixer: Any, arguments: tuple[Any, ...]) -> None:
        addresses[mixer] = mixer.address(*arguments)

    mixers = [block.mixer for block in model.stack()]
    hooks = [mixer.register_forward_pre_hook(listen) for mixer in mixers if hasattr(mixer, "address")]
    try:
        model.predict(ids[None], model.initial_state(1))
    finally:
        for hook in hooks:
            hook.remove()
    return [addresses.get(mixer) for mixer in mixers]


def heads_of(address: Any) -> list[tuple[Tensor, Tensor, Tensor, Gates, int]]:
    """Queries, keys, values and gates of each head of the only row, and how often each token writes."""
    queries, keys, values = (x[0].double().cpu() for x in (address.queries, address.keys, address.values))
    gates: Gates = address.gates.opened().each(lambda gate: gate[0].double().cpu())
    writes = len(keys) // address.heard.shape[1]
    return [
        (
            queries[:, head],
            keys[:, head],
            values[:, head],
            gates.each(lambda gate, head=head: gate[:, head]),
            writes,
        )
        for head in range(keys.shape[1])
    ]


class HeadPage:
    """The page of one head: queries, keys `t k`, values `t v`, gates `t`, where each of the t is one write."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, gates: Gates, writes: int = 1):
        self.keys, self.values, self.gates, self.writes = keys, values, gates, writes
        log_kept = torch.zeros(len(keys), 1) if gates.log_keep is None else gates.log_keep.reshape(len(keys), -1)
        self.log_kept = log_kept.to(keys).cumsum(0)
        self.written = values if gates.write is None else gates.write[:, None] * values
        self.weights = self.overlaps(queries).tril()
        self.system = None if gates.erase is None else (gates.erase[:, None] * self.overlaps(keys)).tril(-1)
        self.notes = self.written if self.system is None else solve(self.system, self.written)

    def overlaps(self, left: Tensor) -> Tensor:
        """left_i · key_j, dimmed by all that faded between j and i: right where j is not later than i."""
        if self.log_kept.shape[1] > 1:
            return torch.einsum("ik,ijk,jk->ij", left, self.kept(), self.keys)
        return self.kept().squeeze(-1) * (left @ self.keys.mT)

    def kept(self) -> Tensor:
        """`t t 1|k`, what is left at the first of what was there at the second."""
        return (self.log_kept[:, None] - self.log_kept).clamp(max=0).exp()

    def attention(self) -> Tensor:
        """`t t`, reads = attention · values."""
        weights = self.weights if self.system is None else solve(self.system, self.weights, left=False)
        return weights if self.gates.write is None else weights * self.gates.write

    def page(self, count: int) -> Tensor:
        """`k v`, after so many writes."""
        kept = (self.log_kept[count - 1] - self.log_kept[:count]).clamp(max=0).exp()
        return (kept * self.keys[:count]).mT @ self.notes[:count]

    def readings(self, times: tuple[int, ...]) -> HeadReadings:
        log_keep, erase, write = self.gates[:3]
        keep = None if log_keep is None else log_keep[:: self.writes].exp()  # once a token
        lengths = self.keys.norm(dim=-1)
        tokens = len(self.keys) // self.writes
        drawn = self.attention()[self.writes - 1 :: self.writes].reshape(tokens, tokens, self.writes).sum(-1)
        return HeadReadings(
            Spread.of(keep),
            Spread.of(erase),
            Spread.of(write),
            write_norm=(lengths * self.written.norm(dim=-1)).mean().item(),
            erase_norm=(lengths * (self.written - self.notes).norm(dim=-1)).mean().item(),
            collisions=collisions(self.keys),
            ranks=tuple(effective_rank(self.page(self.writes * time)) for time in times),
            attention=drawn,
        )


def solve(system: Tensor, known: Tensor, left: bool = True) -> Tensor:
    """(1 + system)⁻¹ known, or from the right."""
    return solve_triangular(system, known, upper=False, left=left, unitriangular=True)


def effective_rank(page: Tensor) -> float:
    """exp of the entropy of the singular values: r where r of them are equal and the others zero."""
    sizes = torch.linalg.svdvals(page)
    if not sizes.any():
        return 0.0
    shares = sizes / sizes.sum()
    return torch.special.entr(shares).sum().exp().item()


def collisions(keys: Tensor) -> float:
    """0 where every key is orthogonal to all before it, 1 where every key has been there before."""
    if len(keys) < 2:
        return 0.0
    directions = nn.functional.normalize(keys, dim=-1)
    cosines = (directions @ directions.mT).abs().tril(-1)
    return cosines[1:].amax(-1).mean().item()
