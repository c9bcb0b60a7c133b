"""Irie, Schlag, Csordás and Schmidhuber 2022, A modern self-referential weight matrix that learns to modify itself."""

import pytest
import torch
from by_hand import LENGTH, WIDTH, text, with_large_weights
from closeness import all_close, close

from palimpsest.errors import UserError
from palimpsest.kernels.self_referential import self_referential_scan
from palimpsest.memory.feature_maps import DPFP, Identity, Softmax
from palimpsest.mixers import SelfReferential

every_input = pytest.mark.parametrize("input_map", (Softmax(), Identity()), ids=repr)


def rewritten(w, inputs):
    """y, q, k, β = W x; v = W φ(q), v̄ = W φ(k); W ← W + σ(β) (v − v̄) ⊗ φ(k), with a β for the rows of each kind."""
    size = len(inputs[0])
    kinds = [slice(0, size), slice(size, 2 * size), slice(2 * size, 3 * size), slice(3 * size, 3 * size + 4)]
    outputs = []
    for x in inputs:
        y, q, k, betas = (w[rows] @ x for rows in kinds)
        q, k = q.softmax(0), k.softmax(0)
        changed = []
        for rows, beta in zip(kinds, betas.sigmoid(), strict=True):
            v, recalled = w[rows] @ q, w[rows] @ k
            changed.append(w[rows] + beta * torch.outer(v - recalled, k))
        outputs.append(y)
        w = torch.cat(changed)
    return torch.stack(outputs), w


@every_input
def test_our_mixer_is_the_papers_matrix_that_modifies_itself(input_map):
    mixer, x = with_large_weights(SelfReferential(input_map, heads=4)), text()
    rows = []
    for row in x:
        heads = row.view(LENGTH, 4, WIDTH // 4)
        heads = heads.softmax(-1) if input_map == Softmax() else heads
        read = [rewritten(mixer.page[head].T, heads[:, head])[0] for head in range(4)]
        rows.append(torch.cat(read, dim=-1) @ mixer.out.weight.T)
    close(mixer(x)[0], torch.stack(rows))


def test_the_state_is_what_the_page_has_gained():
    mixer, x = with_large_weights(SelfReferential()), text()
    _, state = mixer(x)
    for row, changes in zip(x, state.change, strict=True):
        inputs = row.view(LENGTH, 4, WIDTH // 4)
        for head, change in enumerate(changes):
            close(change, rewritten(mixer.page[head].T, inputs[:, head])[1].T - mixer.page[head])


def drawn(length=5, width=3):
    inputs, page = torch.randn(2, length, 2, width), torch.randn(2, 2, width, 3 * width + 4)
    return inputs.requires_grad_(), page.requires_grad_()


def outcome(inputs, page, scan):
    outputs, after = scan(inputs, page)
    chance = torch.Generator().manual_seed(1)
    weighed = [(x * torch.randn(x.shape, generator=chance)).sum() for x in (outputs, after)]
    gradients = torch.autograd.grad(sum(weighed), (inputs, page))
    return dict(zip(("outputs", "page", "to inputs", "to page"), (outputs, after, *gradients), strict=True))


def token_by_token(inputs, page):
    heads = [[rewritten(page[b, h].T, inputs[b, :, h]) for h in range(2)] for b in range(2)]
    outputs = torch.stack([torch.stack([outputs for outputs, _ in row], dim=1) for row in heads])
    return outputs, torch.stack([torch.stack([w.T for _, w in row]) for row in heads])


@pytest.mark.parametrize("length", (1, 2, 9))
def test_the_gradient_written_by_hand_is_that_of_the_equations(length):
    inputs, page = drawn(length)
    all_close(outcome(inputs, page, self_referential_scan), outcome(inputs, page, token_by_token))


def test_the_gradient_written_by_hand_is_the_slope():
    assert torch.autograd.gradcheck(self_referential_scan, drawn())


def test_inputs_may_lie_in_memory_as_they_like():
    inputs, page = drawn()
    scattered = inputs.transpose(0, -1).contiguous().transpose(0, -1)
    close(self_referential_scan(scattered, page)[0], self_referential_scan(inputs, page)[0])


def test_backward_walks_back_over_a_long_text_and_stays_near_the_truth_in_float32():
    inputs, page = (x.detach() for x in drawn(length=500, width=4))
    inputs = inputs.softmax(-1)  # which keeps the page from chaos, in which every error grows
    single = [x.float().requires_grad_() for x in (inputs, page)]
    double = [x.requires_grad_() for x in (inputs, page)]
    expected, actual = (outcome(*given, self_referential_scan) for given in (double, single))
    all_close({name: x.double() for name, x in actual.items()}, expected, 1e-5)


def test_a_map_that_changes_how_many_numbers_there_are_is_refused():
    with pytest.raises(UserError, match=r"DPFP\(nu=1\) would change their number"):
        SelfReferential(DPFP())


def test_before_training_beta_is_where_it_was_asked_to_be():
    mixer = SelfReferential(beta=0.1, heads=1).build(512)
    paces = (torch.full((512,), 1 / 512) @ mixer.page[0])[-4:].sigmoid()
    close(paces, torch.full((4,), 0.1), 0.05)


def test_before_training_keys_and_queries_are_as_sharp_as_was_asked_for():
    plain, sharp = (SelfReferential(sharpness=sharpness, heads=1).build(256).page.detach() for sharpness in (1.0, 3.0))
    for kind, times in ((slice(0, 256), 1.0), (slice(256, 768), 3.0)):
        close(sharp[..., kind].std() / plain[..., kind].std(), torch.tensor(times), 0.02)
