"""How a run is spread over the processes that torchrun starts. Each reads its rows of every batch."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..errors import UserError
from ..shards import share_out
from ..spec import Spec
from ..world import World
from .checkpoint import Checkpoints, SharedCheckpoints

WATCHED = ("penalty", "after_step", "gauges")


class Spread(Spec):
    def place(self, model: nn.Module, world: World) -> None:
        """Before an optimiser is made for it: what a process will have of the model."""
        world.align(model)

    def checkpoints(self, folder: Path, keep: int, world: World) -> Checkpoints:
        return Checkpoints(folder, keep, world)

    def refuse_compilation(self) -> None:
        """Say why torch cannot compile a model that is spread like this, if so."""


@dataclass(frozen=True)
class Replicated(Spread):
    """Every process has the whole model; gradients are added up after each batch, as in DDP."""


@dataclass(frozen=True)
class Sharded(Spread):
    """Every process keeps a share of each weight, its gradient and what the optimiser remembers of it (FSDP2)."""

    def place(self, model: nn.Module, world: World) -> None:
        super().place(model, world)
        share_out(model, model.stack(), kept_whole(model), world)  # pyright: ignore[reportCallIssue]

    def checkpoints(self, folder: Path, keep: int, world: World) -> Checkpoints:
        return SharedCheckpoints(folder, keep, world)

    def refuse_compilation(self) -> None:
        raise UserError(
            "weights gathered in the middle of a pass break its graph: use Replicated, or add --compile None"
        )


def kept_whole(model: nn.Module) -> set[nn.Parameter]:
    """What is looked at between steps, what blocks have in common, what torch's recurrent nets hold on to, scalars."""
    blocks: list[nn.Module] = model.stack()  # pyright: ignore[reportCallIssue]
    users = Counter(parameter for block in blocks for parameter in block.parameters())
    held = (
        parameter
        for module in model.modules()
        if isinstance(module, nn.RNNBase) or any(hasattr(module, hook) for hook in WATCHED)
        for parameter in module.parameters(recurse=False)
    )
    single = (parameter for parameter in model.parameters() if parameter.ndim == 0)
    return {*(parameter for parameter, count in users.items() if count > 1), *held, *single}
