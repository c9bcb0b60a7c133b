"""What torch.compile makes of a model in training. Its graphs have no breaks: what would break one is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..batch import Batch
from ..errors import UserError
from ..files import sources_of
from ..spec import Spec
from ..state import State, detach, rows_of
from .hooks import hooks

PALIMPSEST = Path(__file__).parents[1]
VERSIONS = 64  # of one function, for other shapes and other kinds of layers

Pass = Callable[..., tuple[torch.Tensor, State]]  # of a batch and the state before it


class Compilation(Spec):
    def build(self, model: nn.Module) -> Pass:
        """The same pass through the model, compiled at its first use."""
        raise NotImplementedError


@dataclass(frozen=True)
class Whole(Compilation):
    """The model as one graph: the fastest, and the longest to wait for."""

    def build(self, model: nn.Module) -> Pass:
        return prepared(model, compiled(detaching(model.forward)))


@dataclass(frozen=True)
class Blocks(Compilation):
    """A graph for each kind of block, used by all layers: nearly as fast, and soon ready."""

    def build(self, model: nn.Module) -> Pass:
        parts = [(block, compiled(detaching(block.forward))) for block in model.stack()]  # pyright: ignore
        parts.append((model.head, compiled(model.head.forward)))  # pyright: ignore

        def run(batch: Batch, state: State) -> tuple[torch.Tensor, State]:
            for part, faster in parts:
                part.forward = faster
            try:
                return model(batch, state)
            finally:  # whoever evaluates in between has other shapes
                for part, _ in parts:
                    del part.forward

        return prepared(model, run)


def detaching(run: Pass) -> Pass:
    """The same pass, its state detached: a step sends no gradients back through it, which compilers make of noughts."""

    def detached(*given: Any) -> tuple[torch.Tensor, State]:
        found, state = run(*given)
        return found, detach(state)

    return detached


def compiled(function: Callable) -> Callable:
    import torch._dynamo  # a second or two, which only those who compile have to wait
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = max(VERSIONS, torch._dynamo.config.recompile_limit)
    # gradients of a norm's input and weights in one pass take an H200 longer than in two
    known = hasattr(torch._inductor.config.triton, "mix_order_reduction")
    options: dict[str, Any] | None = {"triton.mix_order_reduction": False} if known else None
    return torch.compile(function, fullgraph=True, dynamic=False, options=options)


def keep_for_these_sources() -> None:
    """Graphs that torch keeps on the disk know the shapes of all that our kernels leave for backward."""
    import torch.compiler.config

    tags, sources = torch.compiler.config.cache_key_tag, sources_of(PALIMPSEST)
    torch.compiler.config.cache_key_tag = tags if tags.endswith(sources) else tags + sources


def prepared(model: nn.Module, run: Pass) -> Pass:
    """With everything done before that a compiler would not see.

    What is read off the device, and decides shapes, is read; and one row goes through the model as it is, for some
    kernels are tried at their first use.
    """
    from torch._dynamo.exc import BackendCompilerFailed, Unsupported
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    keep_for_these_sources()
    shapes, tried = hooks(model, "shape"), False

    def ready(batch: Batch, state: State) -> tuple[torch.Tensor, State]:
        nonlocal tried
        for shape in shapes:
            shape()
        if not tried:
            tried, row, device = True, slice(1), batch.inputs.device
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                model(batch.rows(row), rows_of(state, row))
        try:
            return run(batch, state)
        except (Unsupported, GuardOnDataDependentSymNode) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"torch.compile cannot follow this model ({reason}): add --compile None") from error
        except BackendCompilerFailed as error:  # there may be no compiler for what it writes
            reason = str(error.inner_exception).splitlines()[0]
            raise UserError(f"torch.compile cannot make code of this model ({reason}): add --compile None") from error

    return ready
