"""The Recurrent Delta Net, one launch there and one back: a program takes the tokens of one row and head, on chip."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..precision import full_precision
from .elementary import sigmoid, tanh
from .launching import ALWAYS, in_line
from .pages import (
    CHUNK,
    activated,
    activated_back,
    answer,
    kept_pages,
    recall,
    step,
    step_back,
    tile,
    vector,
    warps_for,
)


def recurrent_delta(
    inputs: Tensor, weights: Tensor, memory: Tensor, read: Tensor, epsilon: float, warps: int | None = None
) -> tuple[Tensor, Tensor]:
    """As the door, with the softmax' epsilon; weights, memory and read are float32."""
    warps = warps_for(memory.shape[-1], tiles=5) if warps is None else warps
    reads, after, *_ = there(inputs, weights, memory, read, epsilon, warps)
    return reads, after


@triton.jit(do_not_specialize=["length", "heads"])
def forward_kernel(
    inputs,
    weights,
    memory,
    read,
    reads,
    after,
    heards,
    queries,
    keys,
    betas,
    errors,
    kept,
    input_strides,
    length,
    heads,
    epsilon,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number = tl.arange(0, TILE)
    inside = number < WIDTH
    square, in_square = number[:, None] * WIDTH + number[None, :], inside[:, None] & inside[None, :]
    page = tl.load(memory + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    said = tl.load(read + program * WIDTH + number, mask=inside, other=0.0)
    for_query, for_key, for_value, for_logit = heads_weights(weights, head, number, inside, WIDTH)
    inputs += row * input_strides[0] + head * input_strides[2]
    token = row * length * heads + head
    now = given_token(inputs, input_strides[1], 0, length, number, inside, WIDTH)
    next = given_token(inputs, input_strides[1], 1, length, number, inside, WIDTH)
    later = given_token(inputs, input_strides[1], 2, length, number, inside, WIDTH)
    for t in range(length):
        query, key, value, logit = now
        now = next
        next = later
        later = given_token(inputs, input_strides[1], t + 3, length, number, inside, WIDTH)
        heard = tanh(said)
        query = activated(query.to(tl.float32) + answer(for_query, heard), inside, epsilon, "Softmax")
        key = activated(key.to(tl.float32) + answer(for_key, heard), inside, epsilon, "Softmax")
        value = value.to(tl.float32) + recall(heard, for_value)
        beta = sigmoid(logit.to(tl.float32) + tl.sum(heard * for_logit, 0))
        page, said, error = step(page, key, value, beta, query)
        at = (token + t * heads) * WIDTH + number
        tl.store(heards + at, heard, mask=inside)
        tl.store(queries + at, query, mask=inside)
        tl.store(keys + at, key, mask=inside)
        tl.store(errors + at, error, mask=inside)
        tl.store(betas + token + t * heads, beta)
        tl.store(reads + at, said.to(reads.dtype.element_ty), mask=inside)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            tl.store(kept + (t // CHUNK * programs + program) * WIDTH * WIDTH + square, page, mask=in_square)
    tl.store(after + program * WIDTH * WIDTH + square, page, mask=in_square)


@triton.jit
def heads_weights(weights, head, number, inside, WIDTH: tl.constexpr):
    """Of queries and keys turned, `x k`, so that what they make lies as a page needs it; of values `k v`."""
    weights += head * WIDTH * (3 * WIDTH + 1)
    in_square = inside[:, None] & inside[None, :]
    turned = weights + number[None, :] * (3 * WIDTH + 1) + number[:, None]
    straight = weights + number[:, None] * (3 * WIDTH + 1) + number[None, :]
    return (
        tl.load(turned, mask=in_square, other=0.0),
        tl.load(turned + WIDTH, mask=in_square, other=0.0),
        tl.load(straight + 2 * WIDTH, mask=in_square, other=0.0),
        tl.load(weights + number * (3 * WIDTH + 1) + 3 * WIDTH, mask=inside, other=0.0),
    )


@triton.jit
def given_token(inputs, stride, t, length, number, inside, WIDTH: tl.constexpr):
    return (
        vector(inputs, stride, t, length, number, inside),
        vector(inputs + WIDTH, stride, t, length, number, inside),
        vector(inputs + 2 * WIDTH, stride, t, length, number, inside),
        vector(inputs + 3 * WIDTH, stride, t, length, 0, True),
    )


@triton.jit(do_not_specialize=["length", "heads"])
def backward_kernel(
    of_reads,
    of_after,
    weights,
    after,
    heards,
    queries,
    keys,
    betas,
    errors,
    kept,
    of_inputs,
    of_memory,
    of_read,
    of_read_strides,
    length,
    heads,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number = tl.arange(0, TILE)
    inside = number < WIDTH
    square, in_square = number[:, None] * WIDTH + number[None, :], inside[:, None] & inside[None, :]
    page = tl.load(after + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    of_page = tl.load(of_after + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    for_query, for_key, for_value, for_logit = heads_weights(weights, head, number, inside, WIDTH)
    token = row * length * heads + head
    of_reads += row * of_read_strides[0] + head * of_read_strides[2]
    at = token * WIDTH
    made = (of_reads, heards + at, queries + at, keys + at, errors + at, betas + token)
    now = made_token(made, of_read_strides[1], heads, length - 1, length, number, inside, WIDTH)
    next = made_token(made, of_read_strides[1], heads, length - 2, length, number, inside, WIDTH)
    later = made_token(made, of_read_strides[1], heads, length - 3, length, number, inside, WIDTH)
    of_said = tl.zeros([TILE], tl.float32)
    for back in range(length):
        t = length - 1 - back
        coming, heard, query, key, error, beta = now
        now = next
        next = later
        later = made_token(made, of_read_strides[1], heads, t - 3, length, number, inside, WIDTH)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            page = tl.load(kept + (t // CHUNK * programs + program) * WIDTH * WIDTH + square, mask=in_square, other=0.0)
        of_said += coming.to(tl.float32)
        page, of_page, of_query, of_key, of_value, of_beta = step_back(page, of_page, key, error, beta, query, of_said)
        of_query = activated_back(of_query, query, "Softmax")
        of_key = activated_back(of_key, key, "Softmax")
        of_logit = of_beta * beta * (1 - beta)
        of_heard = recall(of_query, for_query) + recall(of_key, for_key) + for_logit * of_logit
        of_said = activated_back(of_heard + answer(for_value, of_value), heard, "Tanh")
        made_here = of_inputs + (token + t * heads) * (3 * WIDTH + 1)
        tl.store(made_here + number, of_query, mask=inside)
        tl.store(made_here + WIDTH + number, of_key, mask=inside)
        tl.store(made_here + 2 * WIDTH + number, of_value, mask=inside)
        tl.store(made_here + 3 * WIDTH, of_logit)
    tl.store(of_memory + program * WIDTH * WIDTH + square, of_page, mask=in_square)
    tl.store(of_read + program * WIDTH + number, of_said, mask=inside)


@triton.jit
def made_token(made, stride, heads, t, length, number, inside, WIDTH: tl.constexpr):
    return (
        vector(made[0], stride, t, length, number, inside),
        vector(made[1], heads * WIDTH, t, length, number, inside),
        vector(made[2], heads * WIDTH, t, length, number, inside),
        vector(made[3], heads * WIDTH, t, length, number, inside),
        vector(made[4], heads * WIDTH, t, length, number, inside),
        vector(made[5], heads, t, length, 0, True),
    )


@torch.library.custom_op("palimpsest::recurrent_delta", mutates_args=())
def there(
    inputs: Tensor, weights: Tensor, memory: Tensor, read: Tensor, epsilon: float, warps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """reads and the memory after; for backward, what was heard, queries, keys, betas, errors and the pages kept."""
    inputs = in_line(inputs)
    batch, length, heads, _ = inputs.shape
    width = memory.shape[-1]
    results = room(inputs, memory)
    with torch.cuda.device_of(inputs):
        forward_kernel[(batch * heads,)](
            *(inputs, weights.contiguous(), memory.contiguous(), read.contiguous()),
            *results,
            *(inputs.stride()[:3], length, heads, epsilon, width, tile(width), CHUNK),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room(inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens = inputs.shape[:-1]
    vectors = *tokens, memory.shape[-1]
    reads, after = inputs.new_empty(vectors), memory.new_empty(memory.shape)
    heards, queries, keys = memory.new_empty(vectors), memory.new_empty(vectors), memory.new_empty(vectors)
    betas, errors = memory.new_empty(tokens), memory.new_empty(vectors)
    return reads, after, heards, queries, keys, betas, errors, kept_pages(memory, tokens[1])


@there.register_fake
def _(inputs, weights, memory, *_):
    return room(inputs, memory)


@torch.library.custom_op("palimpsest::recurrent_delta_back", mutates_args=())
def back(
    of_reads: Tensor,
    of_after: Tensor,
    weights: Tensor,
    after: Tensor,
    heards: Tensor,
    queries: Tensor,
    keys: Tensor,
    betas: Tensor,
    errors: Tensor,
    kept: Tensor,
    warps: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of inputs, in float32, memory and read."""
    of_reads = in_line(of_reads)
    batch, length, heads, width = heards.shape
    results = room_back(heards, after)
    with torch.cuda.device_of(heards):
        backward_kernel[(batch * heads,)](
            *(of_reads, of_after.contiguous(), weights.contiguous(), after),
            *(heards, queries, keys, betas, errors, kept),
            *results,
            *(of_reads.stride()[:3], length, heads, width, tile(width), CHUNK),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room_back(heards: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    of_inputs = heards.new_empty(*heards.shape[:-1], 3 * heards.shape[-1] + 1)
    return of_inputs, after.new_empty(after.shape), after.new_empty(after.shape[:-1])


@back.register_fake
def _(of_reads, of_after, weights, after, heards, *_):
    return room_back(heards, after)


def remember(ctx, inputs, output):
    reads, *made = output
    ctx.save_for_backward(inputs[1], *made)
    ctx.warps, ctx.dtype = inputs[-1], reads.dtype
    ctx.set_materialize_grads(False)


def gradients(ctx, of_reads, of_after, *_):
    weights, after, heards, *made = ctx.saved_tensors
    of_reads = torch.zeros_like(heards, dtype=ctx.dtype) if of_reads is None else of_reads
    of_after = torch.zeros_like(after) if of_after is None else of_after
    of_inputs, of_memory, of_read = back(of_reads, of_after, weights, after, heards, *made, ctx.warps)
    with full_precision(heards.device.type):
        of_weights = torch.einsum("bthv,bthx->hvx", heards, of_inputs)
    return of_inputs.to(ctx.dtype), of_weights, of_memory, of_read, None, None


there.register_autograd(gradients, setup_context=remember)
