"""A gated recurrence whose three matrices, of the input gate, the candidate and the output gate, are delta memories.

memory ← memory + key ⊗ β (value − keyᵀ memory)                          of each of the three
input, candidate, output = inputs + fedᵀ memory                          of each of the three
cell  ← σ(input) · squash(candidate) + (1 − σ(input)) · cell
sum   = σ(output) · cell + beside
fed   ← activation(sum)

In the plain form the memories are written in parallel, by chunks; the rest goes token by token, forward and backward.
The fused form does all of it in one launch each way.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..axes import check_axes
from .activations import Activation, named
from .pages import Written, choose_form, gradient_of_reading, replay, rows_first, time_first, write
from .precision import full_precision, memory_dtype

INPUT, CANDIDATE, OUTPUT = GATES = range(3)  # in this order on the axis g


def delta_lstm(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    cell: Tensor,
    activation: Activation,
    squash: Activation,
    beside: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """inputs, keys, values `b t h g v`, betas `b t h g`, memory `b h g v v`, fed, cell `b h v`, beside `b t h v`
    -> sums `b t h v`, memory, cell. A `beside` that is None is not there."""
    check_axes(
        inputs=(inputs, "b t h g v"),
        keys=(keys, "b t h g v"),
        values=(values, "b t h g v"),
        betas=(betas, "b t h g"),
        memory=(memory, "b h g v v"),
        fed=(fed, "b h v"),
        cell=(cell, "b h v"),
        beside=(beside, "b t h v"),
    )
    kind, dtype = inputs.dtype, memory_dtype(torch.promote_types(memory.dtype, inputs.dtype))
    if choose_form("delta_lstm", backend, memory, dtype, activation, squash) == "fused":
        from .fused.delta_lstm import delta_lstm as fused

        state = (memory.to(dtype), fed.to(dtype), cell.to(dtype))
        return fused(inputs, keys, values, betas, *state, beside, *named(activation), named(squash)[0])
    inputs, keys, values, betas, memory, fed, cell = (
        x.to(dtype) for x in (inputs, keys, values, betas, memory, fed, cell)
    )
    with full_precision(inputs.device.type):
        written, after = write(*gates_as_heads(keys, values, betas), memory.flatten(1, 2))
        steps = [time_first(inputs), None if beside is None else time_first(beside.to(dtype))]
        start = [x.flatten(0, 1) for x in (fed, cell)]
        sums, last = Recurrence.apply(*steps, *start, *written, activation, squash)  # pyright: ignore
    return rows_first(sums, len(inputs)).to(kind), after.view_as(memory), last.view_as(cell)


class Recurrence(torch.autograd.Function):
    """inputs `t (b h) g v`, beside `t (b h) v`, fed, cell `(b h) v`, then what was written -> sums, the last cell"""

    @staticmethod
    def forward(ctx, inputs, beside, fed, cell, pages, keys, notes, activation: Activation, squash: Activation):
        queries, cells, candidates, gates, sums = [fed], [cell], [], [], []
        rows, shape = inputs.flatten(2).unsqueeze(2).unbind(), inputs.shape[1:]
        steps = iter(zip(rows, inputs if beside is None else beside.unbind(), strict=True))
        for chunk in zip(pages, keys, notes, strict=True):
            for page, (step, added) in zip(gates_together(*chunk, len(fed)), steps, strict=False):
                raw = torch.baddbmm(step, queries[-1].unsqueeze(1), page.mT).view(shape)
                gates.append(raw.sigmoid())
                candidates.append(squash.of(raw.select(1, CANDIDATE)))
                cells.append(torch.lerp(cells[-1], candidates[-1], gates[-1].select(1, INPUT)))
                output = gates[-1].select(1, OUTPUT)
                sums.append(output * cells[-1] if beside is None else torch.addcmul(added, output, cells[-1]))
                queries.append(activation.of(sums[-1]))
        kept = (torch.stack(x) for x in (queries[:-1], cells, candidates, gates))
        ctx.save_for_backward(*kept, pages, keys, notes)
        ctx.activation, ctx.squash, ctx.has_beside = activation, squash, beside is not None
        return torch.stack(sums), cells[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, of_sums: Tensor, of_cell: Tensor):
        queries, cells, candidates, gates, *rest = ctx.saved_tensors
        written = Written(*rest)
        length, chunk = len(queries), written.keys.shape[1]
        with full_precision(queries.device.type):
            forget = 1 - gates[:, :, INPUT]
            cell_slopes = [(candidates - cells[:-1]) * gates[:, :, INPUT] * forget]
            cell_slopes.append(ctx.squash.back(gates[:, :, INPUT], candidates))
            cell_slopes = torch.stack(cell_slopes, dim=2).unbind()  # of the cell, by input gate and candidate
            sum_slopes = (cells[1:] * gates[:, :, OUTPUT] * (1 - gates[:, :, OUTPUT])).unbind()  # by output gate
            gradient, of_inputs = torch.empty_like(of_sums), torch.empty_like(gates)
            outputs, forgets, coming, fed = (x.unbind() for x in (gates[:, :, OUTPUT], forget, of_sums, queries))
            of_entry, of_output = of_inputs[:, :, :OUTPUT].unbind(), of_inputs[:, :, OUTPUT].unbind()
            of_reads = of_inputs.flatten(2).unsqueeze(2).unbind()
            back = torch.zeros_like(of_cell)
            for n in reversed(range(len(written.pages))):
                pages = gates_together(written.pages[n], written.keys[n], written.notes[n], len(of_cell))
                for t in reversed(range(n * chunk, min(length, (n + 1) * chunk))):
                    total = torch.add(coming[t], back, out=gradient[t])
                    of_cell = torch.addcmul(of_cell, total, outputs[t])
                    torch.mul(cell_slopes[t], of_cell.unsqueeze(1), out=of_entry[t])
                    torch.mul(sum_slopes[t], total, out=of_output[t])
                    of_fed = torch.bmm(of_reads[t], pages[t - n * chunk]).squeeze(1)
                    back = ctx.activation.back(of_fed, fed[t]) if t else of_fed
                    of_cell = of_cell * forgets[t]
            asked = queries.unsqueeze(2).expand_as(gates).flatten(1, 2)
            of_written = gradient_of_reading(written, asked, of_inputs.flatten(1, 2))
        return of_inputs, gradient if ctx.has_beside else None, back, of_cell, *of_written, None, None


def gates_as_heads(one: Tensor, two: Tensor, three: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`b t h g …` -> `b t (h g) …`"""
    return one.flatten(2, 3), two.flatten(2, 3), three.flatten(2, 3)


def gates_together(page: Tensor, keys: Tensor, notes: Tensor, rows: int) -> list[Tensor]:
    """The pages of a chunk, turned, `(b h) (g v) k`, so that one product reads all gates; given as `(b h g) …`."""
    pages = replay(page.mT.contiguous(), keys.unsqueeze(-2), notes.unsqueeze(-1))
    return [page.view(rows, -1, keys.shape[-1]) for page in pages]
