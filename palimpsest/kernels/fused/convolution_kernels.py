"""A short convolution and its gradients, for CUDA: every number is read once, and written once.

A program owns some channels of a run of tokens of one row and walks through it, from its start or back from its end,
some tokens at a time. A thread has the same few channels of every token: what tokens have to do with each other, and
what they add to the gradient of the taps, is all in its registers.

Tensors come as tuples: a pointer, and the steps from row to row and from token to token. Channels lie side by side.
"""

# ruff: noqa: RUF005 (Triton adds tuples, and does not unpack them)

import triton
import triton.language as tl


@triton.jit
def place_of(runs, channels, CHANNELS: tl.constexpr):
    """The row, the run of it, and the channels that a program owns."""
    tiles = tl.cdiv(channels, CHANNELS)
    number = tl.program_id(0)
    line = number // tiles
    return (line // runs).to(tl.int64), line % runs, number % tiles * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def load_taps(taps, channel, there, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Each tap by itself; they are read as they lie, those of a channel side by side."""
    column = tl.arange(0, COLUMNS)
    mask = there[:, None] & (column < SIZE)[None, :]
    every = tl.load(taps + channel[:, None] * SIZE + column[None, :], mask=mask, other=0.0).to(tl.float32)
    found = ()
    for tap in tl.static_range(SIZE):
        found = found + (tl.sum(tl.where((column == tap)[None, :], every, 0.0), 1),)
    return found


@triton.jit
def at_token(tensor, row, token):
    return tensor[0] + row * tensor[1] + tl.cast(token, tl.int64) * tensor[2]


@triton.jit
def load_token(tensor, row, token, channel, there):
    return tl.load(at_token(tensor, row, token) + channel, mask=there, other=0.0).to(tl.float32)


@triton.jit
def store_token(tensor, row, token, channel, there, value):
    tl.store(at_token(tensor, row, token) + channel, value.to(tensor[0].dtype.element_ty), mask=there)


@triton.jit
def forward_kernel(
    x, recent, taps, y, length, channels, runs, run,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, number, channel = place_of(runs, channels, CHANNELS)
    there = channel < channels
    start = number * run
    seen = ()
    for before in tl.static_range(SIZE - 1):
        remembered = load_token(recent, row, before, channel, there & (start == 0))
        token = start - (SIZE - 1) + before
        seen = seen + (remembered + load_token(x, row, token, channel, there & (start > 0)),)
    weights = load_taps(taps, channel, there, SIZE, COLUMNS)
    for first in range(start, tl.minimum(start + run, length), TOKENS):
        for step in tl.static_range(TOKENS):
            seen = seen + (load_token(x, row, first + step, channel, there & (first + step < length)),)
        for step in tl.static_range(TOKENS):
            total = weights[0] * seen[step]
            for tap in tl.static_range(1, SIZE):
                total += weights[tap] * seen[step + tap]
            store_token(y, row, first + step, channel, there & (first + step < length), total)
        seen = seen[TOKENS:]


@triton.jit
def slope_of(slopes, weights, AT: tl.constexpr, SIZE: tl.constexpr):
    """Of a token, from those of the results it has a part in: its own, which is at AT, and the ones after it."""
    total = tl.zeros_like(weights[0])
    for back in tl.static_range(SIZE):
        if AT + back >= 0:
            total += weights[SIZE - 1 - back] * slopes[AT + back]
    return total


@triton.jit
def with_token(sums, value, slopes, AT: tl.constexpr, SIZE: tl.constexpr):
    """What a token adds to the slopes of the taps."""
    found = ()
    for tap in tl.static_range(SIZE):
        total = sums[tap]
        if AT + SIZE - 1 - tap >= 0:
            total += value * slopes[AT + SIZE - 1 - tap]
        found = found + (total,)
    return found


@triton.jit
def backward_kernel(
    grad, x, recent, taps, of_x, of_recent, of_taps, length, channels, runs, run,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Last tokens first. What a run adds to the gradient of the taps is `row, run, tap, channel`."""
    row, number, channel = place_of(runs, channels, CHANNELS)
    there = channel < channels
    start = number * run
    end = tl.minimum(start + run, length)
    slopes, sums = (), ()
    for after in tl.static_range(SIZE - 1):
        slopes = slopes + (load_token(grad, row, end + after, channel, there & (end + after < length)),)
    for _ in tl.static_range(SIZE):
        sums = sums + (tl.zeros((CHANNELS,), tl.float32),)
    weights = load_taps(taps, channel, there, SIZE, COLUMNS)
    tiles = tl.cdiv(end - start, TOKENS)
    for tile in range(tiles):
        first = start + (tiles - 1 - tile) * TOKENS
        values, these = (), ()
        for step in tl.static_range(TOKENS):
            here = there & (first + step < length)
            these = these + (load_token(grad, row, first + step, channel, here),)
            values = values + (load_token(x, row, first + step, channel, here),)
        slopes = these + slopes
        for step in tl.static_range(TOKENS):
            sums = with_token(sums, values[step], slopes, step, SIZE)
            here = there & (first + step < length)
            store_token(of_x, row, first + step, channel, here, slope_of(slopes, weights, step, SIZE))
        slopes = slopes[: SIZE - 1]
    opening = there & (start == 0)
    for before in tl.static_range(SIZE - 1):
        remembered = load_token(recent, row, before, channel, opening)
        sums = with_token(sums, remembered, slopes, before - (SIZE - 1), SIZE)
        store_token(of_recent, row, before, channel, opening, slope_of(slopes, weights, before - (SIZE - 1), SIZE))
    of_taps += (row * runs + number) * SIZE * channels
    for tap in tl.static_range(SIZE):
        tl.store(of_taps + tap * channels + channel, sums[tap], mask=there)
