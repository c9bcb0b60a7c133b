"""Keys whose sizes lie too far apart for numbers, on one page.

What a relative feature map leaves out of a key, exp(height), is put back as the weight of what is written under it. The
page is kept in units of the highest key so far and fades when a higher one comes, by exp(old − new): what that makes
too small for a number could not have been seen beside the new key anyway.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..gates import Gates


def weighed(gates: Gates, heights: Tensor, peak: Tensor, starts: Tensor | None = None) -> tuple[Gates, Tensor]:
    """Gates for keys of these heights, `b t h`, on a page in units of exp(peak), `b h`; and the peak after them.

    The peak of a fresh page is −∞. Where `starts` `b t` is true the page is fresh again, and is to be wiped.
    """
    peaks = running_maximum(heights.to(peak.dtype), peak, starts)
    before = torch.cat([peak[:, None], peaks[:, :-1]], dim=1)
    fall = torch.where(before == -torch.inf, 0.0, before - peaks)
    weights = (heights - peaks).exp()
    return weighed_by(faded_by(gates, fall), weights), peaks[:, -1]


def faded_by(gates: Gates, fall: Tensor) -> Gates:
    if gates.log_keep is None:
        return gates._replace(log_keep=fall)
    return gates._replace(log_keep=gates.log_keep + (fall if gates.log_keep.ndim == 3 else fall[..., None]))


def weighed_by(gates: Gates, weights: Tensor) -> Gates:
    return gates._replace(write=weights if gates.write is None else gates.write * weights)


def running_maximum(heights: Tensor, peak: Tensor, starts: Tensor | None) -> Tensor:
    """`b t h`, of each document by itself; the first goes on from `peak`, `b h`."""
    heights = torch.cat([peak[:, None], heights], dim=1)
    if starts is None:
        return heights.cummax(1).values[:, 1:]
    # among ranks, which are whole: raising those of later documents above all earlier ones rounds nothing
    documents = pad(starts.cumsum(1), (1, 0))[..., None]
    ranks = heights.argsort(dim=1).argsort(dim=1) + heights.shape[1] * documents
    return heights.gather(1, ranks.cummax(1).indices)[:, 1:]
