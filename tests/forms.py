"""Forms of the kernels: those that compute in whatever they are given, and fused ones as if compiled."""

from types import ModuleType

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


def forgetting(monkeypatch, launcher: ModuleType) -> None:
    """A launcher that knows nothing from before, so that it asks for settings and kernels again."""
    layouts = {}
    monkeypatch.setattr(launcher, "known_of", lambda layout: layouts.setdefault(layout, {}))


def as_compiled(monkeypatch, launcher: ModuleType, kernels: ModuleType) -> list[Compiled]:
    """All kernels of a module, as if they were compiled, to a launcher that remembers none from before."""
    found = {name: Compiled(kernel) for name, kernel in vars(kernels).items() if name.endswith("_kernel")}
    for name, kernel in found.items():
        monkeypatch.setattr(kernels, name, kernel)
    forgetting(monkeypatch, launcher)
    return list(found.values())
