"""A delta memory that is asked, and written, by what it was last read to say.

heard = tanh(read)
query, key, value, logit = inputs + heardᵀ weights
memory ← memory + key ⊗ β (value − keyᵀ memory)        key = softmax(key), β = σ(logit)
read   = queryᵀ memory                                query = softmax(query)

Nothing of this can be done before its turn. Of the pages only those at the start of each chunk are kept for backward.
The fused form has one launch each way.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..axes import check_axes
from .activations import Softmax
from .pages import choose_form, replay
from .precision import full_precision, memory_dtype

CHUNK = 16  # tokens whose pages are there at once in backward


def recurrent_delta(
    inputs: Tensor, weights: Tensor, memory: Tensor, read: Tensor, softmax: Softmax, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """inputs `b t h x`, weights `h v x`, memory `b h v v`, read `b h v` -> reads `b t h v`, memory.

    x is query, key, value and logit side by side, 3 v + 1 numbers.
    """
    sizes = check_axes(
        inputs=(inputs, "b t h x"), weights=(weights, "h v x"), memory=(memory, "b h v v"), read=(read, "b h v")
    )
    if sizes["x"] != 3 * sizes["v"] + 1:
        raise ValueError(f"query, key, value and logit are {3 * sizes['v'] + 1} numbers; found {sizes['x']}")
    kind, dtype = inputs.dtype, memory_dtype(torch.promote_types(memory.dtype, inputs.dtype))
    if choose_form("recurrent_delta", backend, memory, dtype, softmax) == "fused":
        from .fused.recurrent_delta import recurrent_delta as fused

        return fused(inputs, weights.to(dtype), memory.to(dtype), read.to(dtype), softmax.epsilon)
    with full_precision(memory.device.type):
        steps = inputs.to(dtype).permute(1, 2, 0, 3).contiguous()
        pages, read = (x.to(dtype).transpose(0, 1).contiguous() for x in (memory, read))
        reads, after = Recurrence.apply(steps, weights.to(dtype), pages, read, softmax)  # pyright: ignore
    return reads.permute(2, 0, 1, 3).to(kind), after.transpose(0, 1)


class Recurrence(torch.autograd.Function):
    """steps `t h b x`, weights `h v x`, memory `h b v v`, read `h b v` -> reads `t h b v`, memory

    Heads come before rows, as rows share the weights.
    """

    @staticmethod
    def forward(ctx, steps: Tensor, weights: Tensor, memory: Tensor, read: Tensor, softmax: Softmax):
        page = memory.flatten(0, 1)  # (h b) v v
        made = torch.empty_like(steps[0])
        raw, value, logit = sides(made.flatten(0, 1))
        starts, heard, asked, betas, errors, reads = [], [], [], [], [], [read]
        for t, step in enumerate(steps.unbind()):
            if t % CHUNK == 0:
                starts.append(page)
            heard.append(reads[-1].view_as(read).tanh())
            torch.baddbmm(step, heard[-1], weights, out=made)
            asked.append(softmax.of(raw))  # (h b) 2 v, query and key
            query, key = asked[-1].split(1, dim=1)
            found, recalled = torch.bmm(asked[-1], page).split(1, dim=1)  # before the token has written
            betas.append(logit.sigmoid())
            errors.append(value - recalled)
            note = betas[-1] * errors[-1]
            page = torch.addcmul(page, key.mT, note)
            reads.append(torch.addcmul(found, (query * key).sum(-1, keepdim=True), note))
        kept = (torch.stack(x) for x in (starts, heard, asked, betas, errors))
        ctx.save_for_backward(weights, *kept)
        ctx.softmax = softmax
        return torch.stack(reads[1:]).view(len(steps), *read.shape), page.view_as(memory)

    @staticmethod
    @once_differentiable
    def backward(ctx, of_reads: Tensor, of_memory: Tensor):
        weights, starts, heard, asked, betas, errors = ctx.saved_tensors
        with full_precision(heard.device.type):
            length, _, _, width = heard.shape
            queries, keys = asked.split(1, dim=2)
            notes = betas * errors
            # what is known of a token beforehand is made for all of them at once
            slopes = (1 - heard.square()).unbind()
            overlaps = (queries * keys).sum(-1, keepdim=True).unbind()
            crossed = asked.flip(2).unbind()
            partners = torch.cat([notes, errors * (betas - 1)], dim=2).unbind()
            pairs, columns, note_rows, lost = (x.unbind() for x in (asked, asked.mT, notes, -betas))
            coming = of_reads.reshape(notes.shape).unbind()
            of_steps = heard.new_empty(*heard.shape[:-1], 3 * width + 1)
            of_raw, of_value, of_logit = (x.unbind() for x in sides(of_steps.flatten(1, 2)))
            # what is only needed for a moment has one place, whose parts are known
            of_page, of_pair, found = (
                of_memory.flatten(0, 1).clone(),
                torch.zeros_like(pairs[0]),
                torch.empty_like(pairs[0]),
            )
            of_page_turned, of_key, of_written, weights = of_page.mT, of_pair[:, 1:], found[:, 1:], weights.mT
            products = found.new_empty(len(found), 2, 1)
            by_note, by_error = products.split(1, dim=1)
            back = torch.zeros_like(heard[0])
            for n in reversed(range(len(starts))):
                first, last = n * CHUNK, min(length, (n + 1) * CHUNK)
                turned = starts[n].mT.contiguous()
                pages = [turned, *replay(turned, keys[first : last - 1], notes[first : last - 1].mT)]
                for t in reversed(range(first, last)):
                    of_read = coming[t] + back.view_as(coming[t])
                    torch.bmm(pairs[t], of_page, out=found)
                    of_note = torch.addcmul(of_written, overlaps[t], of_read)
                    of_recall = lost[t] * of_note
                    both = torch.cat([of_read, of_recall], dim=1)
                    torch.sum(both * partners[t], dim=-1, keepdim=True, out=products)
                    torch.bmm(note_rows[t], of_page_turned, out=of_key)
                    of_asked = torch.baddbmm(of_pair, both, pages[t - first]).addcmul_(by_note, crossed[t])
                    of_raw[t].copy_(ctx.softmax.back(of_asked, pairs[t]))
                    torch.neg(of_recall, out=of_value[t])
                    of_logit[t].copy_(by_error)
                    of_page.baddbmm_(columns[t], both)
                    back = torch.bmm(of_steps[t], weights).mul_(slopes[t])
            by_head = (x.transpose(0, 1).flatten(1, 2) for x in (heard, of_steps))  # h (t b) x
            of_weights = torch.bmm(next(by_head).mT, next(by_head))
        return of_steps, of_weights, of_page.view_as(of_memory), back, None


def sides(made: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`… x` -> query and key `… 2 v`, value `… 1 v`, logit `… 1 1`"""
    width = made.shape[-1] // 3
    pair, value, logit = made.split([2 * width, width, 1], dim=-1)
    return pair.unflatten(-1, (2, width)), value.unsqueeze(-2), logit.unsqueeze(-2)
