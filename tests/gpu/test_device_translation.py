"""Translation on a GPU: the same nats, the same hypotheses, the same training as on a CPU, to rounding."""

import pytest
import torch
from closeness import close

from palimpsest.attention.positions import NoPositions
from palimpsest.batch import Batch, Source
from palimpsest.evaluation.decoding import BeamSearch, Greedy, Sampled
from palimpsest.evaluation.generation import Sampling
from palimpsest.memory.feature_maps import DPFP, EluPlusOne, StabilisedFavor
from palimpsest.memory.key_scales import SumToOne, Unscaled
from palimpsest.memory.read_outs import Normalised, Plain
from palimpsest.memory.update_rules import Delta, Sum
from palimpsest.mixers import FastWeight, MemorySource, SoftmaxAttention, SoftmaxSource
from palimpsest.models.block import PreNorm
from palimpsest.models.heads import SoftmaxHead
from palimpsest.models.translation_model import TranslationModel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ATTENTIONS = {
    "softmax": (SoftmaxSource(), SoftmaxAttention(NoPositions())),
    "linear": (MemorySource(EluPlusOne()), FastWeight(EluPlusOne(), Unscaled(), Sum(), Normalised())),
    "favor": (MemorySource(StabilisedFavor(32)), FastWeight(StabilisedFavor(32), Unscaled(), Sum(), Normalised())),
    "delta": (MemorySource(DPFP(nu=2)), FastWeight(DPFP(nu=2), SumToOne(), Delta(), Plain())),
}


@pytest.fixture(params=ATTENTIONS)
def network(request):
    source, mixer = ATTENTIONS[request.param]
    model = TranslationModel(width=64, encoder=source, cross=source, block=PreNorm(mixer), head=SoftmaxHead())
    return model.build(50, torch.Generator().manual_seed(1)).double()


def batch() -> Batch:
    lengths = torch.tensor([7, 33, 20])
    source = Source(torch.randint(1, 50, (3, 33)), torch.arange(33) < lengths[:, None])
    targets = torch.randint(1, 50, (3, 29))
    return Batch(targets.roll(1, dims=1), targets, torch.arange(29) < lengths[:, None] - 4, source=source)


def test_nats_and_gradients_are_those_of_the_cpu(network):
    read = batch()
    nats = network(read)[0]
    gradients = torch.autograd.grad(nats.where(read.mask, 0.0).sum(), list(network.parameters()))
    network.cuda()
    moved = read.to("cuda")
    found = network(moved)[0]
    close(found.cpu(), nats)
    for one, other in zip(
        torch.autograd.grad(found.where(moved.mask, 0.0).sum(), list(network.parameters())), gradients, strict=True
    ):
        close(one.cpu(), other)


@pytest.mark.parametrize("decoding", [Greedy(), BeamSearch(beam=4), Sampled(Sampling(temperature=1.0))], ids=repr)
def test_hypotheses_are_those_of_the_cpu(network, decoding):
    source = batch().source
    expected = decoding.translate(network, source, end=0)
    found = decoding.translate(network.cuda(), source.to("cuda"), end=0)
    assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
