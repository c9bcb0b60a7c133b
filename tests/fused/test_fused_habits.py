"""Habits: what is done again without a question is the same to the bit, and whatever is unusual is done as ever."""

import pytest
import torch
from forms import as_launched
from test_fused_repeating import DOORS, KERNELS, drawn, interpreted, outcome, same, summed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from palimpsest.kernels import Gates, Relative, memory_scan, relative_attention
from palimpsest.kernels.fused import attention, habits, scan, sums
from palimpsest.look import Look

TOKENS = (1, 5, 2, 16)
pytestmark = [
    interpreted,
    pytest.mark.skipif(not habits.compares(), reason="torch has nothing to compare layouts with"),
]


def delta(queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor) -> tuple[Tensor, ...]:
    look = Look(map="EluPlusOne", scale="SumToOne")
    return memory_scan(queries, keys, values, Gates(None, gate, gate), look=look, backend="fused")


def placed(queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    terms = {"relative": Relative(None, table), "mask": mask.sigmoid()}
    return (relative_attention(queries, keys, values, backend="fused", **terms),)


USUAL = {
    "scan": (scan, delta, [TOKENS, TOKENS, TOKENS, TOKENS[:3]]),
    "sum": (sums, summed, [TOKENS, TOKENS, TOKENS]),
    "attention": (attention, placed, [TOKENS, TOKENS, TOKENS, (5, 2, 16), (2, 5)]),
}
every_door = pytest.mark.parametrize("accustomed", USUAL, indirect=True)
any_door = pytest.mark.parametrize("accustomed", ["sum"], indirect=True)  # what is asked before it is seen which it is


@pytest.fixture
def followed(monkeypatch):
    """How often a habit was followed, there and back."""
    counts = {"there": 0, "back": 0}
    usual, usual_step = habits.apply, habits.Habit.backward

    def there(*given):
        counts["there"] += 1
        return usual(*given)

    def back(self, saved, grads):
        counts["back"] += 1
        return usual_step(self, saved, grads)

    monkeypatch.setattr(habits, "apply", there)
    monkeypatch.setattr(habits.Habit, "backward", back)
    return counts


@pytest.fixture
def accustomed(request, monkeypatch, followed):
    """A door that has its habit, what it was given, and what came of that."""
    module, door, shapes = USUAL[request.param]
    given = drawn(0, shapes)
    expected = outcome(door, given)
    as_launched(monkeypatch, module, KERNELS[module])
    if module is sums:
        monkeypatch.setattr(scan, "known_of", sums.known_of)
    for _ in range(4):
        same(outcome(door, given), expected)
    followed.update(there=0, back=0)
    return door, given, expected


@every_door
def test_a_habit_is_followed_there_and_back(accustomed, followed, monkeypatch):
    door, given, expected = accustomed
    monkeypatch.setattr(habits.Habit, "step_back", None)
    same(outcome(door, given), expected)
    assert followed == {"there": 1, "back": 1}


@every_door
def test_who_asks_twice_gets_the_same_gradients(accustomed):
    door, given, expected = accustomed
    found = door(*given)
    coming = [x.to(one.dtype) for x, one in zip(drawn(3, [x.shape for x in found]), found, strict=True)]
    for _ in range(2):
        same(torch.autograd.grad(found, given, coming, retain_graph=True), expected[len(found) :])
    graphed = torch.autograd.grad(found, given, coming, create_graph=True)
    same(graphed, expected[len(found) :])
    with pytest.raises(RuntimeError, match="once_differentiable"):
        graphed[0].sum().backward()


def turned(x: Tensor) -> Tensor:
    """The same, laid out otherwise."""
    return x.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def strayed(x: Tensor) -> Tensor:
    """The same, where no wide access may start."""
    return torch.zeros(x.numel() + 1)[1:].view(x.shape).copy_(x.detach())


@any_door
@pytest.mark.parametrize("change", [strayed, Tensor.detach])
def test_what_starts_elsewhere_or_asks_for_no_gradient_is_not_of_the_habit(accustomed, followed, change):
    door, (first, *others), expected = accustomed
    found = door(change(first), *others)
    same(found, expected[: len(found)])
    assert followed["there"] == 0


@any_door
def test_another_layout_is_not_of_the_habit(accustomed, followed):
    door, given, expected = accustomed
    longer = [torch.cat([x, x]).requires_grad_() if x.shape[0] == 1 else x for x in given]
    found = door(*longer)
    same([x[:1] for x in found], expected[: len(found)])
    assert followed["there"] == 0


@every_door
def test_gradients_that_lie_elsewhere_go_step_by_step(accustomed, followed):
    door, given, expected = accustomed
    found = door(*given)
    coming = [x.to(one.dtype) for x, one in zip(drawn(3, [x.shape for x in found]), found, strict=True)]
    strewn = [torch.stack([x, x], -1)[..., 0] for x in coming]
    same(torch.autograd.grad(found, given, strewn), expected[len(found) :])
    assert followed == {"there": 1, "back": 1}


@every_door
def test_saved_tensors_may_come_back_laid_out_otherwise(accustomed):
    door, given, expected = accustomed

    def unpack(x: Tensor) -> Tensor:
        return turned(x[0].detach())[None] if x.shape == TOKENS else x.clone()

    with torch.autograd.graph.saved_tensors_hooks(Tensor.detach, unpack):
        same(outcome(door, given), expected)


class Following(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.seen += "palimpsest" in operation.name()
        return operation(*arguments, **(options or {}))


@any_door
def test_who_follows_operations_sees_them(accustomed, followed):
    door, given, expected = accustomed
    with Following() as following:
        same(outcome(door, given), expected)
    assert following.seen == 2
    assert followed["there"] == 0


@any_door
def test_without_gradients_there_is_no_habit(accustomed, followed):
    door, given, expected = accustomed
    with torch.no_grad():
        found = door(*given)
    same(found, expected[: len(found)])
    assert followed["there"] == 0


@any_door
def test_anomalies_are_looked_for(accustomed, followed):
    door, given, expected = accustomed
    with torch.autograd.set_detect_anomaly(True):
        same(outcome(door, given), expected)
    assert followed == {"there": 1, "back": 1}


def test_a_memory_goes_there_by_habit_and_back_step_by_step(monkeypatch, followed):
    module, door, shapes = DOORS["scan"]
    given = drawn(0, shapes)
    expected = outcome(door, given)
    as_launched(monkeypatch, module, KERNELS[module])
    for _ in range(5):
        same(outcome(door, given), expected)
    assert followed["there"] >= 2
