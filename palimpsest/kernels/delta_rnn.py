"""A recurrence whose matrix is a delta memory.

memory ← memory + key ⊗ β (value − keyᵀ memory)
sum    = input + fedᵀ memory
fed    ← activation(sum)

What is written does not depend on the sums, so in the plain form the memory is written in parallel, by chunks; only the
two last lines go token by token, forward and backward. The fused form does all of it in one launch each way.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..axes import check_axes
from .activations import Activation, named
from .pages import Written, choose_form, gradient_of_reading, replay, rows_first, time_first, write
from .precision import full_precision, memory_dtype


def delta_rnn(
    inputs: Tensor,
    keys: Tensor,
    values: Tensor,
    betas: Tensor,
    memory: Tensor,
    fed: Tensor,
    activation: Activation,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """inputs, keys, values `b t h v`, betas `b t h`, memory `b h v v`, fed `b h v` -> sums `b t h v`, memory."""
    check_axes(
        inputs=(inputs, "b t h v"),
        keys=(keys, "b t h v"),
        values=(values, "b t h v"),
        betas=(betas, "b t h"),
        memory=(memory, "b h v v"),
        fed=(fed, "b h v"),
    )
    kind, dtype = inputs.dtype, memory_dtype(torch.promote_types(memory.dtype, inputs.dtype))
    if choose_form("delta_rnn", backend, memory, dtype, activation) == "fused":
        from .fused.delta_rnn import delta_rnn as fused

        return fused(inputs, keys, values, betas, memory.to(dtype), fed.to(dtype), *named(activation))
    inputs, keys, values, betas, memory, fed = (x.to(dtype) for x in (inputs, keys, values, betas, memory, fed))
    with full_precision(inputs.device.type):
        written, after = write(keys, values, betas, memory)
        sums = Recurrence.apply(time_first(inputs), fed.flatten(0, 1), *written, activation)
    return rows_first(sums, len(inputs)).to(kind), after  # pyright: ignore[reportArgumentType]


class Recurrence(torch.autograd.Function):
    """inputs `t (b h) v`, fed `(b h) v`, then what was written -> sums `t (b h) v`"""

    @staticmethod
    def forward(ctx, inputs: Tensor, fed: Tensor, pages: Tensor, keys: Tensor, notes: Tensor, activation: Activation):
        queries, sums = [fed], []
        steps = iter(inputs.unsqueeze(2).unbind())
        for chunk in zip(pages, keys.unsqueeze(-1), notes.unsqueeze(-2), strict=True):
            for page, step in zip(replay(*chunk), steps, strict=False):
                sums.append(torch.baddbmm(step, queries[-1].unsqueeze(1), page).squeeze(1))
                queries.append(activation.of(sums[-1]))
        ctx.save_for_backward(torch.stack(queries[:-1]), pages, keys, notes)
        ctx.activation = activation
        return torch.stack(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx, of_sums: Tensor):
        queries, *rest = ctx.saved_tensors
        written = Written(*rest)
        length, chunk = len(queries), written.keys.shape[1]
        with full_precision(queries.device.type):
            gradient = torch.empty_like(queries)
            coming, fed = of_sums.unbind(), queries.unbind()
            back = torch.zeros_like(queries[0])
            for n in reversed(range(len(written.pages))):
                pages = replay(written.pages[n], written.keys[n].unsqueeze(-1), written.notes[n].unsqueeze(-2))
                for t in reversed(range(n * chunk, min(length, (n + 1) * chunk))):
                    total = torch.add(coming[t], back, out=gradient[t])
                    of_fed = torch.bmm(total.unsqueeze(1), pages[t - n * chunk].mT).squeeze(1)
                    back = ctx.activation.back(of_fed, fed[t]) if t else of_fed
            return gradient, back, *gradient_of_reading(written, queries, gradient), None
