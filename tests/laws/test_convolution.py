"""The laws of a short convolution: one answer in every form, for a text as a whole or in pieces."""

import pytest
import torch
from closeness import close
from torch import Tensor

from palimpsest.kernels import BackendRefused, short_convolution
from palimpsest.kernels.convolution import CONVOLUTION_BACKENDS, choose_backend
from palimpsest.memory.convolutions import ShortConvolution

CHANNELS = 3
EXACT = [name for name in CONVOLUTION_BACKENDS if name != "fused"]  # whose laws are in tests/fused


def draw(size: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (2, length, CHANNELS), (2, size - 1, CHANNELS), (CHANNELS, size)
    x, recent, taps = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return x, recent, taps


def by_hand(x: Tensor, recent: Tensor, taps: Tensor) -> Tensor:
    """Token by token, back to the first of them and then to what is remembered."""
    tokens = []
    for t in range(x.shape[1]):
        last = [x[:, t - back] if back <= t else recent[:, t - back] for back in range(taps.shape[1])]
        tokens.append(sum(z * taps[:, -1 - back] for back, z in enumerate(last)))
    return torch.stack(tokens, dim=1)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("size, length", [(1, 5), (2, 1), (4, 2), (4, 9), (9, 5)])
def test_every_form_is_the_sum(backend, size, length):
    given = draw(size, length)
    found, expected = short_convolution(*given, backend=backend), by_hand(*given)
    close(found, expected)
    slope = torch.randn_like(expected)
    gradients = (torch.autograd.grad(y, given, slope, materialize_grads=True) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        close(one, other)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("cut", [1, 2, 7])
def test_a_text_in_pieces_is_the_text(size, cut):
    layer = ShortConvolution(size).build(CHANNELS)
    x, recent, taps = draw(size, 9)
    layer.taps.data.copy_(taps)
    whole, last = layer(x, recent)
    first, between = layer(x[:, :cut], recent)
    second, end = layer(x[:, cut:], between)
    close(torch.cat([first, second], dim=1), whole)
    close(end, last)


def test_what_is_remembered_does_not_hold_the_text_it_is_the_end_of():
    x, recent, _ = draw(4, 100)
    _, last = ShortConvolution(4).build(CHANNELS)(x, recent)
    assert last.untyped_storage().nbytes() < x.untyped_storage().nbytes() / 10


def test_autocast_does_not_reach_it():
    given = [z.float() for z in draw(4, 9)]
    with torch.autocast("cpu"):
        found = short_convolution(*given)
    assert torch.equal(found, short_convolution(*given))


def test_what_cannot_be_done_is_said_in_words():
    x, recent, taps = draw(4, 9)
    assert choose_backend(x, recent, taps) == "plain"
    with pytest.raises(ValueError, match="recent: expected 3 tokens for 4 taps, not 2"):
        short_convolution(x, recent[:, 1:], taps)
    with pytest.raises(ValueError, match="taps: expected the axes channels=3 size"):
        short_convolution(x, recent, taps[:2])
    with pytest.raises(BackendRefused, match=r"no backend 'fast'; there are reference, plain, fused"):
        short_convolution(x, recent, taps, backend="fast")
