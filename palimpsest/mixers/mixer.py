"""What every mixer is.

A mixer is built for a width and reads `b t d`. It owns the norm of its input (None where the block norms
elsewhere), because a cache of raw hidden states has to be normed together with the new tokens.

State goes in by argument and comes out by return; None is the fresh page. A mixer never detaches it.
The laws, held for every variant in tests/laws:

    split       cutting a segment anywhere and carrying the state changes nothing, where `segment_invariant` says so
    causality   the future is not read
    rows        rows of a batch do not mix
    packing     documents packed into one segment are read as if each were alone, where `packs` says so
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..spec import Spec
from ..state import State, map_state


class Mixer(Spec):
    @property
    def segment_invariant(self) -> bool:
        """Whether it does not matter how a text is cut into segments."""
        return True

    @property
    def remembers(self) -> bool:
        """Whether anything of a segment is left for the next."""
        return True

    @property
    def packs(self) -> bool:
        """Whether a segment may hold several documents."""
        return True

    def remembering(self, memory: int, same_length: bool, clamp: int | None, extra: int) -> "Mixer":
        """The same mixer, to be used with so long a memory of hidden states; itself where there is no such memory."""
        return self

    def build(self, width: int, norm: nn.Module | None = None) -> "MixerModule":
        raise NotImplementedError


class MixerModule(nn.Module):
    def initial_state(self, batch: int) -> State:
        """The fresh page for `batch` rows."""
        raise NotImplementedError

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        raise NotImplementedError

    def packed(self, x: Tensor, starts: Tensor | None, state: State | None = None) -> tuple[Tensor, State]:
        """The same for rows of several documents: where `starts` `b t` is true, one begins on a fresh page.

        Here the segment is cut wherever a document begins in any row, for those that must go token by token anyway.
        """
        if starts is None:
            return self(x, state)
        fresh = self.initial_state(len(x))
        state, reads = fresh if state is None else state, []
        cuts = sorted({0, *starts.any(0).nonzero().flatten().tolist(), x.shape[1]})
        for first, last in pairwise(cuts):
            state = map_state(lambda old, new, now=starts[:, first]: choose_rows(now, new, old), state, fresh)
            read, state = self(x[:, first:last], state)
            reads.append(read)
        return torch.cat(reads, dim=1), state


def choose_rows(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The rows of `one` where `chosen` `b` is true, those of `other` elsewhere."""
    return torch.where(chosen.view(-1, *[1] * (one.ndim - 1)), one, other)


def split_width(width: int, heads: int) -> int:
    """The width of one head."""
    if width % heads:
        raise UserError(f"a width of {width} cannot be shared by {heads} heads: choose a width that {heads} divides")
    return width // heads
