"""Laws of generation."""

from itertools import islice

import pytest
import torch

from palimpsest.attention.spans import SegmentCache
from palimpsest.data.corpora import Text
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes, Characters, PunctuatedWords, SubWords, Words
from palimpsest.errors import UserError
from palimpsest.evaluation.generation import Sampling, generate, keep_nucleus
from palimpsest.experiment import Data, Recipe, Trained
from palimpsest.mixers import SoftmaxAttention
from palimpsest.models.block import PreNorm
from palimpsest.models.language_model import LanguageModel
from palimpsest.state import leaves
from palimpsest.world import ALONE


@pytest.fixture
def model():
    return LanguageModel(width=16, layers=2).build(11, torch.Generator().manual_seed(0))


def write(model, sampling, seed=0, length=20, segment=512, prompt=(1, 2, 3, 4, 5)):
    generator = torch.Generator().manual_seed(seed)
    return list(islice(generate(model, torch.tensor(prompt), sampling, generator, segment), length))


def test_temperature_zero_takes_the_likeliest_after_reading_everything_again(model):
    text = [1, 2, 3, 4, 5]
    for _ in range(20):
        with torch.no_grad():
            log_probabilities, _ = model.predict(torch.tensor([text]))
        text.append(int(log_probabilities.argmax()))
    assert write(model, Sampling(temperature=0)) == text[5:]


NARROW = [Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-9), Sampling(1e-8), Sampling(1e-40)]


@pytest.mark.parametrize("sampling", NARROW, ids=repr)
def test_the_narrowest_choice_is_the_likeliest(model, sampling):
    assert write(model, sampling) == write(model, Sampling(temperature=0))


def test_the_seed_decides_and_the_global_generator_does_not(model):
    first = write(model, Sampling(1.0))
    torch.manual_seed(99)
    assert write(model, Sampling(1.0)) == first
    assert write(model, Sampling(1.0), seed=1) != first


def test_how_the_prompt_is_cut_does_not_matter(model):
    assert write(model, Sampling(1.0), segment=2) == write(model, Sampling(1.0))


def test_a_model_that_keeps_nothing_is_shown_the_last_tokens_again():
    forgetful = PreNorm(mixer=SoftmaxAttention(span=SegmentCache(0)))
    model = LanguageModel(width=16, layers=2, block=forgetful).build(11, torch.Generator().manual_seed(0))
    assert not forgetful.remembers
    text, window = [1, 2, 3, 4, 5], 7
    for _ in range(20):
        with torch.no_grad():
            text.append(int(model.predict(torch.tensor([text[-window:]]))[0].argmax()))
    generator = torch.Generator()
    tokens = generate(model, torch.tensor(text[:5]), Sampling(temperature=0), generator, window=window)
    assert list(islice(tokens, 20)) == text[5:]


@pytest.mark.parametrize("vocabulary", [Bytes(), Characters(), SubWords(300), Words(), PunctuatedWords()], ids=repr)
def test_what_is_written_is_the_text_when_what_is_drawn_is(vocabulary, tmp_path, monkeypatch):
    text = "что за зверь\n" * 30
    (tmp_path / "text.txt").write_text(text, "utf-8")
    recipe = Recipe(data=Data(Text(tmp_path / "text.txt"), vocabulary))
    tokens = tokenise(recipe.data.corpus, vocabulary, cache=tmp_path)
    trained = Trained(tmp_path, "best", recipe, LanguageModel(8, 1).build(tokens.codec.size), tokens.codec, ALONE)
    ids = tokens.codec.encode(text).tolist()

    def knowing(model, prompt, *_, **__):
        assert prompt.tolist() == ids[: len(prompt)]
        return iter(ids[len(prompt) :])

    monkeypatch.setattr("palimpsest.experiment.trained.generate", knowing)
    assert trained.sample(tokens, len(ids)) == text
    for prompt in ("что", "что ", "что за зверь\n"):
        if tokens.codec.encode(prompt).tolist() == ids[: len(tokens.codec.encode(prompt))]:
            assert prompt + trained.generate(prompt, len(ids)) == text


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().expand(20000, -1)
    drawn = Sampling(1.0).draw(logits, torch.Generator().manual_seed(0)).bincount(minlength=4) / 20000
    torch.testing.assert_close(drawn, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.015, rtol=0)


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p():
    logits = torch.tensor([[0.5, 0.1, 0.3, 0.1]]).log()
    assert keep_nucleus(logits, 0.5).isfinite().tolist() == [[True, False, False, False]]
    assert keep_nucleus(logits, 0.51).isfinite().tolist() == [[True, False, True, False]]
    assert keep_nucleus(logits, 1.0).isfinite().all()


def test_a_page_does_not_grow(model):
    sizes = set()
    state = None
    for token in range(10):
        _, state = model.predict(torch.tensor([[token]]), state)
        sizes.add(sum(leaf.numel() for leaf in leaves(state)))
    assert len(sizes) == 1


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}], ids=repr)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UserError, match="found"):
        Sampling(**wrong)


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(UserError, match="empty"):
        write(model, Sampling(), prompt=())


@pytest.mark.parametrize("window", [None, 7])
def test_a_model_in_training_is_at_rest_while_it_writes_and_at_work_again_after_it(model, window):
    model.train()
    model.head.eval()  # somebody may want it so
    before = [part.training for part in model.modules()]
    tokens = generate(model, torch.tensor([1, 2]), Sampling(), torch.Generator(), window=window)
    next(tokens)
    assert not any(part.training for part in model.modules())
    tokens.close()
    assert [part.training for part in model.modules()] == before


def test_where_something_goes_wrong_a_model_is_at_work_again_too(model):
    with pytest.raises(IndexError):
        write(model.train(), Sampling(), prompt=(1, 200))
    assert model.training
