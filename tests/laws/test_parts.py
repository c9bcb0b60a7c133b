"""The laws of parts: every Spec of the package can be named, built and compared, and does what it says."""

from dataclasses import FrozenInstanceError, fields
from importlib import import_module
from pkgutil import walk_packages
from typing import get_type_hints

import pytest
import torch
from closeness import close
from hypothesis import given
from hypothesis import strategies as st

import palimpsest
from palimpsest.attention.positions import LearnedRelative
from palimpsest.errors import UserError
from palimpsest.memory.feature_maps import DPFP, Favor, FeatureMap
from palimpsest.memory.key_scales import KeyScale, SumToOne, UnitNorm
from palimpsest.memory.update_rules import FeatureGatedDelta, GatedDelta, GatedSum
from palimpsest.spec import Spec, bounds_of

for module in walk_packages(palimpsest.__path__, "palimpsest."):
    if not module.name.endswith("__main__"):
        import_module(module.name)

KINDS = [kind for kind in Spec.__subclasses__() if kind.__module__.startswith("palimpsest.")]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_part = pytest.mark.parametrize("kind, part", [(kind, part) for kind in KINDS for part in kind.variants()])

FEATURE_MAPS = [*(variant() for variant in FeatureMap.variants()), DPFP(nu=2), DPFP(nu=5), Favor(directions=7)]
every_feature_map = pytest.mark.parametrize("feature_map", FEATURE_MAPS, ids=repr)
numbers = st.lists(st.floats(-20, 20), min_size=4, max_size=4).map(lambda x: torch.tensor(x, dtype=torch.float64))


@every_part
def test_a_part_is_a_value(kind, part):
    one, other = part(), part()
    assert one == other
    assert hash(one) == hash(other)
    for name in (*(field.name for field in fields(one)), "invented"):
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(one, name, None)


@every_part
def test_a_part_says_what_it_is_in_one_line(kind, part):
    assert part.summary().strip()
    assert "\n" not in part.summary()


@every_part
def test_a_part_is_found_by_its_name(kind, part):
    for name in (part.__name__, part.__name__.lower(), part.__name__.upper()):
        assert kind.named(name) is part


@every_part
def test_a_misspelt_name_gets_a_suggestion(kind, part):
    with pytest.raises(UserError, match=rf"did you mean \w+\? There are: .*\b{part.__name__}\b"):
        kind.named(part.__name__ + "e")


@every_kind
def test_a_name_that_is_like_no_other_gets_the_list(kind):
    with pytest.raises(UserError, match=r"^unknown [a-z ]+ 'qqq'\. There are: ") as refused:
        kind.named("qqq")
    assert all(part.__name__ in str(refused.value) for part in kind.variants())


def numbers_of(part: type[Spec], kind: type) -> list[str]:
    """The names of its fields that hold a number of this kind, and perhaps None."""
    return [field.name for field in fields(part) if get_type_hints(part)[field.name] in (kind, kind | None)]


def says(refused, name: str, found: float) -> bool:
    """Whether a refusal names the field, by itself or in a sentence, and what was found."""
    text, word = str(refused.value), name.replace("_", " ").removesuffix("s")
    return word in text and str(found) in text


@every_part
def test_a_whole_number_is_at_least_one_or_its_type_says_that_it_may_be_nought(kind, part):
    for name in set(numbers_of(part, int)) - {"seed"}:
        nought = name in bounds_of(part) and bounds_of(part)[name].holds(0)
        for count in (-1,) if nought else (-1, 0):
            with pytest.raises(UserError) as refused:
                part(**{name: count})
            assert says(refused, name, count), f"{part.__name__}({name}={count}): {refused.value}"


@every_part
def test_a_number_that_its_type_excludes_is_refused_by_name(kind, part):
    for name, bound in bounds_of(part).items():
        for number in (-1, -0.5, 0, 1, 1.5, float("nan")):
            if not bound.holds(number):
                fault = rf"^{name.replace('_', ' ')} of {part.__name__} is .*; found {number}$"
                with pytest.raises(UserError, match=fault):
                    part(**{name: number})


@every_part
def test_dropout_leaves_something_and_an_epsilon_is_not_negative(kind, part):
    nonsense = {"dropout": (-0.1, 1.0, 1.5), "epsilon": (-1e-5,), "floor": (-1e-5,)}
    for name in nonsense.keys() & set(numbers_of(part, float)):
        for number in nonsense[name]:
            with pytest.raises(UserError, match=rf"^{name} .*; found {number}$"):
                part(**{name: number})


@pytest.mark.parametrize("part", [GatedSum, GatedDelta, FeatureGatedDelta])
def test_a_memory_that_shall_forget_nothing_at_first_is_told_of_a_number_that_nearly_does_so(part):
    with pytest.raises(UserError, match=r"keep of .* as 0\.999, .*; found 1\.0"):
        part(keep=1.0)
    part(keep=0.999).build(8, 2, 4)


@pytest.mark.parametrize("clamp", [None, 1, 3, 5])
def test_distances_beyond_the_clamp_share_a_vector(clamp):
    assert LearnedRelative(reach=4, clamp=clamp).build(8, 2, 4).farthest == (3 if clamp is None else min(4, clamp) - 1)


@every_feature_map
@pytest.mark.parametrize("head_width", (1, 2, 4, 5))
def test_a_feature_map_has_the_width_it_says(feature_map, head_width):
    features = feature_map.build(head_width)(torch.randn(2, 3, 2, head_width))
    assert features.shape == (2, 3, 2, feature_map.features(head_width))


@every_feature_map
@given(x=numbers, others=numbers)
def test_a_feature_map_sees_each_token_and_head_by_itself(feature_map, x, others):
    module = feature_map.build(4).double()
    close(module(torch.stack([x, others]))[0], module(x))


@pytest.mark.parametrize("feature_map", [each for each in FEATURE_MAPS if each.non_negative], ids=repr)
@given(x=numbers)
def test_features_said_to_be_non_negative_are(feature_map, x):
    features = feature_map.build(4).double()(x)
    assert (features >= 0).all()
    assert features.isfinite().all()


@pytest.mark.parametrize("feature_map", [each for each in FEATURE_MAPS if not each.non_negative], ids=repr)
def test_features_said_to_be_signed_are(feature_map):
    assert (feature_map.build(4)(torch.linspace(-3, 3, 40).view(10, 4)) < 0).any()


@pytest.mark.parametrize("key_scale", [variant() for variant in KeyScale.variants()], ids=repr)
@given(x=numbers)
def test_scaled_keys_point_where_they_did_and_zero_stays_zero(key_scale, x):
    features = x.abs() if key_scale.needs_non_negative else x
    scaled = key_scale(features)
    assert scaled.isfinite().all()
    close(scaled * features.norm(), features * scaled.norm())
    assert not key_scale(torch.zeros(4)).any()


@pytest.mark.parametrize("key_scale", [variant() for variant in KeyScale.variants()], ids=repr)
def test_the_gradient_of_a_scaled_zero_is_finite(key_scale):
    zero = torch.zeros(4, requires_grad=True)
    key_scale(zero).sum().backward()
    assert zero.grad.isfinite().all()


@given(x=numbers.filter(lambda x: x.abs().sum() > 1e-6))
def test_keys_that_sum_to_one_do(x):
    close(SumToOne()(x.abs()).sum(), torch.tensor(1.0))


@given(x=numbers.filter(lambda x: x.norm() > 1e-3))
def test_keys_of_unit_norm_have_it(x):
    close(UnitNorm(epsilon=0.0)(x).norm(), torch.tensor(1.0))
    close(UnitNorm()(x) * (x.square().sum() + 1e-6).sqrt(), x)


def test_the_directions_of_favor_are_orthogonal_in_blocks_as_wide_as_a_head():
    matrix = Favor(directions=10).build(4).matrix
    for block in matrix.split(4, dim=1):
        overlaps = block.T @ block
        close(overlaps, overlaps.diag().diag())


def test_the_features_of_favor_stand_for_the_softmax_kernel():
    module = Favor(directions=2**14, epsilon=0.0).build(4)
    queries, keys = 0.6 * UnitNorm()(torch.randn(2, 20, 4))
    close(module(queries) @ module(keys).T, (queries @ keys.T).exp(), 0.02)  # four standard deviations


def test_the_directions_of_favor_are_drawn_by_their_own_generator():
    before = torch.get_rng_state()
    one, other = (Favor().build(4) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.matrix, other.matrix)


def test_the_directions_of_favor_are_saved_with_the_model():
    one, other = (Favor().build(4) for _ in range(2))
    other.initialise(torch.Generator().manual_seed(1))
    x = torch.randn(3, 4)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))
