"""Kernels as torch operations: compilers know their shapes, autograd their gradients; a plain call goes straight on."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...direct import direct, transformed

LIBRARY = torch.library.Library("palimpsest", "FRAGMENT")
DEVICES = ("CPU", "CUDA")

Made = Sequence[Any]  # tensors, and None for whatever there is none of


def watched() -> bool:
    """Whether torch has to see our operations as such: it compiles, transforms, or a mode follows whatever is done."""
    return torch.compiler.is_compiling() or followed()


def followed() -> bool:
    """The same, where it does not compile."""
    return torch._C._len_torch_dispatch_stack() > 0 or transformed()


class Operation:
    """`palimpsest::name` and `palimpsest::name_backward`; called, it hands on its results, with gradients.

    forward(*inputs)                  makes the `results`, and then whatever else only backward needs
    shapes(*inputs)                   makes the same, not filled
    backward(grads, kept, *inputs)    makes the gradients of the first `learned` inputs, None where there is none

    grads are of the results, None where nobody asks; kept is what forward made from `kept_from` on. Whatever there is
    none of this time is None, but for torch, whose lists have tensors only.
    """

    def __init__(
        self,
        name: str,
        inputs: str,
        forward: Callable[..., Made],
        backward: Callable[..., Made],
        shapes: Callable[..., Made],
        *,
        learned: int,
        results: int = 1,
        kept_from: int,
    ):
        LIBRARY.define(f"{name}({inputs}) -> Tensor[]")
        LIBRARY.define(f"{name}_backward(Tensor?[] grads, Tensor[] kept, {inputs}) -> Tensor[]")
        self.forward, self.backward = forward, backward
        self.seen, self.seen_back = (getattr(torch.ops.palimpsest, each).default for each in (name, f"{name}_backward"))
        self.tensors = sum(each.startswith("Tensor") for each in inputs.split(", "))
        self.learned, self.results, self.kept_from = learned, results, kept_from
        self.direct, registered = functions_of(self)
        for device in DEVICES:
            LIBRARY.impl(name, lambda *given: filled(forward(*given)), device)
            LIBRARY.impl(f"{name}_backward", self.backward_of_filled, device)
        LIBRARY.impl(name, lambda *given: list(registered(*self.apart(given))), "Autograd")
        torch.library.register_fake(f"palimpsest::{name}", lambda *given: filled(shapes(*given)), lib=LIBRARY)
        torch.library.register_fake(f"palimpsest::{name}_backward", self.shapes_back, lib=LIBRARY)

    def backward_of_filled(self, grads, kept, *inputs) -> list[Tensor]:
        found = self.backward(grads, [x if x.numel() else None for x in kept], *inputs)
        return [x for x in found if x is not None]

    def backward_seen(self, grads, kept, *inputs) -> Made:
        found = iter(self.seen_back(list(grads), list(kept), *inputs))
        return [None if x is None else next(found) for x in inputs[: self.learned]]

    def shapes_back(self, grads, kept, *inputs) -> list[Tensor]:
        return [x.new_empty(x.shape) for x in inputs[: self.learned] if x is not None]

    def __call__(self, *inputs) -> Made:
        return self.seen(*inputs)[: self.results] if watched() else self.direct(*self.apart(inputs))

    def apart(self, inputs: tuple) -> tuple:
        """Numbers, as one, and then the tensors: torch looks at every argument of a function."""
        return inputs[self.tensors :], *inputs[: self.tensors]

    def remember(self, ctx, numbers: tuple, tensors: tuple, made: Made) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *made[self.kept_from :])
        ctx.numbers = numbers

    def gradients(self, ctx, grads: tuple[Tensor | None, ...], backward: Callable[..., Made]) -> tuple:
        """Of numbers and tensors."""
        saved, count = ctx.saved_tensors, self.tensors  # torch makes them anew whenever they are asked for
        if not [grad for grad in grads if grad is not None]:
            return (None,) * (1 + count)
        found = backward(grads, saved[count:], *saved[:count], *ctx.numbers)
        return None, *found, *(None,) * (count - self.learned)


def filled(made: Made) -> list[Tensor]:
    """With something of no numbers in place of None."""
    return [made[0].new_empty(0) if x is None else x for x in made]


def functions_of(operation: Operation) -> tuple[Callable[..., tuple], Callable[..., tuple]]:
    """The direct way, and the one that torch takes: `register_autograd` would cost more time at every call."""

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, numbers, *tensors):
            made = operation.forward(*tensors, *numbers)
            operation.remember(ctx, numbers, tensors, made)
            return tuple(made[: operation.results])

        @staticmethod
        def backward(ctx, *grads):
            if torch.is_grad_enabled():  # a graph of the gradients is asked for, and it must say that it ends here
                return ending(ctx, *grads)
            return operation.gradients(ctx, grads, operation.backward)

    class Registered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, numbers, *tensors):
            with torch._C._AutoDispatchBelowAutograd():
                made = operation.seen(*tensors, *numbers)
            operation.remember(ctx, numbers, tensors, made)
            ctx.mark_non_differentiable(*made[operation.results :])
            return tuple(made)

        @staticmethod
        @once_differentiable
        def backward(ctx, *grads):
            return operation.gradients(ctx, grads[: operation.results], operation.backward_seen)

    @once_differentiable
    def ending(ctx, *grads):
        return operation.gradients(ctx, grads, operation.backward)

    return direct(Direct), Registered.apply
