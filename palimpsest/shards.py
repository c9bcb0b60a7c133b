"""A model whose weights are shared out: each process keeps a share of every one, and of all that goes with it.

Shares are torch's DTensors, cut along the first axis. Whatever is not one of them is whole, and the same everywhere.
What torch needs for this takes a second to import, so it is imported by those who use it.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from .world import World, meet

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

BUCKET = 2**23  # numbers that are sent at once


def share_out(model: nn.Module, units: Iterable[nn.Module], whole: set[nn.Parameter], world: World) -> None:
    """Keep a share of every parameter but the `whole` ones; a unit's are gathered while it is at work (FSDP2)."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    warnings.filterwarnings(
        "ignore", "FSDP2-wrapped module .* returned a view"
    )  # nobody writes into what blocks return
    for module in (*units, model):
        fully_shard(module, mesh=processes(world.device.type, world.size), ignored_params=whole)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # the loss is a mean over all rows already: gradients are to be added
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@cache
def processes(device: str, size: int) -> "DeviceMesh":
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.device_mesh import init_device_mesh

    if not dist.is_initialized():
        meet(HashStore(), rank=0, size=1)
    return init_device_mesh(device, (size,))


def lines_of_their_own() -> dist.ProcessGroup:
    """Between the same processes: those who write while others train do not get in between."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


def is_share(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """What of it is here."""
    return tensor.to_local() if is_share(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def gathered(tensor: Tensor) -> Tensor:
    """All of it."""
    return tensor.full_tensor() if is_share(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def shared_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a tensor that all have, the share that `like` is of its own."""
    if not is_share(like):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def as_shares(rows: Tensor, world: World) -> Tensor:
    """The rows of all processes as one tensor, of which each has its own."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(rows, processes(world.device.type, world.size), [Shard(0)])


def kept_aside(tensor: Tensor, world: World) -> Tensor:
    """A copy in the host's memory, in the same shares."""
    from torch.distributed.tensor import DTensor, Shard

    copy = local(tensor).detach().to("cpu", copy=True)
    if not is_share(tensor):
        return copy
    hosts = processes("cpu", world.size)
    return DTensor.from_local(copy, hosts, [Shard(0)], shape=tensor.shape, stride=tensor.stride())


def by_kind(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Whole ones and shares apart, for what torch does to many tensors at once."""
    tensors = list(tensors)
    kinds = ([tensor for tensor in tensors if is_share(tensor) == kind] for kind in (False, True))
    return [kind for kind in kinds if kind]


def blank(model: nn.Module) -> nn.Module:
    """A whole model to put weights into: itself, unless it is shared out."""
    is_whole = not any(map(is_share, model.parameters()))
    return model if is_whole else model.twin()  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def whole(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with all its weights; a copy on the device, if it is shared out."""
    twin = blank(model)
    if twin is not model:
        twin.to(device)
        for given, shared in zip(tensors_of(twin), tensors_of(model), strict=True):
            given.copy_(gathered(shared))
    return twin


@torch.no_grad()
def fill(model: nn.Module, twin: nn.Module) -> None:
    """Each process takes its shares of the weights of a whole model."""
    if twin is not model:
        for shared, given in zip(tensors_of(model), tensors_of(twin), strict=True):
            shared.copy_(shared_like(given.to(shared.device), shared))


def tensors_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def sum_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Over all processes, of the parameters that are whole; torch adds up the others by itself."""
    if world.size == 1:
        return
    parameters = [parameter for parameter in parameters if not is_share(parameter)]
    reached = world.sum(torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int64))
    gradients = []
    for parameter, found in zip(parameters, reached.tolist(), strict=True):
        if found and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    for bucket in buckets(gradients):
        line = world.sum(torch.cat([gradient.flatten() for gradient in bucket]))
        for gradient, total in zip(bucket, line.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(total.view_as(gradient))


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """As many together as make it worth while to send them."""
    bucket, size = [], 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float, world: World) -> Tensor:
    """To the largest norm of all of them together; returns the one they had."""
    norms, found = [], []
    for kind in by_kind(parameter.grad for parameter in parameters if parameter.grad is not None):
        here = [local(gradient) for gradient in kind]
        norm = get_total_norm(here)
        norms.append(world.sum(norm.square()).sqrt() if is_share(kind[0]) else norm)
        found += here
    norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
    torch._foreach_mul_(found, (largest / (norm + 1e-6)).clamp(max=1.0))  # pyright: ignore[reportPrivateImportUsage]
    return norm


def write_shares(folder: Path, tensors: Mapping[str, Tensor], lines: dist.ProcessGroup) -> None:
    """Each process writes its shares, as safetensors; what all have is written once."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=lines)
    except CheckpointException as failed:
        raise next(error for error, _ in failed.failures.values()) from failed


def read_shares(folder: Path, shared: Collection[str], world: World) -> dict[str, Tensor]:
    """All tensors, those named as shared in shares for as many processes as there are now."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.tensor import Shard, zeros

    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for name, described in reader.read_metadata().state_dict_metadata.items():
        size, dtype = described.size, described.properties.dtype  # pyright: ignore[reportAttributeAccessIssue]
        if name in shared:
            mesh = processes(world.device.type, world.size)
            tensors[name] = zeros(size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        else:
            tensors[name] = torch.empty(size, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is meant: each reads for itself
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors
