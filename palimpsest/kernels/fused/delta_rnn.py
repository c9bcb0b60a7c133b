"""The Delta RNN, one launch there and one back: a program takes the tokens of one row and head, its page on chip."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import ALWAYS, in_line
from .pages import CHUNK, activated, activated_back, kept_pages, step, step_back, tile, vector, warps_for


def delta_rnn(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    activation: str,
    epsilon: float,
    warps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """As the door, with an activation by its name; memory and fed are float32."""
    warps = warps_for(memory.shape[-1], tiles=2) if warps is None else warps
    sums, after, *_ = there(inputs, keys, values, betas, memory, fed, activation, epsilon, warps)
    return sums, after


@triton.jit(do_not_specialize=["length", "heads"])
def forward_kernel(
    inputs,
    keys,
    values,
    betas,
    memory,
    fed,
    sums,
    after,
    queries,
    errors,
    kept,
    input_strides,
    key_strides,
    value_strides,
    beta_strides,
    length,
    heads,
    epsilon,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number = tl.arange(0, TILE)
    inside = number < WIDTH
    square, in_square = number[:, None] * WIDTH + number[None, :], inside[:, None] & inside[None, :]
    page = tl.load(memory + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    query = tl.load(fed + program * WIDTH + number, mask=inside, other=0.0)
    inputs += row * input_strides[0] + head * input_strides[2]
    keys += row * key_strides[0] + head * key_strides[2]
    values += row * value_strides[0] + head * value_strides[2]
    betas += row * beta_strides[0] + head * beta_strides[2]
    given = (inputs, keys, values, betas)
    strides = (input_strides[1], key_strides[1], value_strides[1], beta_strides[1])
    made = (row * length * heads + head) * WIDTH + number
    now = given_token(given, strides, 0, length, number, inside)
    next = given_token(given, strides, 1, length, number, inside)
    later = given_token(given, strides, 2, length, number, inside)
    for t in range(length):
        entry, key, value, beta = now
        now = next
        next = later
        later = given_token(given, strides, t + 3, length, number, inside)
        page, read, error = step(page, key.to(tl.float32), value.to(tl.float32), beta.to(tl.float32), query)
        total = entry.to(tl.float32) + read
        at = made + t * heads * WIDTH
        tl.store(queries + at, query, mask=inside)
        tl.store(errors + at, error, mask=inside)
        tl.store(sums + at, total.to(sums.dtype.element_ty), mask=inside)
        query = activated(total, inside, epsilon, ACTIVATION)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            tl.store(kept + (t // CHUNK * programs + program) * WIDTH * WIDTH + square, page, mask=in_square)
    tl.store(after + program * WIDTH * WIDTH + square, page, mask=in_square)


@triton.jit
def given_token(given, strides, t, length, number, inside):
    return (
        vector(given[0], strides[0], t, length, number, inside),
        vector(given[1], strides[1], t, length, number, inside),
        vector(given[2], strides[2], t, length, number, inside),
        vector(given[3], strides[3], t, length, 0, True),
    )


@triton.jit(do_not_specialize=["length", "heads"])
def backward_kernel(
    of_sums,
    of_after,
    keys,
    betas,
    after,
    queries,
    errors,
    kept,
    of_inputs,
    of_keys,
    of_values,
    of_betas,
    of_memory,
    of_fed,
    of_sum_strides,
    key_strides,
    beta_strides,
    length,
    heads,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number = tl.arange(0, TILE)
    inside = number < WIDTH
    square, in_square = number[:, None] * WIDTH + number[None, :], inside[:, None] & inside[None, :]
    page = tl.load(after + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    of_page = tl.load(of_after + program * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    token = (row * length * heads + head) * WIDTH
    of_sums += row * of_sum_strides[0] + head * of_sum_strides[2]
    keys += row * key_strides[0] + head * key_strides[2]
    betas += row * beta_strides[0] + head * beta_strides[2]
    given = (of_sums, keys, betas, queries + token, errors + token)
    strides = (of_sum_strides[1], key_strides[1], beta_strides[1], heads * WIDTH, heads * WIDTH)
    now = made_token(given, strides, length - 1, length, number, inside)
    next = made_token(given, strides, length - 2, length, number, inside)
    later = made_token(given, strides, length - 3, length, number, inside)
    heard = tl.zeros([TILE], tl.float32)
    of_heard = tl.zeros([TILE], tl.float32)
    for back in range(length):
        t = length - 1 - back
        of_sum, key, beta, query, error = now
        now = next
        next = later
        later = made_token(given, strides, t - 3, length, number, inside)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            page = tl.load(kept + (t // CHUNK * programs + program) * WIDTH * WIDTH + square, mask=in_square, other=0.0)
        total = of_sum.to(tl.float32) + activated_back(of_heard, heard, ACTIVATION)
        page, of_page, of_heard, of_key, of_value, of_beta = step_back(
            page, of_page, key.to(tl.float32), error, beta.to(tl.float32), query, total
        )
        heard = query
        at = token + t * heads * WIDTH + number
        tl.store(of_inputs + at, total.to(of_inputs.dtype.element_ty), mask=inside)
        tl.store(of_keys + at, of_key.to(of_keys.dtype.element_ty), mask=inside)
        tl.store(of_values + at, of_value.to(of_values.dtype.element_ty), mask=inside)
        tl.store(of_betas + (row * length + t) * heads + head, of_beta.to(of_betas.dtype.element_ty))
    tl.store(of_memory + program * WIDTH * WIDTH + square, of_page, mask=in_square)
    tl.store(of_fed + program * WIDTH + number, of_heard, mask=inside)


@triton.jit
def made_token(given, strides, t, length, number, inside):
    return (
        vector(given[0], strides[0], t, length, number, inside),
        vector(given[1], strides[1], t, length, number, inside),
        vector(given[2], strides[2], t, length, 0, True),
        vector(given[3], strides[3], t, length, number, inside),
        vector(given[4], strides[4], t, length, number, inside),
    )


@torch.library.custom_op("palimpsest::delta_rnn", mutates_args=())
def there(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    activation: str,
    epsilon: float,
    warps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """sums and the memory after; for backward, what was fed, the errors and the pages that are kept."""
    inputs, keys, values = in_line(inputs), in_line(keys), in_line(values)
    batch, length, heads, width = inputs.shape
    results = room(inputs, memory)
    with torch.cuda.device_of(inputs):
        forward_kernel[(batch * heads,)](
            *(inputs, keys, values, betas, memory.contiguous(), fed.contiguous()),
            *results,
            *(x.stride()[:3] for x in (inputs, keys, values, betas)),
            *(length, heads, epsilon, width, tile(width), CHUNK, activation),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room(inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sums, after = inputs.new_empty(inputs.shape), memory.new_empty(memory.shape)
    queries, errors = memory.new_empty(inputs.shape), memory.new_empty(inputs.shape)
    return sums, after, queries, errors, kept_pages(memory, inputs.shape[1])


@there.register_fake
def _(inputs, keys, values, betas, memory, *_):
    return room(inputs, memory)


@torch.library.custom_op("palimpsest::delta_rnn_back", mutates_args=())
def back(
    of_sums: Tensor,
    of_after: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    after: Tensor,
    queries: Tensor,
    errors: Tensor,
    kept: Tensor,
    activation: str,
    warps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of inputs, keys, values, betas, memory and fed."""
    of_sums, keys = in_line(of_sums), in_line(keys)
    batch, length, heads, width = keys.shape
    results = room_back(of_sums, keys, values, betas, after)
    with torch.cuda.device_of(keys):
        backward_kernel[(batch * heads,)](
            *(of_sums, of_after.contiguous(), keys, betas),
            *(after, queries, errors, kept),
            *results,
            *(x.stride()[:3] for x in (of_sums, keys, betas)),
            *(length, heads, width, tile(width), CHUNK, activation),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room_back(
    of_sums: Tensor, keys: Tensor, values: Tensor, betas: Tensor, after: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_inputs, of_keys = of_sums.new_empty(keys.shape), keys.new_empty(keys.shape)
    of_values, of_betas = values.new_empty(values.shape), betas.new_empty(betas.shape)
    of_memory, of_fed = after.new_empty(after.shape), after.new_empty(after.shape[:-1])
    return of_inputs, of_keys, of_values, of_betas, of_memory, of_fed


@back.register_fake
def _(of_sums, of_after, keys, values, betas, after, *_):
    return room_back(of_sums, keys, values, betas, after)


def remember(ctx, inputs, output):
    _, keys, values, betas, _, _, activation, _, warps = inputs
    sums, *made = output
    ctx.save_for_backward(keys, values, betas, *made)
    ctx.activation, ctx.warps, ctx.dtype = activation, warps, sums.dtype
    ctx.set_materialize_grads(False)


def gradients(ctx, of_sums, of_after, *_):
    keys, values, betas, after, queries, *made = ctx.saved_tensors
    of_sums = torch.zeros_like(queries, dtype=ctx.dtype) if of_sums is None else of_sums
    of_after = torch.zeros_like(after) if of_after is None else of_after
    found = back(of_sums, of_after, keys, values, betas, after, queries, *made, ctx.activation, ctx.warps)
    return *found, None, None, None


there.register_autograd(gradients, setup_context=remember)
