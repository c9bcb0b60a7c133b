import copyreg
import os
import pickle
import random
import struct
import sys
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from palimpsest.errors import UserError
from palimpsest.legacy import pickles


class Inner(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.net, self.drop, self.scale = nn.Linear(width, width, bias=False), nn.Dropout(0.1), width**-0.5
        self.proj_matrix = torch.randn(width, 2)


class Outer(nn.Module):
    """In the manner of the originals: a tied table, a list of parameters, a buffer, a tensor that is just assigned."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.width, self.cutoffs, self.clamp, self._hidden = width, [2, 5], None, "yes"
        self.table = nn.Embedding(5, width)
        self.layers = nn.ModuleList([Inner(width), Inner(width)])
        self.projections = nn.ParameterList([nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(1, 2))])
        self.out = nn.Linear(width, 5)
        self.out.weight = self.table.weight
        self.register_buffer("frequencies", torch.arange(3.0))
        self.size, self.kind = torch.Size([2, 3]), torch.float32
        self.options = OrderedDict(depth=2, names=("a", "b"), nested={"x": [1.5, True]})


class Called:
    """Pickled as a call of a function."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


class Woken:
    """Runs something of its own as it is unpickled."""

    def __init__(self, marker: str):
        self.marker = marker

    def __setstate__(self, state):
        Path(state["marker"]).touch()


class Slot:
    """Pickled as a reference to a storage."""

    def __init__(self, key: str, count: int, *view, kind=torch.FloatStorage):
        self.pid = ("storage", kind, key, "cpu", count, *view)


def dump(value, file) -> None:
    writer = pickle.Pickler(file, protocol=2)
    writer.persistent_id = lambda item: item.pid if isinstance(item, Slot) else None
    writer.dump(value)


def write_stream(path: Path, root, **storages: list[float]) -> Path:
    """The older container, with whatever inside."""
    with path.open("wb") as file:
        for value in (pickles.MAGIC, pickles.PROTOCOL, {"little_endian": True}, root, sorted(storages)):
            dump(value, file)
        for _, numbers in sorted(storages.items()):
            file.write(struct.pack(f"<q{len(numbers)}f", len(numbers), *numbers))
    return path


def write_archive(path: Path, root, compression: int = 0, **storages: bytes) -> Path:
    with ZipFile(path, "w", compression) as archive:
        pickled = BytesIO()
        dump(root, pickled)
        archive.writestr("model/data.pkl", root if isinstance(root, bytes) else pickled.getvalue())
        for key, content in storages.items():
            archive.writestr(f"model/data/{key}", content)
    return path


def tensor(slot: Slot, shape=(3,), strides=(1,), offset=0) -> Called:
    return Called(torch._utils._rebuild_tensor_v2, slot, offset, shape, strides, False, OrderedDict())


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        pickles.read(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def same(weights, expected) -> None:
    assert weights.keys() == expected.keys()
    for name in expected:
        assert weights[name].dtype == expected[name].dtype, name
        assert torch.equal(weights[name], expected[name]), name


@pytest.fixture(params=[True, False], ids=["zip", "older"])
def save(request, tmp_path):
    """torch.save in either container."""

    def write(value) -> Path:
        torch.save(value, tmp_path / "saved.pt", _use_new_zipfile_serialization=request.param)
        return tmp_path / "saved.pt"

    return write


def test_a_pickled_module_gives_its_state_dict_and_the_tensors_assigned_to_it(save):
    model = Outer()
    found = pickles.read(save(model))
    assigned = {f"layers.{number}.proj_matrix": layer.proj_matrix for number, layer in enumerate(model.layers)}
    assert found.kind == "module"
    same(found.weights, model.state_dict() | assigned)


def test_a_pickled_module_gives_its_plain_attributes(save):
    attributes = pickles.read(save(Outer())).attributes
    expected = {"width": 4, "cutoffs": [2, 5], "clamp": None, "_hidden": "yes", "size": (2, 3)}
    expected |= {"options": {"depth": 2, "names": ("a", "b"), "nested": {"x": [1.5, True]}}}
    expected |= {"layers.1.scale": 0.5, "layers.0.drop.p": 0.1, "layers.0.net.bias": None, "table.num_embeddings": 5}
    assert expected.items() <= attributes.items()
    assert not {"kind", "training", "_modules", "layers.0._buffers"} & attributes.keys()


def test_tied_parameters_are_one_tensor_and_views_share_their_storage(save):
    tied = pickles.read(save(Outer())).weights
    assert tied["table.weight"] is tied["out.weight"]
    base = torch.randn(4, 3)
    views = pickles.read(save({"base": base, "row": base[2], "turned": base.T})).weights
    same(views, {"base": base, "row": base[2], "turned": base.T})
    views["base"].zero_()
    assert not views["row"].any()
    assert not views["turned"].any()


def test_a_state_dict_keeps_every_kind_of_number(save):
    expected = {str(dtype): torch.tensor([[0, 1], [1, 1]]).to(dtype) for dtype in pickles.DTYPES.values()}
    expected |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "parameter": nn.Parameter(torch.ones(2))}
    found = pickles.read(save(expected))
    assert found.kind == "state dict"
    assert not found.attributes
    same(found.weights, expected)


def test_a_training_checkpoint_gives_the_model_without_its_wrapper(save):
    model = nn.Linear(2, 3)
    optimiser = torch.optim.Adagrad(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimiser.step()
    saved = {"iter_no": 7, "model": nn.DataParallel(model).state_dict(), "optimizer": optimiser.state_dict()}
    found = pickles.read(save(saved | {"logger": {"step": [1, 2]}}))
    assert found.kind == "training checkpoint"
    assert found.attributes == {"iter_no": 7, "logger": {"step": [1, 2]}}
    same(found.weights, model.state_dict())


def test_a_wrapped_module_is_unwrapped(save):
    model = Outer()
    wrapped, bare = pickles.read(save(nn.DataParallel(model))), pickles.read(save(model))
    assert wrapped.attributes == bare.attributes
    same(wrapped.weights, bare.weights)


def test_safetensors_are_read_too(tmp_path):
    expected = nn.Linear(2, 3).state_dict()
    save_file({f"module.{name}": value for name, value in expected.items()}, tmp_path / "w.safetensors", {"a": "b"})
    found = pickles.read(tmp_path / "w.safetensors")
    assert (found.kind, found.attributes) == ("state dict", {"a": "b"})
    same(found.weights, expected)


def test_the_forms_of_older_versions_are_read(tmp_path):
    first = Called(torch._utils._rebuild_tensor, Slot("0", 4, None), 1, (3,), (1,))
    second = Called(nn.Parameter, tensor(Slot("0", 4, ("view", 1, 3)), (2,), (1,), 1), True)
    root = Called(OrderedDict, [["first", first], ["second", second]])
    found = pickles.read(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3, 4]}))
    same(found.weights, {"first": torch.tensor([2.0, 3.0, 4.0]), "second": torch.tensor([3.0, 4.0])})


TRAPS = {
    "a shell": lambda marker: Called(os.system, f"touch {marker}"),
    "a program": lambda marker: Called(exec, f"open({str(marker)!r}, 'w').close()"),
    "a file": lambda marker: Called(open, str(marker), "w"),
    "a class of its own": lambda marker: Woken(str(marker)),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_in_a_file_is_executed(save, tmp_path, trap):
    marker = tmp_path / "marker"
    planted = TRAPS[trap](marker)
    pickle.loads(pickle.dumps(planted))
    assert marker.exists(), "the trap itself works"
    marker.unlink()
    model = Outer()
    model.trap = planted
    assert pickles.read(save(model)).weights.keys() >= model.state_dict().keys()
    assert list(pickles.read(save({"weight": torch.ones(2), "trap": planted})).weights) == ["weight"]
    assert "no weights" in refusal(save(planted))
    assert "no weights" in refusal(write_archive(tmp_path / "trap.pt", planted))
    assert not marker.exists()


def test_nothing_in_a_file_is_imported(tmp_path, monkeypatch):
    (tmp_path / "planted_module.py").write_text("class Thing: pass")
    monkeypatch.syspath_prepend(tmp_path)
    named = b"\x80\x02cplanted_module\nThing\n)\x81}X\x01\x00\x00\x00a]sb."
    assert "no weights" in refusal(write_archive(tmp_path / "trap.pt", named))
    assert "planted_module" not in sys.modules
    pickle.loads(named)
    assert "planted_module" in sys.modules, "the trap itself works"
    del sys.modules["planted_module"]


def test_classes_known_to_python_by_number_are_refused(tmp_path):
    copyreg.add_extension(__name__, "Called", 200)
    try:
        pickle.loads(b"\x80\x02\x82\xc8.")
        assert "by number" in refusal(write_archive(tmp_path / "trap.pt", b"\x80\x02\x82\xc8)R."))
    finally:
        copyreg.remove_extension(__name__, "Called", 200)


def test_what_a_call_returns_may_be_called_and_filled_and_still_does_nothing(tmp_path):
    calls = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01a\x85R\x8c\x01b\x85R(K\x01e(K\x01\x90(K\x01K\x02uK\x01a}b."
    assert "no weights" in refusal(write_archive(tmp_path / "calls.pt", calls))


@pytest.mark.parametrize("part", [0, 1, 9, 30, 0.3, 0.5, 0.9, 0.99, -1])
def test_a_truncated_file_is_refused_in_one_line(save, part):
    path = save(nn.Linear(40, 30).state_dict())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole)) if isinstance(part, float) else part])
    assert str(path) in refusal(path)


def test_a_damaged_file_is_read_or_refused_and_never_breaks_anything_else(save):
    path, chance = save(nn.Linear(3, 2).state_dict()), random.Random(0)
    whole = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 5])):
            damaged[chance.randrange(min(len(whole), 1200))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            found = pickles.read(path)
        except UserError:
            continue
        assert all(value.numel() <= 6 for value in found.weights.values())


def test_what_is_not_a_checkpoint_is_refused_in_one_line(save, tmp_path):
    assert "cannot be opened" in refusal(tmp_path / "missing.pt")
    assert "cannot be opened" in refusal(tmp_path)
    assert "no weights" in refusal(save(torch.optim.SGD(nn.Linear(1, 1).parameters()).state_dict()))
    assert "not a name" in refusal(save({3: torch.ones(1)}))
    save_file({}, tmp_path / "empty.safetensors")
    assert "no weights" in refusal(tmp_path / "empty.safetensors")
    for content in (b"once upon a time", b"PK\x03\x04", pickle.dumps({"weight": 1.0}, 2), bytes(8) + b"{"):
        (tmp_path / "other").write_bytes(content)
        assert "cannot be read as a checkpoint" in refusal(tmp_path / "other")


SHAPES = [((3,), (1,), 0), ((2, 1), (1, 9), 1), ((2,), (2,), 0), ((1,), (1,), 2)]
TOO_WIDE = [
    ((4,), (1,), 0),
    ((2, 2), (2, 1), 0),
    ((3,), (1,), 1),
    ((2,), (3,), 0),
    ((2,), (2**40,), 0),
    ((2,), (2**70,), 0),
    ((2,), (1,), 2**63),
    ((1000,), (0,), 0),
]
NO_SHAPE = [
    ((2,), (-1,), 2),
    ((-2,), (1,), 0),
    ((-2, -1), (1, 1), 0),
    ((2,), (1,), -1),
    ((2.0,), (1,), 0),
    (("2",), (1,), 0),
    ((True,), (1,), 0),
    (2, 1, 0),
]


@pytest.mark.parametrize("shape, strides, offset", SHAPES)
def test_a_tensor_within_its_storage_is_read(tmp_path, shape, strides, offset):
    root = {"weight": tensor(Slot("0", 3), shape, strides, offset)}
    expected = torch.tensor([1.0, 2.0, 3.0]).as_strided(shape, strides, offset)
    content = struct.pack("<3f", 1, 2, 3)
    same(pickles.read(write_archive(tmp_path / "new.pt", root, **{"0": content})).weights, {"weight": expected})
    same(pickles.read(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3]})).weights, {"weight": expected})


@pytest.mark.parametrize(
    "shape, strides, offset, reason",
    [(*wrong, "does not fit its storage") for wrong in TOO_WIDE]
    + [(*wrong, "a shape, stride or offset is") for wrong in NO_SHAPE]
    + [((1,), (2**70,), 0, ""), ((0, 2**70), (1, 1), 0, ""), ((2,), (1, 1), 0, "")],
)
def test_a_tensor_that_leaves_its_storage_is_refused(tmp_path, shape, strides, offset, reason):
    root = {"weight": tensor(Slot("0", 3), shape, strides, offset)}
    assert reason in refusal(write_archive(tmp_path / "new.pt", root, **{"0": bytes(12)}))
    assert reason in refusal(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3]}))


@pytest.mark.parametrize("count", [2, 4, 2**62, 2**70])
def test_a_storage_of_another_size_than_announced_is_refused(tmp_path, count):
    root = {"weight": tensor(Slot("0", count), (1,))}
    assert "too few or too many" in refusal(write_archive(tmp_path / "new.pt", root, **{"0": bytes(12)}))
    assert "are expected" in refusal(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3]}))


@pytest.mark.parametrize("view", [("view", 2, 2), ("view", -1, 2), ("view", 0, -1), ("view", 0, 4)])
def test_a_view_that_leaves_its_storage_is_refused(tmp_path, view):
    root = {"weight": tensor(Slot("0", 3, view), (1,))}
    assert "does not fit it" in refusal(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3]}))


@pytest.mark.parametrize("shape, strides, offset", [((3,), (1,), 0), ((2,), (2,), 0), ((1,), (1,), 2)])
def test_a_tensor_stays_within_its_view(tmp_path, shape, strides, offset):
    root = {"weight": tensor(Slot("0", 3, ("view", 0, 2)), shape, strides, offset)}
    assert "does not fit its storage" in refusal(write_stream(tmp_path / "old.pt", root, **{"0": [1, 2, 3]}))


def test_a_storage_cannot_be_two_things(tmp_path):
    root = {"one": tensor(Slot("0", 3)), "other": tensor(Slot("0", 3, kind=torch.IntStorage))}
    assert "two ways" in refusal(write_archive(tmp_path / "new.pt", root, **{"0": bytes(12)}))
    root = {"one": tensor(Slot("0", 3, kind=dict))}
    assert "unknown type" in refusal(write_archive(tmp_path / "new.pt", root, **{"0": bytes(12)}))


def test_bombs_do_not_go_off(tmp_path):
    root = {"weight": tensor(Slot("0", 2**24), (2**24,))}
    packed = write_archive(tmp_path / "packed.pt", root, ZIP_DEFLATED, **{"0": bytes(2**26)})
    assert "compressed" in refusal(packed)
    remembered = b"\x80\x02]r\xff\xff\xff\x0f."
    assert "remembers" in refusal(write_archive(tmp_path / "memo.pt", remembered))


def test_a_thing_that_holds_itself_does_no_harm(save):
    model, circle, bush = Outer(), [], []
    circle.append(circle)
    for _ in range(60):
        bush = [bush, bush]
    model.circle, model.bush = circle, bush
    found = pickles.read(save(model))
    assert "circle" not in found.attributes
    assert found.attributes["bush"][0] is found.attributes["bush"][1]
    model.again = model
    assert "recursion" in refusal(save(model))
