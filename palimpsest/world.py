"""The machine a run is on, and the processes that share the run. The only place that picks devices and threads."""

import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from .errors import UserError
from .launch import place_on_machine, started_with
from .state import State, map_state
from .version import __version__

Result = TypeVar("Result")

PATIENCE = timedelta(hours=1)  # the others may wait that long for the first to read a corpus or to write a sample


@dataclass(frozen=True)
class World:
    """Where a process stands: on which device, and as which of how many that share a run."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @classmethod
    def enter(cls, device: str = "auto", threads: int | None = None) -> "World":
        """Alone."""
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(pick_device(device))

    @classmethod
    def join(cls, device: str = "auto", threads: int | None = None) -> "World":
        """With all processes that torchrun has started; alone where it has started none beside this one."""
        alone = cls.enter(own_device(device), threads)
        if started_with() == 1:
            return alone
        if alone.device.type == "cuda":
            torch.cuda.set_device(alone.device)
        if not dist.is_initialized():
            meet_the_others()
        return cls(alone.device, dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """The first process speaks and writes for all."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """Which rows of a batch are this process's own: as many as others have, or one fewer."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum(self, numbers: Tensor) -> Tensor:
        """Over all processes; in place."""
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return here if self.size == 1 else bool(self.sum(torch.tensor(int(here))))

    def gather(self, thing: Any) -> list[Any]:
        """What each process brings, in their order."""
        found = [thing] * self.size
        if self.size > 1:
            dist.all_gather_object(found, thing)
        return found

    def together(self, work: Callable[[], Result]) -> Result:
        """Everyone does it. What one is refused, all are refused, in the same words."""
        if self.size == 1:
            return work()
        result, refusal = attempt(work)
        refuse([said for said in self.gather(refusal) if said is not None])
        return result  # pyright: ignore[reportReturnType]

    def first(self, work: Callable[[], Result]) -> Result:
        """The first process does it, for all: they get what it returns, or its refusal."""
        if self.size == 1:
            return work()
        outcome: list[Any] = [attempt(work) if self.is_first else None]
        dist.broadcast_object_list(outcome, src=0)
        result, refusal = outcome[0]
        refuse([refusal] if refusal else [])
        return result

    def in_turn(self, work: Callable[[], Result]) -> Result:
        """The first process does it, then the others, who may find most of it done."""
        result = self.together(work if self.is_first else lambda: None)
        return self.together(lambda: result if self.is_first else work())  # pyright: ignore[reportReturnType]

    def join_rows(self, state: State) -> State:
        """The rows of all processes, in the order of the batch."""
        return state if self.size == 1 else map_state(self.join_leaf, state)

    def join_leaf(self, leaf: Tensor) -> Tensor:
        leaf = leaf.contiguous()
        parts = [torch.empty_like(leaf) for _ in range(self.size)]
        dist.all_gather(parts, leaf)
        return torch.cat(parts)

    def align(self, model: nn.Module) -> None:
        """All begin with the numbers of the first, whatever chance or another processor made of theirs."""
        if self.size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor.detach(), src=0)

    def describe(self) -> dict[str, str | int]:
        """What a reader of the numbers wants to know about the machine they came from."""
        return {
            "palimpsest": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device),
            "processor": processor_name(),
            "cores": os.cpu_count() or 0,
            "threads": torch.get_num_threads(),
            "processes": self.size,
        }


ALONE = World(torch.device("cpu"))


def attempt(work: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """What comes of it, or why nothing does."""
    try:
        return work(), None
    except UserError as error:
        return None, str(error)


def refuse(told: list[str]) -> None:
    if told:
        raise UserError(told[0])


def meet(store: Store, rank: int, size: int) -> None:
    """Numbers of the host go by gloo, those of a GPU by NCCL."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)


def meet_the_others() -> None:
    """Where torchrun says. After a restart that place is still full of the addresses of those who died."""
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    meet(PrefixStore(name_of_meeting(store, rank, size), store), rank, size)


def name_of_meeting(store: Store, rank: int, size: int) -> str:
    """One that only those know who are alive: the first gives it to whoever it finds, until all have heard it."""
    mine = uuid4().hex
    if rank > 0:
        store.set(f"here/{rank}", mine)
        name = store.get(f"name/{mine}").decode()
        store.set(f"heard/{name}/{rank}", "")
        return name
    waiting = {*range(1, size)}
    while waiting:
        for other in sorted(waiting):
            if store.check([f"here/{other}"]):
                store.set(f"name/{store.get(f'here/{other}').decode()}", mine)
            if store.check([f"heard/{mine}/{other}"]):
                waiting.remove(other)
        time.sleep(0.01)
    return mine


def own_device(name: str) -> str:
    """Of several GPUs each process on a machine takes its own."""
    if started_with() == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{place_on_machine() % torch.cuda.device_count()}"


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # "meta" holds no numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the device {name!r} cannot be used ({reason}); --device auto takes what is there") from error
    return device


def in_this_thread() -> AbstractContextManager[None]:
    """Gradients are found by who asks for them: there is one device, whose own thread torch would only have to wake."""
    return torch.autograd.set_multithreading_enabled(False)


def processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
