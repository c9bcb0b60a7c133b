"""The Delta LSTM, one launch there and one back: a program takes the tokens of one row and head, its pages on chip."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .elementary import sigmoid
from .launching import ALWAYS, in_line
from .pages import CHUNK, activated, activated_back, kept_pages, step, step_back, tile, vector, warps_for

GATES = 3  # input, candidate, output; a tile has room for four


def delta_lstm(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    cell: Tensor,
    beside: Tensor | None,
    activation: str,
    epsilon: float,
    squash: str,
    warps: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As the door, with activations by their names; memory, fed and cell are float32."""
    warps = warps_for(memory.shape[-1], tiles=2 * (GATES + 1)) if warps is None else warps
    given = (inputs, keys, values, betas, memory, fed, cell, beside)
    sums, after, last, *_ = there(*given, activation, epsilon, squash, warps)
    return sums, after, last


@triton.jit(do_not_specialize=["length", "heads"])
def forward_kernel(
    inputs,
    keys,
    values,
    betas,
    memory,
    fed,
    cell,
    beside,
    sums,
    after,
    last,
    queries,
    cells,
    sides,
    errors,
    kept,
    input_strides,
    key_strides,
    value_strides,
    beta_strides,
    beside_strides,
    length,
    heads,
    epsilon,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SQUASH: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number, gate = tl.arange(0, TILE), tl.arange(0, 4)
    inside, is_gate = number < WIDTH, gate < 3
    in_gates = is_gate[:, None] & inside[None, :]
    square = (gate[:, None, None] * WIDTH + number[None, :, None]) * WIDTH + number[None, None, :]
    in_square = is_gate[:, None, None] & inside[None, :, None] & inside[None, None, :]
    page = tl.load(memory + program * 3 * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    query = tl.load(fed + program * WIDTH + number, mask=inside, other=0.0)
    state = tl.load(cell + program * WIDTH + number, mask=inside, other=0.0)
    inputs += row * input_strides[0] + head * input_strides[2]
    keys += row * key_strides[0] + head * key_strides[2]
    values += row * value_strides[0] + head * value_strides[2]
    betas += row * beta_strides[0] + head * beta_strides[2]
    beside += row * beside_strides[0] + head * beside_strides[2]
    given = (inputs, keys, values, betas, beside)
    strides = (input_strides, key_strides, value_strides, beta_strides, beside_strides)
    token = row * length * heads + head
    now = given_token(given, strides, 0, length, gate, number, WIDTH)
    next = given_token(given, strides, 1, length, gate, number, WIDTH)
    later = given_token(given, strides, 2, length, gate, number, WIDTH)
    for t in range(length):
        entry, key, value, beta, added = now
        now = next
        next = later
        later = given_token(given, strides, t + 3, length, gate, number, WIDTH)
        key, value, beta = key.to(tl.float32), value.to(tl.float32), beta.to(tl.float32)
        page, read, error = step(page, key, value, beta, query[None, :], KEYS=1)
        side = entry.to(tl.float32) + read
        at = (token + t * heads) * WIDTH + number
        at_gates = (token + t * heads) * 3 * WIDTH + gate[:, None] * WIDTH + number[None, :]
        tl.store(queries + at, query, mask=inside)
        tl.store(cells + at, state, mask=inside)
        tl.store(sides + at_gates, side, mask=in_gates)
        tl.store(errors + at_gates, error, mask=in_gates)
        candidate = activated(of_gate(side, gate, 1), inside, 0.0, SQUASH)
        state += sigmoid(of_gate(side, gate, 0)) * (candidate - state)
        total = sigmoid(of_gate(side, gate, 2)) * state + added.to(tl.float32)
        tl.store(sums + at, total.to(sums.dtype.element_ty), mask=inside)
        query = activated(total, inside, epsilon, ACTIVATION)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            tl.store(kept + (t // CHUNK * programs + program) * 3 * WIDTH * WIDTH + square, page, mask=in_square)
    tl.store(after + program * 3 * WIDTH * WIDTH + square, page, mask=in_square)
    tl.store(last + program * WIDTH + number, state, mask=inside)


@triton.jit
def given_token(given, strides, t, length, gate, number, WIDTH: tl.constexpr):
    inside, gates, numbers = number < WIDTH, gate[:, None], number[None, :]
    in_gates = (gates < 3) & (numbers < WIDTH)
    return (
        vector(given[0], strides[0][1], t, length, gates * strides[0][3] + numbers, in_gates),
        vector(given[1], strides[1][1], t, length, gates * strides[1][3] + numbers, in_gates),
        vector(given[2], strides[2][1], t, length, gates * strides[2][3] + numbers, in_gates),
        vector(given[3], strides[3][1], t, length, gates * strides[3][3], gates < 3),
        vector(given[4], strides[4][1], t, length, number, inside),
    )


@triton.jit
def of_gate(side, gate, WHICH: tl.constexpr):
    return tl.sum(tl.where(gate[:, None] == WHICH, side, 0.0), 0)


@triton.jit(do_not_specialize=["length", "heads"])
def backward_kernel(
    of_sums,
    of_after,
    of_last,
    keys,
    betas,
    after,
    queries,
    cells,
    sides,
    errors,
    kept,
    of_inputs,
    of_keys,
    of_values,
    of_betas,
    of_memory,
    of_fed,
    of_cell,
    of_beside,
    of_sum_strides,
    key_strides,
    beta_strides,
    length,
    heads,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SQUASH: tl.constexpr,
):
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, head = program // heads, program % heads
    number, gate = tl.arange(0, TILE), tl.arange(0, 4)
    inside, is_gate = number < WIDTH, gate < 3
    in_gates = is_gate[:, None] & inside[None, :]
    square = (gate[None, :, None] * WIDTH + number[:, None, None]) * WIDTH + number[None, None, :]
    in_square = inside[:, None, None] & is_gate[None, :, None] & inside[None, None, :]
    page = tl.load(after + program * 3 * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    of_page = tl.load(of_after + program * 3 * WIDTH * WIDTH + square, mask=in_square, other=0.0)
    of_state = tl.load(of_last + program * WIDTH + number, mask=inside, other=0.0)
    token = row * length * heads + head
    of_sums += row * of_sum_strides[0] + head * of_sum_strides[2]
    keys += row * key_strides[0] + head * key_strides[2]
    betas += row * beta_strides[0] + head * beta_strides[2]
    queries += token * WIDTH
    cells += token * WIDTH
    sides += token * 3 * WIDTH
    errors += token * 3 * WIDTH
    given = (of_sums, keys, betas, queries, cells, sides, errors)
    strides = (of_sum_strides, key_strides, beta_strides, heads * WIDTH)
    now = made_token(given, strides, length - 1, length, gate, number, WIDTH)
    next = made_token(given, strides, length - 2, length, gate, number, WIDTH)
    later = made_token(given, strides, length - 3, length, gate, number, WIDTH)
    heard = tl.zeros([TILE], tl.float32)
    of_heard = tl.zeros([TILE], tl.float32)
    for back in range(length):
        t = length - 1 - back
        of_sum, key, beta, query, before, entry, offer, exit, error = now
        now = next
        next = later
        later = made_token(given, strides, t - 3, length, gate, number, WIDTH)
        if ((t + 1) % CHUNK == 0) & (t + 1 < length):
            page = tl.load(
                kept + (t // CHUNK * programs + program) * 3 * WIDTH * WIDTH + square, mask=in_square, other=0.0
            )
        entry, exit = sigmoid(entry), sigmoid(exit)
        candidate = activated(offer, inside, 0.0, SQUASH)
        state = before + entry * (candidate - before)
        total = of_sum.to(tl.float32) + activated_back(of_heard, heard, ACTIVATION)
        of_state += total * exit
        of_entry = of_state * (candidate - before) * entry * (1 - entry)
        of_offer = activated_back(of_state * entry, candidate, SQUASH)
        of_exit = total * state * exit * (1 - exit)
        of_state *= 1 - entry
        of_side = tl.where(gate[:, None] == 0, of_entry[None, :], of_offer[None, :])
        of_side = tl.where(gate[:, None] == 2, of_exit[None, :], of_side)
        of_side = tl.where(in_gates, of_side, 0.0)
        page, of_page, of_query, of_key, of_value, of_beta = step_back(
            page, of_page, key.to(tl.float32), error, beta.to(tl.float32), query[:, None], of_side
        )
        of_heard = tl.sum(of_query, 1)
        heard = query
        at = (token + t * heads) * WIDTH + number
        at_gates = (token + t * heads) * 3 * WIDTH + gate[:, None] * WIDTH + number[None, :]
        tl.store(of_beside + at, total.to(of_beside.dtype.element_ty), mask=inside)
        tl.store(of_inputs + at_gates, of_side.to(of_inputs.dtype.element_ty), mask=in_gates)
        at_keys = (token + t * heads) * 3 * WIDTH + gate[None, :] * WIDTH + number[:, None]
        tl.store(of_keys + at_keys, of_key.to(of_keys.dtype.element_ty), mask=is_gate[None, :] & inside[:, None])
        tl.store(of_values + at_gates, of_value.to(of_values.dtype.element_ty), mask=in_gates)
        tl.store(of_betas + (token + t * heads) * 3 + gate, of_beta.to(of_betas.dtype.element_ty), mask=is_gate)
    tl.store(of_memory + program * 3 * WIDTH * WIDTH + square, of_page, mask=in_square)
    tl.store(of_fed + program * WIDTH + number, of_heard, mask=inside)
    tl.store(of_cell + program * WIDTH + number, of_state, mask=inside)


@triton.jit
def made_token(given, strides, t, length, gate, number, WIDTH: tl.constexpr):
    inside, gates, numbers = number < WIDTH, gate[:, None], number[None, :]
    in_keys = (gate[None, :] < 3) & inside[:, None]
    return (
        vector(given[0], strides[0][1], t, length, number, inside),
        vector(given[1], strides[1][1], t, length, gate[None, :] * strides[1][3] + number[:, None], in_keys),
        vector(given[2], strides[2][1], t, length, gates * strides[2][3], gates < 3),
        vector(given[3], strides[3], t, length, number, inside),
        vector(given[4], strides[3], t, length, number, inside),
        vector(given[5], strides[3] * 3, t, length, number, inside),
        vector(given[5] + WIDTH, strides[3] * 3, t, length, number, inside),
        vector(given[5] + 2 * WIDTH, strides[3] * 3, t, length, number, inside),
        vector(given[6], strides[3] * 3, t, length, gates * WIDTH + numbers, (gates < 3) & (numbers < WIDTH)),
    )


@torch.library.custom_op("palimpsest::delta_lstm", mutates_args=())
def there(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    cell: Tensor,
    beside: Tensor | None,
    activation: str,
    epsilon: float,
    squash: str,
    warps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """sums, the memory and the cell after; for backward, what was fed, cells, the gates' sides, errors, pages kept."""
    inputs, keys, values = in_line(inputs), in_line(keys), in_line(values)
    batch, length, heads, _, width = inputs.shape
    beside = inputs.new_zeros(width).expand(batch, length, heads, width) if beside is None else in_line(beside)
    results = room(inputs, memory)
    with torch.cuda.device_of(inputs):
        forward_kernel[(batch * heads,)](
            *(inputs, keys, values, betas, memory.contiguous(), fed.contiguous(), cell.contiguous(), beside),
            *results,
            *(x.stride()[:4] for x in (inputs, keys, values, betas)),
            beside.stride()[:3],
            *(length, heads, epsilon, width, tile(width), CHUNK, activation, squash),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room(inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens, state = inputs[:, :, :, 0].shape, inputs[:, 0, :, 0].shape
    sums, after, last = inputs.new_empty(tokens), memory.new_empty(memory.shape), memory.new_empty(state)
    queries, cells = memory.new_empty(tokens), memory.new_empty(tokens)
    sides, errors = memory.new_empty(inputs.shape), memory.new_empty(inputs.shape)
    return sums, after, last, queries, cells, sides, errors, kept_pages(memory, inputs.shape[1])


@there.register_fake
def _(inputs, keys, values, betas, memory, *_):
    return room(inputs, memory)


@torch.library.custom_op("palimpsest::delta_lstm_back", mutates_args=())
def back(
    of_sums: Tensor,
    of_after: Tensor,
    of_last: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    after: Tensor,
    queries: Tensor,
    cells: Tensor,
    sides: Tensor,
    errors: Tensor,
    kept: Tensor,
    activation: str,
    squash: str,
    warps: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of inputs, keys, values, betas, memory, fed, cell and beside."""
    of_sums, keys = in_line(of_sums), in_line(keys)
    batch, length, heads, _, width = keys.shape
    results = room_back(of_sums, keys, values, betas, after)
    with torch.cuda.device_of(keys):
        backward_kernel[(batch * heads,)](
            *(of_sums, of_after.contiguous(), of_last.contiguous(), keys, betas),
            *(after, queries, cells, sides, errors, kept),
            *results,
            *(of_sums.stride()[:3], keys.stride()[:4], betas.stride()[:4]),
            *(length, heads, width, tile(width), CHUNK, activation, squash),
            num_warps=warps,
            **ALWAYS,
        )
    return results


def room_back(
    of_sums: Tensor, keys: Tensor, values: Tensor, betas: Tensor, after: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_inputs, of_keys = of_sums.new_empty(keys.shape), keys.new_empty(keys.shape)
    of_values, of_betas = values.new_empty(values.shape), betas.new_empty(betas.shape)
    of_memory, state = after.new_empty(after.shape), after[:, :, 0, 0].shape
    of_fed, of_cell, of_beside = after.new_empty(state), after.new_empty(state), of_sums.new_empty(of_sums.shape)
    return of_inputs, of_keys, of_values, of_betas, of_memory, of_fed, of_cell, of_beside


@back.register_fake
def _(of_sums, of_after, of_last, keys, values, betas, after, *_):
    return room_back(of_sums, keys, values, betas, after)


def remember(ctx, inputs, output):
    _, keys, values, betas, _, _, _, beside, activation, _, squash, warps = inputs
    sums, after, _, *made = output
    ctx.save_for_backward(keys, values, betas, after, *made)
    ctx.activation, ctx.squash, ctx.warps = activation, squash, warps
    ctx.dtype, ctx.has_beside = sums.dtype, beside is not None
    ctx.set_materialize_grads(False)


def gradients(ctx, of_sums, of_after, of_last, *_):
    keys, values, betas, after, queries, *made = ctx.saved_tensors
    of_sums = torch.zeros_like(queries, dtype=ctx.dtype) if of_sums is None else of_sums
    of_after = torch.zeros_like(after) if of_after is None else of_after
    of_last = torch.zeros_like(queries[:, 0]) if of_last is None else of_last
    made = (after, queries, *made, ctx.activation, ctx.squash, ctx.warps)
    *found, of_beside = back(of_sums, of_after, of_last, keys, values, betas, *made)
    return *found, of_beside if ctx.has_beside else None, None, None, None, None


there.register_autograd(gradients, setup_context=remember)
