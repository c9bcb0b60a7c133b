"""Pages that a kernel keeps on chip, written and read token by token; activations; and the way back through both.

A tile is `k v`, or `k g v` for several pages; it is as wide as the next power of two, with zeros beyond the width. KEYS
is 1 where it is `g k v`: the order of its axes decides which threads hold what.

A token's arithmetic is so small that its time is spent waiting. So vectors are loaded three tokens before their turn,
and no sum over a tile waits for another one that it does not need.
"""

import triton
import triton.language as tl
from torch import Tensor

from .elementary import exp, one_by, sigmoid, tanh

CHUNK = 16  # tokens from one page that is kept for backward to the next
NUMBERS = 2048  # of its tiles that a warp holds in backward, 64 registers a thread
MOST_WARPS = 8


def tile(width: int) -> int:
    return max(8, power_of_two(width))


def warps_for(width: int, tiles: int) -> int:
    """No more than the tiles ask for: one warp alone has no barriers."""
    return min(MOST_WARPS, power_of_two(triton.cdiv(tiles * tile(width) ** 2, NUMBERS)))


def power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def kept_pages(memory: Tensor, length: int) -> Tensor:
    """Room for the page after each chunk, `n b h …`, but not the last, which is a result itself."""
    return memory.new_empty((length - 1) // CHUNK, *memory.shape)


@triton.jit
def vector(first, stride, t, length, places, inside):
    """The numbers of one token, at these places after its first one; zeros where there is no such token."""
    return tl.load(first + t * stride + places, mask=inside & (t >= 0) & (t < length), other=0.0)


@triton.jit
def outer(column, row, KEYS: tl.constexpr = 0):
    return tl.expand_dims(column, -1) * tl.expand_dims(row, KEYS)


@triton.jit
def recall(key, page, KEYS: tl.constexpr = 0):
    """keyᵀ page"""
    return tl.sum(tl.expand_dims(key, -1) * page, KEYS)


@triton.jit
def answer(page, row):
    """page · row"""
    return tl.sum(page * tl.expand_dims(row, 0), -1)


@triton.jit
def overlap(query, key, KEYS: tl.constexpr = 0):
    return tl.sum(tl.expand_dims(query * key, -1), KEYS)


@triton.jit
def step(page, key, value, beta, query, KEYS: tl.constexpr = 0):
    """The page after a token, what the query reads of it, and how the value differed from what was there."""
    error = value - recall(key, page, KEYS)
    note = beta * error
    read = recall(query, page, KEYS) + overlap(query, key, KEYS) * note
    return page + outer(key, note, KEYS), read, error


@triton.jit
def step_back(page, of_page, key, error, beta, query, of_read):
    """The page before a token and its gradient; the gradients of query, key, value and β.

    What was added is taken away. That rounds as adding it did, by a share of the largest page on the way, and a page is
    kept for every chunk, so it is never done more than a few times.
    """
    note = beta * error
    of_query = answer(page, of_read)
    of_note = recall(key, of_page) + overlap(query, key) * of_read
    of_value = beta * of_note
    of_page += outer(query, of_read)
    page -= outer(key, note)
    of_key = tl.sum(of_page * tl.expand_dims(note, 0) - page * tl.expand_dims(of_value, 0), -1)
    return page, of_page - outer(key, of_value), of_query, of_key, of_value, tl.sum(of_note * error, -1)


@triton.jit
def activated(x, inside, epsilon, NAME: tl.constexpr):
    """An activation of kernels/activations.py, by its name; zero beyond the width."""
    if NAME == "Softmax":
        x = tl.where(inside, x, -float("inf"))
        y = exp(x - tl.max(x, 0))
        y *= one_by(tl.sum(y, 0) + epsilon)
    elif NAME == "Sigmoid":
        y = sigmoid(x)
    elif NAME == "Tanh":
        y = tanh(x)
    else:
        tl.static_assert(NAME == "Bare")
        y = x
    return tl.where(inside, y, 0.0)


@triton.jit
def activated_back(gradient, y, NAME: tl.constexpr):
    """The gradient of x, from that of y = activated(x)."""
    if NAME == "Softmax":
        of_x = y * (gradient - tl.sum(gradient * y, 0))
    elif NAME == "Sigmoid":
        of_x = gradient * (1 - y) * y
    elif NAME == "Tanh":
        of_x = gradient * (1 - y * y)
    else:
        tl.static_assert(NAME == "Bare")
        of_x = gradient
    return of_x
