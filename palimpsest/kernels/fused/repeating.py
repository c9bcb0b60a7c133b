"""Operations that are done again with other tensors of the same layout: what differs are addresses, and no more.

The first times an operation goes step by step: it makes tensors, and launches kernels with them. Its launches are then
written down, with the place of every tensor in one of those that were given or made. From then on the host makes what
is to be made, adds up addresses, and launches.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .launching import LAUNCHED, Compiled, Straight

Some = Sequence[Tensor | None]
RECORDING = "recording"
GUARDS: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)


def repeated(known: dict[Hashable, Any], given: Some, work: Callable[..., Some], kept: Some = ()) -> Some:
    """What work(*given, *kept) makes: launches, and the tensors it returns, None for what there is none of.

    Its launches must know of no tensors but these and their parts, and nothing else may be done with them. All that is
    known is about tensors of the layout of those that are given; what is kept was made by an operation before it.
    """
    recording = known.get(RECORDING)
    if recording and (stream := recording.stream()) is not None:
        return recording.again((*given, *kept), stream)
    with torch.cuda.device_of(given[0]):
        if recording and (stream := recording.stream()) is not None:  # it was another device that was at hand
            return recording.again((*given, *kept), stream)
        if recording is not None:
            return work(*given, *kept)
        return recorded(known, given, work, kept)


def recorded(known: dict[Hashable, Any], given: Some, work: Callable[..., Some], kept: Some) -> Some:
    """Step by step; if all kernels are known by now, that is remembered, or that it cannot be done otherwise."""
    launched: list[tuple[Compiled, Sequence] | None] = []
    given = [None if x is None else x.detach() for x in given]  # so that each is another, as it may be the next time
    token = LAUNCHED.set(launched)
    try:
        made = work(*given, *kept)
    finally:
        LAUNCHED.reset(token)
    if launched and None not in launched:
        try:
            known[RECORDING] = Recording(given, (*kept, *made), len(made), launched)
        except Unknown:
            known[RECORDING] = False
    return made


class Unknown(Exception):
    """A launch knows of something else than what was given and made, or cannot be made without Triton."""


class Step(NamedTuple):
    """A launch, and what differs the next time: arguments that are addresses, or begin with one."""

    straight: Straight
    arguments: list
    addresses: list[tuple[int, int, int]]  # the argument, the tensor, and how far in that it lies
    stepped: list[tuple[int, int, int, tuple]]  # … and the steps that come after it


class Recording:
    """What was launched, and for which tensors; of those that were None nothing is said, and they are not counted."""

    def __init__(self, given: Some, own: Some, made: int, launched: list[tuple[Compiled, Sequence]]):
        """Of our own tensors so many were made now."""
        self.stream = launched[0][0].stream
        self.filled = [x is not None for x in own[-made:]]
        self.made = [(tuple(x.shape), x.stride(), x.dtype) for x in there(own[-made:])]
        given, own = there(given), there(own)
        self.steps = [step_of(compiled, arguments, given, own) for compiled, arguments in launched]
        self.empty = empty_on(given[0].device)

    def again(self, given: Some, stream: int) -> Some:
        made = iter(self.launch([x.data_ptr() for x in there(given)], stream))
        return [next(made) if filled else None for filled in self.filled]

    def launch(self, starts: list[int], stream: int) -> list[Tensor]:
        """What is made, where all that is given starts at these addresses."""
        empty = self.empty
        made = [empty(*each) for each in self.made]
        starts = [*starts, *[x.data_ptr() for x in made]]
        for straight, arguments, addresses, stepped in self.steps:
            arguments = arguments.copy()
            for at, tensor, offset in addresses:
                arguments[at] = starts[tensor] + offset
            for at, tensor, offset, steps in stepped:
                arguments[at] = (starts[tensor] + offset, *steps)
            straight(stream, arguments)
        return made


def there(tensors: Some) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def step_of(compiled: Compiled, arguments: Sequence, given: list[Tensor], own: list[Tensor]) -> Step:
    if compiled.straight is None:
        raise Unknown
    step = Step(compiled.straight, [*arguments, *compiled.rest], [], [])
    for at, argument in enumerate(arguments):
        if isinstance(argument, Tensor):
            step.addresses.append((at, *place_of(argument, given, own)))
            step.arguments[at] = None  # not to keep it alive
        elif isinstance(argument, tuple):
            first, *steps = argument
            if any(isinstance(each, Tensor) for each in steps):
                raise Unknown
            step.stepped.append((at, *place_of(first, given, own), tuple(steps)))
            step.arguments[at] = None
    return step


def place_of(x: Tensor, given: list[Tensor], own: list[Tensor]) -> tuple[int, int]:
    """In which tensor, and how many bytes from its start: it is one that was given, or lies in one of our own.

    Those that were given may lie in one another, as they may not the next time.
    """
    for number, each in enumerate(given):
        if each is x:
            return number, 0
    at = x.data_ptr()
    for number, each in enumerate(own, len(given)):
        if each.data_ptr() <= at < each.data_ptr() + each.nbytes:
            return number, at - each.data_ptr()
    raise Unknown


def empty_on(device: torch.device) -> Callable[..., Tensor]:
    """(shape, strides, dtype) -> a tensor, on this device, if that is the one at hand.

    What torch's own compiler makes tensors with takes half the time, where it is to be had.
    """

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return getattr(GUARDS, f"_empty_strided_{device.type}", empty)
