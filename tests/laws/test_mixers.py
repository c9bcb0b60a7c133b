"""The laws of mixers: held by every sentence that can be said, and by every mixer that will be added."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from closeness import all_close, close, states_close
from forms import EXACT_BACKENDS
from pairs import fewest_with_every_pair
from torch import Tensor, nn

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.attention.positions import (
    LearnedRelative,
    NoPositions,
    Positions,
    Rotary,
    SharedRelative,
    SinusoidalRelative,
)
from palimpsest.attention.spans import Adaptive, Fixed, SegmentCache, Span
from palimpsest.errors import UserError
from palimpsest.kernels import counted_scan, memory_scan
from palimpsest.legacy.from_lmtool_memory import BareQueryMemory
from palimpsest.legacy.transformer_xl import AbsoluteAttention
from palimpsest.memory.convolutions import Convolution, ShortConvolution
from palimpsest.memory.feature_maps import DPFP, FeatureMap, StabilisedFavor
from palimpsest.memory.key_scales import KeyScale, SumToOne, UnitNorm, Unscaled
from palimpsest.memory.read_outs import GatedNorm, Normalised, Plain, ReadOut, ReadsNorm
from palimpsest.memory.update_rules import (
    Delta,
    DeltaProduct,
    FeatureGatedDelta,
    GatedDelta,
    NormalisedDelta,
    UpdateRule,
)
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.mixer import Mixer, MixerModule
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.spec import Spec
from palimpsest.state import State, detach, leaves, rows_of

WIDTH, HEADS, LENGTH, CHUNK = 8, 2, 6, 4


def every(*kinds: type[Spec]) -> list[tuple[Spec, ...]]:
    return list(product(*([variant() for variant in kind.variants()] for kind in kinds)))


def may_be_said(feature_map: FeatureMap, key_scale: KeyScale, update_rule: UpdateRule, read_out: ReadOut) -> bool:
    sums = key_scale.needs_non_negative or update_rule.counts_keys or read_out.counts_keys
    return feature_map.non_negative or not sums


def sentence(mixer: Mixer) -> str:
    parts = (getattr(mixer, field.name) for field in fields(mixer))
    return " ".join([type(mixer).__name__, *(repr(part).split("(")[0] for part in parts if isinstance(part, Spec))])


MEMORIES = every(FeatureMap, KeyScale, UpdateRule, ReadOut)
SAID = fewest_with_every_pair(parts for parts in MEMORIES if may_be_said(*parts))
FAST_WEIGHTS = [FastWeight(*parts, heads=HEADS) for parts in SAID]
FAST_WEIGHTS.append(FastWeight(DPFP(nu=3), heads=HEADS))
FAST_WEIGHTS += [  # whose pages are in units of the highest key so far
    FastWeight(StabilisedFavor(directions=3), Unscaled(), rule(), Normalised(), heads=HEADS, key_heads=1)
    for rule in UpdateRule.variants()
    if not rule.erases
]
CONVOLUTIONS = [*(variant() for variant in Convolution.variants()), ShortConvolution(1), ShortConvolution(9)]
FAST_WEIGHTS += [
    FastWeight(update_rule=rule, read_out=read_out, heads=HEADS, convolution=convolution)
    for (rule, read_out), convolution in product([(Delta(), Plain()), (NormalisedDelta(), Normalised())], CONVOLUTIONS)
]
MEMORY = FastWeight(heads=HEADS)
HEAD_SIZES = [  # heads that share keys, differ in width, map their values or write several times
    replace(MEMORY, key_heads=1),
    replace(MEMORY, key_heads=1, update_rule=NormalisedDelta(), read_out=Normalised()),
    replace(MEMORY, key_heads=1, update_rule=FeatureGatedDelta(), feature_map=DPFP(nu=2)),
    replace(MEMORY, head_width=3),
    replace(MEMORY, value_width=3),
    replace(MEMORY, head_width=3, value_width=5, read_out=GatedNorm(), convolution=ShortConvolution(3)),
    replace(MEMORY, key_heads=1, update_rule=DeltaProduct(writes=3), convolution=ShortConvolution(2)),
    replace(MEMORY, update_rule=GatedDelta(writes=2), read_out=Normalised()),
    *(replace(MEMORY, value_map=variant()) for variant in FeatureMap.variants()),
]
FAST_WEIGHTS += HEAD_SIZES
SPANS = [Fixed(2), Fixed(3), SegmentCache(0), SegmentCache(3, same_length=True), Adaptive(limit=5, ramp=2, initial=0.3)]
PERSISTENT = [PersistentVectors(3)]
ATTENTIONS = [SoftmaxAttention(*parts, heads=HEADS) for parts in every(Positions, Span)]
ATTENTIONS += [SoftmaxAttention(*parts, span, heads=HEADS) for parts in every(Positions) for span in SPANS]
ATTENTIONS += [
    SoftmaxAttention(SharedRelative(4), span, vectors, heads=HEADS, head_width=3)
    for span, vectors in product([*(variant() for variant in Span.variants()), *SPANS], [None, *PERSISTENT])
]
ATTENTIONS += [
    SoftmaxAttention(NoPositions(), Fixed(1), heads=HEADS),
    SoftmaxAttention(LearnedRelative(3, clamp=2), heads=HEADS),
]
ATTENTIONS += [SoftmaxAttention(SinusoidalRelative(clamp=2), heads=HEADS)]
QK_NORM = [
    SoftmaxAttention(Rotary(), span, heads=HEADS, key_scale=UnitNorm(), score_scale=2.0)
    for span in (Fixed(4), SegmentCache(3, same_length=True))
]
ATTENTIONS += QK_NORM
OTHERS = [variant() for variant in Mixer.variants() if variant not in (FastWeight, SoftmaxAttention)]

every_mixer = pytest.mark.parametrize("spec", [*FAST_WEIGHTS, *ATTENTIONS, *OTHERS], ids=sentence)
INVARIANT = [spec for spec in (*FAST_WEIGHTS, *ATTENTIONS, *OTHERS) if spec.segment_invariant]
every_invariant_mixer = pytest.mark.parametrize("spec", INVARIANT, ids=sentence)
every_fast_weight = pytest.mark.parametrize("spec", FAST_WEIGHTS, ids=sentence)


def built(spec: Mixer, norm: nn.Module | None = None) -> MixerModule:
    """With weights large enough to leave the neighbourhood of zero, where maps and gates are nearly straight.

    What is put right after each step, as spans are, has a range to stay in and keeps the value it starts from.
    """
    mixer = spec.build(WIDTH, norm)
    bounded = {id(kept) for module in mixer.modules() if hasattr(module, "after_step") for kept in module.parameters()}
    for parameter in mixer.parameters():
        if id(parameter) not in bounded:
            nn.init.normal_(parameter, std=0.5)
    return mixer


def outcome(mixer: MixerModule, x: Tensor, cut: int | None = None) -> dict[str, Tensor]:
    """Output, state and the gradient of everything learned and read, of one weighted sum of output and state."""
    x = x.detach().requires_grad_()
    y, state = mixer(x) if cut is None else in_two(mixer, x, cut)
    results = {"output": y} | {f"leaf {number} of the state": leaf for number, leaf in enumerate(leaves(state))}
    chance = torch.Generator().manual_seed(1)
    mixer.zero_grad()
    sum((z * torch.randn(z.shape, generator=chance)).sum() for z in results.values() if z.requires_grad).backward()
    gradients = {f"gradient of {name}": learned.grad for name, learned in mixer.named_parameters()}
    return {name: z.detach() for name, z in results.items()} | gradients | {"gradient of the input": x.grad}


def in_two(mixer: MixerModule, x: Tensor, cut: int) -> tuple[Tensor, State]:
    early, state = mixer(x[:, :cut])
    late, state = mixer(x[:, cut:], state)
    return torch.cat([early, late], dim=1), state


@every_invariant_mixer
def test_cutting_a_segment_anywhere_changes_nothing(spec):
    mixer, x = built(spec), torch.randn(2, LENGTH, WIDTH)
    whole = outcome(mixer, x)
    for cut in range(1, LENGTH):
        all_close(outcome(mixer, x, cut), whole)


@every_invariant_mixer
def test_token_by_token_is_one_segment(spec):
    mixer, x = built(spec), torch.randn(2, LENGTH, WIDTH)
    check_token_by_token(mixer, x)


def check_token_by_token(mixer: MixerModule, x: Tensor) -> None:
    expected, expected_state = mixer(x)
    tokens, state = [], None
    for token in x.split(1, dim=1):
        y, state = mixer(token, state)
        tokens.append(y)
    close(torch.cat(tokens, dim=1), expected)
    states_close(state, expected_state)


@every_mixer
def test_the_future_is_not_read(spec):
    mixer, x = built(spec), torch.randn(1, LENGTH, WIDTH)
    past = torch.ones(LENGTH, LENGTH).tril().bool()  # row i knows the tokens up to i; its others are other ones
    y, _ = mixer(torch.where(past[..., None], x, torch.randn(LENGTH, LENGTH, WIDTH)))
    expected = mixer(x)[0].expand_as(y)
    close(y[past], expected[past])
    assert not torch.allclose(y[~past], expected[~past])


@every_mixer
def test_rows_do_not_mix(spec):
    mixer, x = built(spec), torch.randn(3, LENGTH, WIDTH)
    _, state = mixer(torch.randn(3, 2, WIDTH))
    together, together_state = mixer(x, state)
    for row in (slice(i, i + 1) for i in range(3)):
        alone, alone_state = mixer(x[row], rows_of(state, row))
        close(alone, together[row])
        states_close(alone_state, rows_of(together_state, row))


# where documents begin in each of three rows: nowhere, at the first token and later ones, two in a row at the end
BEGINNINGS = ([], [0, 3], [2, 4, 5])
PACKING = [spec for spec in (*FAST_WEIGHTS, *ATTENTIONS, *OTHERS) if spec.packs]


@pytest.mark.parametrize("spec", PACKING, ids=sentence)
def test_packing_changes_nothing(spec):
    """Each document is read as if it were alone, goes on as if it had been, and teaches as much."""
    mixer, x, later = built(spec), torch.randn(3, LENGTH, WIDTH), torch.randn(3, LENGTH, WIDTH)
    before = detach(mixer(torch.randn(3, 2, WIDTH))[1])
    starts = torch.tensor([[place in row for place in range(LENGTH)] for row in BEGINNINGS])

    def packed(x: Tensor) -> Tensor:
        reads, state = mixer.packed(x, starts, before)
        return torch.cat([reads, mixer(later, state)[0]], dim=1)

    def one_by_one(x: Tensor) -> Tensor:
        return torch.cat([documents(x[i : i + 1], i) for i in range(3)])

    def documents(x: Tensor, i: int) -> Tensor:
        reads, state = [], rows_of(before, slice(i, i + 1))
        for first, last in pairwise(sorted({0, *BEGINNINGS[i], LENGTH})):
            read, state = mixer(x[:, first:last], None if first in BEGINNINGS[i] else state)
            reads.append(read)
        return torch.cat([*reads, mixer(later[i : i + 1], state)[0]], dim=1)

    all_close(taught(mixer, packed, x), taught(mixer, one_by_one, x))


def taught(mixer: MixerModule, read: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """What is read, and the gradients of everything it is made of."""
    x = x.clone().requires_grad_()
    mixer.zero_grad()
    reads = read(x)
    (reads * torch.randn(reads.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    gradients = {name: learned.grad for name, learned in mixer.named_parameters()}
    return {"reads": reads.detach(), "input": x.grad, **gradients}


@every_mixer
def test_no_state_is_the_fresh_state_and_its_first_axis_is_the_row(spec):
    mixer, x = built(spec), torch.randn(3, LENGTH, WIDTH)
    fresh = mixer.initial_state(3)
    given_none, given_fresh = mixer(x), mixer(x, fresh)
    close(given_fresh[0], given_none[0])
    states_close(given_fresh[1], given_none[1])
    for state in (fresh, given_fresh[1]):
        assert leaves(state)
        assert all(len(leaf) == 3 for leaf in leaves(state))


@every_mixer
def test_a_state_is_never_changed_in_place(spec):
    mixer = built(spec)
    _, state = mixer(torch.randn(2, LENGTH, WIDTH))
    before = [leaf.clone() for leaf in leaves(state)]
    mixer(torch.randn(2, LENGTH, WIDTH), state)
    assert all(torch.equal(*pair) for pair in zip(leaves(state), before, strict=True))


@every_mixer
def test_everything_learned_gets_a_gradient(spec):
    mixer = built(spec, nn.LayerNorm(WIDTH))
    y, _ = mixer(torch.randn(2, LENGTH, WIDTH))
    y.square().sum().backward()
    for name, learned in mixer.named_parameters():
        assert learned.grad is not None, name
        assert learned.grad.abs().max() > 0, name


ASKING_BARE = (AbsoluteAttention, BareQueryMemory)  # with their input as it is, which they say
THROUGH_NORM = [spec for spec in (*FAST_WEIGHTS, *ATTENTIONS, *OTHERS) if not isinstance(spec, ASKING_BARE)]


@pytest.mark.parametrize("spec", THROUGH_NORM, ids=sentence)
def test_a_mixer_reads_its_input_through_its_norm(spec):
    norm, x = nn.LayerNorm(WIDTH), torch.randn(2, LENGTH, WIDTH)
    normed = built(spec, norm)
    bare = spec.build(WIDTH)
    bare.load_state_dict({name: z for name, z in normed.state_dict().items() if not name.startswith("norm.")})
    close(normed(x)[0], bare(norm(x))[0])


@every_fast_weight
def test_every_form_of_the_scan_gives_the_same_model(spec, monkeypatch):
    mixer = built(spec)
    forms = [{"backend": backend} for backend in EXACT_BACKENDS if backend != "chunked"]
    forms.append({"backend": "chunked", "chunk": CHUNK})
    for length in (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
        x = torch.randn(2, length, WIDTH)
        truth, *others = (outcome_of(form, mixer, x, monkeypatch) for form in forms)
        for other in others:
            all_close(other, truth)


def outcome_of(form: dict, mixer: MixerModule, x: Tensor, monkeypatch) -> dict[str, Tensor]:
    for door in (memory_scan, counted_scan):
        monkeypatch.setattr(f"palimpsest.mixers.fast_weight.{door.__name__}", partial(door, **form))
    return outcome(mixer, x)


@pytest.mark.parametrize("parts", [parts for parts in MEMORIES if not may_be_said(*parts)], ids=repr)
def test_what_would_divide_by_a_sum_that_may_be_zero_is_refused(parts):
    signed = type(parts[0]).__name__
    with pytest.raises(ValueError, match=rf"^\w+ divides by a sum of features, and {signed} has negative ones"):
        FastWeight(*parts)


@pytest.mark.parametrize("mixer", (FastWeight, SoftmaxAttention))
def test_a_width_that_the_heads_cannot_share_is_refused(mixer):
    with pytest.raises(ValueError, match="a width of 9 cannot be shared by 2 heads"):
        mixer(heads=2).build(9)


def test_a_mixer_in_half_precision_has_a_float32_page():
    mixer = FastWeight(DPFP(), UnitNorm(), Delta(), Plain()).build(WIDTH).half()
    for state in (None, mixer.initial_state(2)):
        y, state = mixer(torch.randn(2, LENGTH, WIDTH, dtype=torch.float16), state)
        assert (y.dtype, state.memory.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("read_out", [variant() for variant in ReadOut.variants()], ids=repr)
def test_queries_that_nothing_was_written_under_read_numbers_in_any_precision(read_out, dtype):
    module, x = read_out.build(WIDTH, HEADS, WIDTH // HEADS), torch.randn(2, LENGTH, WIDTH, dtype=dtype)
    reads, mass = torch.zeros(2, LENGTH, HEADS, WIDTH // HEADS, dtype=dtype), torch.zeros(2, LENGTH, HEADS)
    found = module.to(dtype)(reads, x, mass.float())
    assert found.dtype == dtype
    assert found.isfinite().all()


@pytest.mark.parametrize("mixer", QK_NORM, ids=sentence)
def test_how_long_queries_and_keys_are_does_not_matter_where_they_are_scaled(mixer):
    module = mixer.build(WIDTH)
    x = torch.randn(2, LENGTH, WIDTH)
    before, _ = module(x)
    with torch.no_grad():
        module.project.weight[: 2 * WIDTH] *= 1000.0  # so that nothing is left of epsilon
        longer, _ = module(x)
        module.project.weight[: 2 * WIDTH] *= 1000.0
        longest, _ = module(x)
    close(longer, longest, 1e-6)
    close(before, longest, 1e-3)


def test_a_scale_that_divides_by_a_sum_is_not_for_attention():
    with pytest.raises(UserError, match="UnitNorm"):
        SoftmaxAttention(key_scale=SumToOne())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_reads_of_half_precision_are_normed_as_such_by_finer_scales(dtype):
    norm, reads = ReadsNorm(8, eps=1e-5), torch.randn(2, 5, 3, 8).to(dtype)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    normed = norm(reads)
    assert normed.dtype == dtype
    close(normed, norm(reads.to(norm.weight)), 2 * torch.finfo(dtype).eps)
    normed.sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.dtype == norm.weight.dtype
