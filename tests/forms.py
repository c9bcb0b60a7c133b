"""Forms of the kernels: those that compute in whatever they are given, and fused ones as if compiled."""

import ctypes
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from palimpsest.kernels import BACKENDS

EXACT_BACKENDS = {name: form for name, form in BACKENDS.items() if name != "fused"}  # whose laws are in tests/fused


class Compiled:
    """A kernel of the interpreter that says it was compiled, and is launched as such: by position, without names."""

    def __init__(self, kernel):
        self.kernel, self.arg_names, self.known = kernel, kernel.arg_names, 0

    def __getitem__(self, grid):
        def run(*arguments, **named):
            self.known += not named
            self.kernel[grid](*arguments, **named)
            return self

        return run


class Launcher:
    """As Triton's until 3.6, of a kernel of the interpreter, which is given tensors where addresses are told."""

    def __init__(self, kernel, grid, arguments):
        self.kernel, self.grid = kernel, grid
        self.kinds = [x.dtype if isinstance(x, Tensor) else x[0].dtype if is_stepped(x) else None for x in arguments]
        self.by_address = 0

    def __call__(self, x, y, z, stream, function, *told):
        self.launch(x, y, z, stream, function, False, False, None, None, *told)

    def launch(self, *told):
        assert told[:13] == (*self.grid, STREAM, "function", False, False, None, None, "about", None, None, None)
        self.compute(told[13:])

    def compute(self, arguments):
        self.by_address += not any(isinstance(x, Tensor) or is_stepped(x) for x in arguments)
        kinds = [*self.kinds, *[None] * len(arguments)]
        self.kernel[self.grid](*[tensor_at(x, kind) for x, kind in zip(arguments, kinds, strict=False)])


class LauncherAtOnce(Launcher):
    """As Triton's since 3.7: it is told all arguments as one, and before them what they are."""

    def __init__(self, kernel, grid, arguments):
        super().__init__(kernel, grid, arguments)
        self.annotations, self.signature = [], b"signature"

    def __call__(self, x, y, z, stream, function, about, *hooks_and_arguments):
        hooks, arguments = hooks_and_arguments[:3], hooks_and_arguments[3:]
        kinds = self.annotations, self.signature
        self.launch(x, y, z, stream, function, False, False, about, *hooks, None, None, *kinds, arguments)

    def launch(self, *told):
        *before, annotations, signature, arguments = told
        assert before == [*self.grid, STREAM, "function", False, False, "about", *[None] * 5]
        assert annotations is self.annotations
        assert signature is self.signature
        self.compute(arguments)


STREAM = 7


def is_stepped(argument) -> bool:
    return isinstance(argument, tuple) and isinstance(argument[0], Tensor)


def tensor_at(argument, kind: torch.dtype | None):
    """A tensor that starts at an address, or the argument; the interpreter asks for no more of it."""
    if kind is None or argument is None or isinstance(argument, Tensor) or is_stepped(argument):
        return argument
    if isinstance(argument, tuple):
        return tensor_at(argument[0], kind), *argument[1:]
    return torch.frombuffer((ctypes.c_byte * kind.itemsize).from_address(argument), dtype=kind)


class Launched(Compiled):
    """A kernel of the interpreter that can be launched without Triton looking on."""

    def __init__(self, kernel, form: type[Launcher] = Launcher):
        super().__init__(kernel)
        self.form = form
        self.launchers: list[Launcher] = []

    def __getitem__(self, grid):
        def run(*arguments, **named):
            self.kernel[grid](*arguments, **named)
            launcher = self.form(self.kernel, grid, arguments)
            self.launchers.append(launcher)
            return Binary(launcher, run)

        return run

    @property
    def by_address(self) -> int:
        return sum(launcher.by_address for launcher in self.launchers)


class Binary:
    function, packed_metadata = "function", "about"

    def __init__(self, run, runner):
        self.run, self.runner = run, runner

    def __getitem__(self, grid):
        return self.runner


def forgetting(monkeypatch, launcher: ModuleType) -> None:
    """A launcher that knows nothing from before, so that it asks for settings and kernels again."""
    layouts = {}
    monkeypatch.setattr(launcher, "known_of", lambda layout: layouts.setdefault(layout, {}))


def as_launched(monkeypatch, launcher: ModuleType, kernels: ModuleType, form: type[Launcher] = Launcher) -> list:
    """The same, with all that a launch needs."""
    import triton  # which not everyone has who asks for other forms

    driver = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: STREAM)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=driver))
    return as_compiled(monkeypatch, launcher, kernels, partial(Launched, form=form))


def as_compiled(monkeypatch, launcher: ModuleType, kernels: ModuleType, form: Callable = Compiled) -> list:
    """All kernels of a module, as if they were compiled, to a launcher that remembers none from before."""
    found = {name: form(kernel) for name, kernel in vars(kernels).items() if name.endswith("_kernel")}
    for name, kernel in found.items():
        monkeypatch.setattr(kernels, name, kernel)
    forgetting(monkeypatch, launcher)
    return list(found.values())
