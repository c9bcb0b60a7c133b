"""The nats of targets and their gradients, for CUDA; no logit is ever in memory.

Rows of hidden states and tokens of the vocabulary are cut into tiles. `partition_kernel` and `hidden_kernel` own a
block of rows and walk through a run of token tiles, `weight_kernel` owns a token tile and walks through blocks of
rows; all three make the logits they need. Where there are few blocks, the vocabulary is cut into as many runs as keep
the device busy: how many rows count, and so how many runs there are, is known to the device alone. What the runs of a
block leave is put together by `nats_kernel` and `gather_kernel`, always in the same order.

Logits, and logarithms of their sums, are to base two.
"""

import triton
import triton.language as tl

from .elementary import LOG2E

LN2 = tl.constexpr(0.6931471805599453)
SHORTEST = tl.constexpr(4)  # run of token tiles

# ------------------------------------------------------------------------------------------ what all kernels share
# Matrices come as tuples: a pointer, and the step from row to row. So do rows that are picked: the order in which
# they come first, and how many they are.


@triton.jit
def count_of(picked, rows):
    count = rows
    if picked is not None:
        count = tl.load(picked[1]).to(tl.int32)
    return count


@triton.jit
def rows_at(picked, places, count):
    """The rows that stand at these places among those that count."""
    rows = places.to(tl.int64)
    if picked is not None:
        rows = tl.load(picked[0] + places, mask=places < count, other=0)
    return rows


@triton.jit
def runs_of(blocks, tiles, programs):
    """Into how many runs the vocabulary is cut; blocks × runs are never more than the programs."""
    return tl.minimum(tl.maximum(programs // tl.maximum(blocks, 1), 1), tl.cdiv(tiles, SHORTEST))


@triton.jit
def load_vectors(matrix, rows, there, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """The vectors of these rows `row lane`; zeros where there are none."""
    lanes = tl.arange(0, LANES)
    at = matrix[0] + rows[:, None] * matrix[1] + lanes[None, :]
    return tl.load(at, mask=there[:, None] & (lanes < WIDTH)[None, :], other=0.0)


@triton.jit
def levels(bias, token, tokens):
    """What is added to each token's logit; minus infinity where there is no token."""
    if bias is not None:
        level = tl.load(bias + token, mask=token < tokens, other=-float("inf")).to(tl.float32) * LOG2E
    else:
        level = tl.where(token < tokens, 0.0, -float("inf"))
    return level


# ---------------------------------------------------------------------------------------------------------- forward


@triton.jit
def partition_kernel(
    hidden,
    weight,
    bias,
    picked,
    largest,
    totals,
    rows,
    tokens,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The largest logit of a run and the sum of all relative to it, for each row of a block."""
    number = tl.program_id(0)
    count = count_of(picked, rows)
    blocks, tiles = tl.cdiv(count, ROWS), tl.cdiv(tokens, TOKENS)
    runs = runs_of(blocks, tiles, tl.num_programs(0))
    if number >= blocks * runs:
        return
    block, run = number % blocks, number // blocks
    line = tl.arange(0, ROWS)
    places = block * ROWS + line
    state = load_vectors(hidden, rows_at(picked, places, count), places < count, WIDTH, LANES)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for tile in range(run * tiles // runs, (run + 1) * tiles // runs):
        token = tile * TOKENS + tl.arange(0, TOKENS)
        vector = load_vectors(weight, token, token < tokens, WIDTH, LANES)
        logits = tl.dot(state, tl.trans(vector), input_precision=PRECISION) * LOG2E
        logits += levels(bias, token, tokens)[None, :]
        now = tl.maximum(most, tl.max(logits, 1))
        total = total * tl.exp2(most - now) + tl.sum(tl.exp2(logits - now[:, None]), 1)
        most = now
    tl.store(largest + number * ROWS + line, most)
    tl.store(totals + number * ROWS + line, total)


@triton.jit
def nats_kernel(
    hidden,
    weight,
    bias,
    targets,
    picked,
    largest,
    totals,
    nats,
    partition,
    rows,
    tokens,
    programs,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Puts the runs of a block together; the target's logit is a product of two vectors."""
    block = tl.program_id(0)
    count = count_of(picked, rows)
    blocks = tl.cdiv(count, ROWS)
    if block >= blocks:
        return
    runs = runs_of(blocks, tl.cdiv(tokens, TOKENS), programs)
    line = tl.arange(0, ROWS)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, runs, DEPTH):
        run = (first + tl.arange(0, DEPTH))[:, None]
        at = (run * blocks + block) * ROWS + line[None, :]
        peaks = tl.load(largest + at, mask=run < runs, other=-float("inf"))
        now = tl.maximum(most, tl.max(peaks, 0))
        added = tl.load(totals + at, mask=run < runs, other=0.0) * tl.exp2(peaks - now[None, :])
        total = total * tl.exp2(most - now) + tl.sum(added, 0)
        most = now
    sums = most + tl.log2(total)
    places = block * ROWS + line
    there = places < count
    row = rows_at(picked, places, count)
    target = tl.load(targets + row, mask=there, other=0)
    known = there & (target >= 0) & (target < tokens)
    state = load_vectors(hidden, row, there, WIDTH, LANES).to(tl.float32)
    vector = load_vectors(weight, target, known, WIDTH, LANES).to(tl.float32)
    logit = tl.where(known, tl.sum(state * vector, 1), float("nan"))  # nothing is read where there is no token
    if bias is not None:
        logit += tl.load(bias + target, mask=known, other=0.0).to(tl.float32)
    tl.store(partition + row, sums, mask=there)
    tl.store(nats + row, sums * LN2 - logit, mask=there)


# --------------------------------------------------------------------------------------------------------- backward
# Of a row whose nats have a gradient of one, a logit's is
# exp(logit − partition) · (1 + 2 z_loss partition) − (1 − smoothing) where it is the target's − smoothing / tokens.


@triton.jit
def hidden_kernel(
    hidden,
    weight,
    bias,
    targets,
    picked,
    partition,
    sums,
    z_loss,
    smoothing,
    rows,
    tokens,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What a run adds to the gradients of a block's hidden states, if those of their nats were one."""
    number = tl.program_id(0)
    count = count_of(picked, rows)
    blocks, tiles = tl.cdiv(count, ROWS), tl.cdiv(tokens, TOKENS)
    runs = runs_of(blocks, tiles, tl.num_programs(0))
    if number >= blocks * runs:
        return
    block, run = number % blocks, number // blocks
    line, lanes = tl.arange(0, ROWS), tl.arange(0, LANES)
    places = block * ROWS + line
    there = places < count
    row = rows_at(picked, places, count)
    state = load_vectors(hidden, row, there, WIDTH, LANES)
    target = tl.load(targets + row, mask=there, other=-1).to(tl.int32)
    norm = tl.load(partition + row, mask=there, other=0.0)
    scale = 1 + 2 * z_loss * LN2 * norm
    found = tl.zeros((ROWS, LANES), tl.float32)
    for tile in range(run * tiles // runs, (run + 1) * tiles // runs):
        token = tile * TOKENS + tl.arange(0, TOKENS)
        vector = load_vectors(weight, token, token < tokens, WIDTH, LANES)
        logits = tl.dot(state, tl.trans(vector), input_precision=PRECISION) * LOG2E
        logits += levels(bias, token, tokens)[None, :]
        slopes = tl.exp2(logits - norm[:, None]) * scale[:, None] - smoothing / tokens
        slopes = tl.where(token[None, :] == target[:, None], slopes - (1 - smoothing), slopes)
        found = tl.dot(slopes.to(vector.dtype), vector, found, input_precision=PRECISION)
    at = sums + (number * ROWS + line)[:, None] * WIDTH + lanes[None, :]
    tl.store(at, found, mask=there[:, None] & (lanes < WIDTH)[None, :])


@triton.jit
def gather_kernel(
    sums,
    picked,
    grad,
    of_hidden,
    rows,
    tokens,
    programs,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    SOME: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Adds up what the runs of a block left for some of its rows."""
    count = count_of(picked, rows)
    places = tl.program_id(0) * SOME + tl.arange(0, SOME)
    if tl.program_id(0) * SOME >= count:
        return
    blocks = tl.cdiv(count, ROWS)
    runs = runs_of(blocks, tl.cdiv(tokens, TOKENS), programs)
    lanes = tl.arange(0, LANES)
    there = (places < count)[:, None] & (lanes < WIDTH)[None, :]
    found = tl.zeros((SOME, LANES), tl.float32)
    for first in range(0, runs, DEPTH):
        run = (first + tl.arange(0, DEPTH))[:, None]
        slot = (run * blocks + places // ROWS) * ROWS + places % ROWS
        at = sums + slot[:, :, None] * WIDTH + lanes[None, None, :]
        found += tl.sum(tl.load(at, mask=(run < runs)[:, :, None] & there[None, :, :], other=0.0), 0)
    row = rows_at(picked, places, count)
    found *= tl.load(grad + row, mask=places < count, other=0.0)[:, None]
    at = of_hidden + row[:, None] * WIDTH + lanes[None, :]
    tl.store(at, found.to(of_hidden.dtype.element_ty), mask=there)


@triton.jit
def weight_kernel(
    hidden,
    weight,
    bias,
    targets,
    picked,
    partition,
    grad,
    of_weight,
    of_bias,
    z_loss,
    smoothing,
    rows,
    tokens,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What some blocks of rows add to the gradients of a token tile. Logits have tokens as rows here."""
    tile, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    count = count_of(picked, rows)
    blocks = tl.cdiv(count, ROWS)
    token, lanes = tile * TOKENS + tl.arange(0, TOKENS), tl.arange(0, LANES)
    vector = load_vectors(weight, token, token < tokens, WIDTH, LANES)
    level = levels(bias, token, tokens)
    found = tl.zeros((TOKENS, LANES), tl.float32)
    found_of_bias = tl.zeros((TOKENS,), tl.float32)
    for block in range(part * blocks // parts, (part + 1) * blocks // parts):
        places = block * ROWS + tl.arange(0, ROWS)
        there = places < count
        row = rows_at(picked, places, count)
        state = load_vectors(hidden, row, there, WIDTH, LANES)
        target = tl.load(targets + row, mask=there, other=-1).to(tl.int32)
        slope = tl.load(grad + row, mask=there, other=0.0)
        norm = tl.load(partition + row, mask=there, other=0.0)
        scale = slope * (1 + 2 * z_loss * LN2 * norm)
        norm = tl.where(there, norm, float("inf"))  # no row, no weight
        logits = tl.dot(vector, tl.trans(state), input_precision=PRECISION) * LOG2E + level[:, None]
        slopes = tl.exp2(logits - norm[None, :]) * scale[None, :] - (slope * (smoothing / tokens))[None, :]
        own = slopes - (slope * (1 - smoothing))[None, :]
        slopes = tl.where(token[:, None] == target[None, :], own, slopes)
        found = tl.dot(slopes.to(state.dtype), state, found, input_precision=PRECISION)
        if bias is not None:
            found_of_bias += tl.sum(slopes, 1)
    at = part * tokens + token
    there = (token < tokens)[:, None] & (lanes < WIDTH)[None, :]
    vectors = of_weight + at.to(tl.int64)[:, None] * WIDTH + lanes[None, :]
    tl.store(vectors, found.to(of_weight.dtype.element_ty), mask=there)
    if bias is not None:
        tl.store(of_bias + at, found_of_bias.to(of_bias.dtype.element_ty), mask=token < tokens)
