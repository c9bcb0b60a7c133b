"""On a GPU: the same scores, and no waiting for any batch of them."""

from itertools import islice

import numpy as np
import pytest
import torch

from palimpsest.attention.positions import SinusoidalRelative
from palimpsest.attention.spans import SegmentCache
from palimpsest.evaluation.perplexity import (
    CachedMemory,
    CarriedState,
    Reader,
    Segments,
    SlidingWindow,
    Tally,
    evaluate,
)
from palimpsest.mixers.fast_weight import FastWeight
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.world import World

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

IDS = np.random.default_rng(0).integers(0, 200, 3001).astype(np.uint8)
MIXERS = [FastWeight(), SoftmaxAttention(), SoftmaxAttention(SinusoidalRelative(), SegmentCache(32))]


def build(mixer):
    model = LanguageModel(width=64, layers=2, block=PreNorm(mixer))
    return model.build(200, torch.Generator().manual_seed(0)).eval()


@pytest.mark.parametrize("documents", [None, np.array([0, 400, 401, 2000, 3001])], ids=["one text", "documents"])
@pytest.mark.parametrize("protocol", [Segments(64), SlidingWindow(64, 7), CarriedState(64, rows=5)], ids=repr)
@pytest.mark.parametrize("mixer", MIXERS[:2], ids=lambda mixer: type(mixer).__name__)
def test_a_text_scores_the_same_on_a_gpu(mixer, protocol, documents):
    model, gpu = build(mixer), World(torch.device("cuda"))
    expected = evaluate(model, IDS, protocol, None, 3000, documents=documents)
    found = evaluate(model.cuda(), IDS, protocol, None, 3000, gpu, documents=documents)
    assert found.tokens == expected.tokens
    assert found.nats == pytest.approx(expected.nats, rel=1e-5)
    assert [band["tokens"] for band in found.by_position] == [band["tokens"] for band in expected.by_position]


@pytest.mark.parametrize("at_once", [64, 640])
def test_windows_read_together_score_as_they_do_alone(at_once):
    model, gpu = build(SoftmaxAttention()).cuda(), World(torch.device("cuda"))
    alone, together = (evaluate(model, IDS, SlidingWindow(64, 7), None, 3000, gpu, n) for n in (at_once, None))
    assert together.nats == pytest.approx(alone.nats, rel=1e-6)


def test_rows_that_have_warmed_up_score_what_one_row_does():
    model, gpu = build(MIXERS[2]).cuda(), World(torch.device("cuda"))
    one, many = (evaluate(model, IDS, CachedMemory(16, 32, rows=rows), None, 3000, gpu) for rows in (1, 9))
    assert many.nats == pytest.approx(one.nats, rel=1e-6)


@pytest.mark.parametrize("protocol", [Segments(64), SlidingWindow(64, 1), CarriedState(64, rows=1)], ids=repr)
@pytest.mark.parametrize("mixer", MIXERS[:2], ids=lambda mixer: type(mixer).__name__)
def test_the_host_does_not_wait_for_a_batch(mixer, protocol):
    model, device = build(mixer).cuda(), torch.device("cuda")
    evaluate(
        model, IDS, protocol, None, 3000, World(device)
    )  # kernels that are tried before they are used are waited for
    reader, tally = Reader(model, IDS, device, 2**12), Tally(len(IDS), device)
    with torch.inference_mode():
        readings = protocol.read(reader)
        tally.add(next(readings))  # the text is put on the device
        torch.cuda.set_sync_debug_mode("error")
        try:
            for reading in islice(readings, 20):
                tally.add(reading)
        finally:
            torch.cuda.set_sync_debug_mode("default")
