"""Checkpoints of the original toolkits, read without importing or calling anything that they name.

A pickle is a small program. Here every class or function that it asks for is an empty `Record`, which only writes
down what it is given. Tensors and plain values are taken out of the records afterwards.
"""

import math
import os
import pickle
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from pickletools import genops
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol
from zipfile import ZIP_STORED, ZipFile

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import UserError

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # how torch's older container begins
DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
TENSORS = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"}
PARAMETERS = {
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.nn.parameter.Parameter",
}
MACHINERY = frozenset(vars(nn.Module()))  # what torch itself keeps in every module
WRAPPER = "module"  # the only child of DataParallel and its like
OPAQUE = object()


@dataclass(frozen=True)
class Checkpoint:
    """Tensors under their names in the state dict, plain values under dotted paths, and what the file was."""

    weights: dict[str, Tensor]
    attributes: dict[str, Any]
    kind: Literal["state dict", "training checkpoint", "module"]


def read(path: Path) -> Checkpoint:
    """A state dict, a training checkpoint or a whole module, from safetensors or either container of torch.save."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"the checkpoint {path} cannot be opened: {error.strerror}") from error
    with file:
        try:
            found = parse(file, path)
            if not found.weights:
                raise ValueError("there are no weights in it")
            return found
        except Exception as error:  # a damaged or hostile file may bring about any of them
            reason = " ".join((str(error) or type(error).__name__).split())[:200]
            raise UserError(
                f"{path} cannot be read as a checkpoint: {reason}; it must be safetensors, or a state dict, "
                "a training checkpoint or a module as torch.save wrote it"
            ) from error


def parse(file: BinaryIO, path: Path) -> Checkpoint:
    start = file.read(9)
    file.seek(0)
    if start.startswith(b"PK"):
        return take_out(Archive(file))
    if start.endswith(b"{"):  # after the length of the header, whose bytes may be any
        with safe_open(path, "pt") as tensors:
            weights = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
            return Checkpoint(without_wrapper(weights), dict(tensors.metadata() or {}), "state dict")
    if start.startswith(pickle.PROTO):
        return take_out(Stream(file))
    raise ValueError("it begins like none of them")


# ------------------------------------------------------------------------------------------- unpickling


class Record:
    """Stands for anything a pickle names or makes, and does nothing but remember what it was given."""

    named = ""
    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]

    def __new__(cls, *args: Any, **_: Any):
        record = super().__new__(cls)
        record.args, record.state, record.items = args, None, {}
        return record

    def __call__(self, *args: Any, **_: Any) -> "Record":
        return Record(self, *args)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, _: Any) -> None: ...

    def extend(self, _: Any) -> None: ...

    def add(self, _: Any) -> None: ...


class Storage(NamedTuple):
    """A stretch of `size` numbers from `start` on, of the `count` stored under a key."""

    key: str
    dtype: torch.dtype
    count: int
    start: int
    size: int


class Unpickler(pickle.Unpickler):
    """Knows no class and no function: whatever is named becomes a kind of Record made for this file alone."""

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="utf-8", errors="surrogateescape")
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> type[Record]:
        return type("Record", (Record,), {"named": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("module", kind, *_):  # the older container adds the source of a class
                return kind
            case ("storage", kind, str(key), _, int(count)) | ("storage", kind, str(key), _, int(count), None):
                return self.storage(key, kind, count, 0, count)
            case ("storage", kind, str(key), _, int(count), (_, int(start), int(size))):
                return self.storage(key, kind, count, start, size)
        raise ValueError("it refers to something that is not a storage")

    def storage(self, key: str, kind: Any, count: int, start: int, size: int) -> Storage:
        room, _, name = getattr(kind, "named", "").rpartition(".")
        if room not in ("torch", "torch.cuda") or name not in DTYPES:
            raise ValueError(f"it has a storage of the unknown type {room}.{name}")
        if min(count, start, size) < 0 or start + size > count:
            raise ValueError(f"the view of storage {key!r} does not fit it")
        storage = Storage(key, DTYPES[name], count, start, size)
        self.storages.setdefault(key, storage)
        return storage


def unpickler(file: BinaryIO) -> Unpickler:
    """Looks the pickle through first, for two things that would not pass through the Unpickler's own methods.

    Python makes room for the largest memo number named, however large, and keeps a table of numbered classes.
    """
    start = file.tell()
    for number, (opcode, argument, _) in enumerate(genops(file)):
        if opcode.name.endswith("PUT") and argument is not None and int(argument) > number:
            raise ValueError("its pickle numbers what it remembers wrongly")
        if opcode.name.startswith("EXT"):
            raise ValueError("its pickle names classes by number")
    file.seek(start)
    return Unpickler(file)


# ------------------------------------------------------------------------------------------- containers


class Container(Protocol):
    """A pickled object and the bytes of its storages."""

    root: Any

    def content(self, storage: Storage) -> bytes: ...


class Archive:
    """The zip that torch.save writes since 1.6: data.pkl, and one file for each storage."""

    def __init__(self, file: BinaryIO):
        self.zip = ZipFile(file)
        found = [name for name in self.zip.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(found) != 1:
            raise ValueError(f"it is a zip archive with {len(found)} files data.pkl in it")
        self.folder = found[0].removesuffix("data.pkl")
        if f"{self.folder}byteorder" in self.zip.namelist() and self.member("byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        self.root = unpickler(BytesIO(self.member("data.pkl"))).load()

    def member(self, name: str) -> bytes:
        info = self.zip.getinfo(self.folder + name)
        if info.compress_type != ZIP_STORED:
            raise ValueError(f"{info.filename!r} in it is compressed, which torch.save never does")
        return self.zip.read(info)

    def content(self, storage: Storage) -> bytes:
        return self.member(f"data/{storage.key}")


class Stream:
    """What torch.save wrote before 1.6: five pickles, the fourth being the object, then one storage after another."""

    def __init__(self, file: BinaryIO):
        self.file = file
        magic, protocol, machine = (unpickler(file).load() for _ in range(3))
        if (magic, protocol) != (MAGIC, PROTOCOL):
            raise ValueError("it is a pickle, but not one of torch.save")
        if not machine["little_endian"]:
            raise ValueError("its numbers are not little-endian")
        reader = unpickler(file)
        self.root = reader.load()
        keys = unpickler(file).load()
        self.places = {key: self.skip(reader.storages[key]) for key in keys}

    def skip(self, storage: Storage) -> int:
        """Over one storage, returning where it begins."""
        (count,) = struct.unpack("<q", self.file.read(8))
        if count != storage.count:
            raise ValueError(f"storage {storage.key!r} has {count:,} numbers, where {storage.count:,} are expected")
        place = self.file.tell()
        self.file.seek(count * storage.dtype.itemsize, os.SEEK_CUR)
        return place

    def content(self, storage: Storage) -> bytes:
        self.file.seek(self.places[storage.key])
        return self.file.read(storage.count * storage.dtype.itemsize)


# --------------------------------------------------------------------------------------------- tensors


class Tensors:
    """The tensors behind records, each made once, sharing storages as they did when they were saved."""

    def __init__(self, container: Container):
        self.container = container
        self.storages: dict[str, Tensor] = {}
        self.made: dict[int, Tensor] = {}

    def of(self, value: Any) -> Tensor | None:
        """None where the value is not a tensor."""
        while isinstance(value, Record) and value.named in PARAMETERS:
            value = value.args[0]
        if not isinstance(value, Record) or value.named not in TENSORS:
            return None
        if id(value) not in self.made:
            self.made[id(value)] = self.view(*value.args[:4])
        return self.made[id(value)]

    def view(self, storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
        if not isinstance(storage, Storage):
            raise ValueError("it has a tensor without a storage")
        (offset,), shape, strides = naturals([offset]), naturals(shape), naturals(strides)
        whole, count = self.storage(storage), math.prod(shape)
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if count == 0:
            return whole.new_empty(shape)
        if count > storage.size or last >= storage.size:
            raise ValueError(f"a tensor of shape {shape} does not fit its storage of {storage.size:,} numbers")
        return whole.as_strided(shape, strides, storage.start + offset)

    def storage(self, storage: Storage) -> Tensor:
        if storage.key not in self.storages:
            content = self.container.content(storage)
            if len(content) != storage.count * storage.dtype.itemsize:
                raise ValueError(f"storage {storage.key!r} has {len(content):,} bytes, too few or too many")
            self.storages[storage.key] = (
                torch.frombuffer(bytearray(content), dtype=storage.dtype)
                if content
                else torch.empty(0, dtype=storage.dtype)
            )
        whole = self.storages[storage.key]
        if (whole.dtype, len(whole)) != (storage.dtype, storage.count):
            raise ValueError(f"storage {storage.key!r} is described in two ways")
        return whole


def naturals(numbers: Any) -> tuple[int, ...]:
    if is_size(numbers):
        (numbers,) = numbers.args
    if not isinstance(numbers, (tuple, list)) or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"a shape, stride or offset is {numbers!r}")
    return tuple(numbers)


# -------------------------------------------------------------------------------------- what was saved


def take_out(container: Container) -> Checkpoint:
    tensors, whole = Tensors(container), mapping(container.root)
    if whole is not None and (is_module(whole.get("model")) or mapping(whole.get("model"))):
        weights, within = sort(entries(whole.pop("model")), tensors)
        kind, attributes = "training checkpoint", {**within, **plain_values(whole.items())}
    else:
        weights, attributes = sort(entries(container.root), tensors)
        kind = "state dict" if whole is not None else "module"
    return Checkpoint(without_wrapper(weights), attributes, kind)


def entries(value: Any) -> Iterable[tuple[str, Any]]:
    return walk(value) if is_module(value) else (mapping(value) or {}).items()


def walk(module: Record, path: str = "") -> Iterator[tuple[str, Any]]:
    """All that a module and its children hold: parameters and buffers, then whatever else was assigned to it."""
    held = {part: mapping(module.state[part]) or {} for part in ("_parameters", "_buffers", "_modules")}
    children = {name: child for name, child in held["_modules"].items() if is_module(child)}
    if not path and list(children) == [WRAPPER] and not held["_parameters"]:
        yield from walk(children[WRAPPER])
        return
    others = {name: value for name, value in module.state.items() if name not in MACHINERY}
    for name, value in (held["_parameters"] | held["_buffers"] | others).items():
        yield f"{path}{name}", value
    for name, child in children.items():
        yield from walk(child, f"{path}{name}.")


def sort(found: Iterable[tuple[str, Any]], tensors: Tensors) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors apart from plain values; what is neither is left behind."""
    weights, others = {}, []
    for name, value in found:
        tensor = tensors.of(value)
        if tensor is None:
            others.append((name, value))
        elif isinstance(name, str):
            weights[name] = tensor
        else:
            raise ValueError(f"a tensor in it is called {name!r}, which is not a name")
    return weights, plain_values(others)


def without_wrapper(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """DataParallel puts one more word before every name."""
    if not all(name.startswith(f"{WRAPPER}.") for name in weights):
        return weights
    return {name.removeprefix(f"{WRAPPER}."): tensor for name, tensor in weights.items()}


def is_module(value: Any) -> bool:
    parts = {"_parameters", "_buffers", "_modules"}
    return isinstance(value, Record) and isinstance(value.state, dict) and parts <= value.state.keys()


def is_size(value: Any) -> bool:
    return isinstance(value, Record) and value.named == "torch.Size"


def mapping(value: Any) -> dict[Any, Any] | None:
    """A dict, from a dict or an ordered one; Python 2 gave the latter its items at birth."""
    if type(value) is dict:
        return dict(value)
    if isinstance(value, Record) and value.named == "collections.OrderedDict":
        return {**dict(*value.args), **value.items}
    return None


def plain_values(found: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Numbers, strings, truths, None, and lists, tuples and dicts of these."""
    seen: dict[int, Any] = {}
    values = {name: plain(value, seen) for name, value in found}
    return {name: value for name, value in values.items() if isinstance(name, str) and value is not OPAQUE}


def plain(value: Any, seen: dict[int, Any]) -> Any:
    """The value without its records, or OPAQUE. Each thing is looked at once, however often it is held."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if id(value) not in seen:
        seen[id(value)] = OPAQUE  # and so it stays where it holds itself
        seen[id(value)] = plain_collection(value, seen)
    return seen[id(value)]


def plain_collection(value: Any, seen: dict[int, Any]) -> Any:
    pairs = mapping(value)
    if pairs is not None:
        made = {name: plain(item, seen) for name, item in pairs.items() if type(name) in (bool, int, float, str)}
        return made if len(made) == len(pairs) and OPAQUE not in made.values() else OPAQUE
    if is_size(value):
        return naturals(value)
    if type(value) in (list, tuple):
        items = [plain(item, seen) for item in value]
        return OPAQUE if OPAQUE in items else type(value)(items)
    return OPAQUE
