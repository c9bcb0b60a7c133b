"""Checkpoints of the originals become runs: from a file on disk to a score and a sample."""

import json
from pathlib import Path

import pytest
import torch
from toys import palimpsest

from palimpsest import load
from palimpsest.errors import UserError
from palimpsest.legacy import checkpoints, from_adaptive_span, from_transformer_xl
from palimpsest.legacy.checkpoints import import_checkpoint
from palimpsest.legacy.corpora import ADAPTIVE_SPAN, TRANSFORMER_XL, vocabulary_from
from palimpsest.legacy.from_transformer_xl import translate

WORDS = Path(__file__).parent / "corpora" / "words"
WIDTH, HEADS, HEAD, INNER, LAYERS = 8, 2, 3, 12, 2


def transformer_xl(tokens: int) -> dict[str, torch.Tensor]:
    """The state dict of a small Transformer-XL, by the original's names."""
    shapes = {
        "word_emb.emb_layers.0.weight": (tokens, WIDTH),
        "crit.out_layers.0.weight": (tokens, WIDTH),
        "crit.out_layers.0.bias": (tokens,),
        "pos_emb.inv_freq": (WIDTH // 2,),
        "r_w_bias": (HEADS, HEAD),
        "r_r_bias": (HEADS, HEAD),
    }
    for layer in range(LAYERS):
        attention, feed_forward = f"layers.{layer}.dec_attn.", f"layers.{layer}.pos_ff."
        shapes |= {
            f"{attention}qkv_net.weight": (3 * HEADS * HEAD, WIDTH),
            f"{attention}r_net.weight": (HEADS * HEAD, WIDTH),
            f"{attention}o_net.weight": (WIDTH, HEADS * HEAD),
            f"{attention}layer_norm.weight": (WIDTH,),
            f"{attention}layer_norm.bias": (WIDTH,),
            f"{feed_forward}CoreNet.0.weight": (INNER, WIDTH),
            f"{feed_forward}CoreNet.0.bias": (INNER,),
            f"{feed_forward}CoreNet.3.weight": (WIDTH, INNER),
            f"{feed_forward}CoreNet.3.bias": (WIDTH,),
            f"{feed_forward}layer_norm.weight": (WIDTH,),
            f"{feed_forward}layer_norm.bias": (WIDTH,),
        }
    weights = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    weights["crit.out_layers.0.weight"] = weights["word_emb.emb_layers.0.weight"]  # tied
    return weights


def adaptive_span(tokens: int) -> dict[str, torch.Tensor]:
    """A training checkpoint's state dict, with the prefix that DataParallel gives."""
    span = 70
    shapes = {
        "key_pe": (1, WIDTH // HEADS, span),
        "in_emb.weight": (tokens, WIDTH),
        "out_emb.weight": (tokens, WIDTH),
        "out_emb.bias": (tokens,),
    }
    for layer in range(LAYERS):
        shapes |= {f"layers.{layer}.attn.proj_{one}.weight": (WIDTH, WIDTH) for one in ("query", "key", "val", "out")}
        shapes |= {f"layers.{layer}.norm{one}.{end}": (WIDTH,) for one in (1, 2) for end in ("weight", "bias")}
        shapes |= {
            f"layers.{layer}.ff.fc1.weight": (INNER, WIDTH),
            f"layers.{layer}.ff.fc1.bias": (INNER,),
            f"layers.{layer}.ff.fc2.weight": (WIDTH, INNER),
            f"layers.{layer}.ff.fc2.bias": (WIDTH,),
        }
    weights = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    for layer in range(LAYERS):
        mask = f"layers.{layer}.attn.attn.adaptive_span._mask."
        weights |= {f"{mask}current_val": torch.rand(HEADS, 1, 1), f"{mask}mask_template": torch.arange(1.0 - span, 1)}
    return {f"module.{name}": weight for name, weight in weights.items()}


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    torch.save(transformer_xl(vocabulary_from(WORDS, "wt103").size), tmp_path / "model.pt")
    return tmp_path / "model.pt"


def test_a_transformer_xl_is_imported_scored_and_generated_from(checkpoint, tmp_path):
    command = ("import", checkpoint, "--from", "transformer-xl", "--data", WORDS, "--dataset", "wt103")
    made = palimpsest(*command, "--set", "mem_len=6", "tgt_len=5", "--folder", tmp_path / "run", cwd=tmp_path)
    assert (made.returncode, made.stdout.strip()) == (0, str(tmp_path / "run")), made.stderr
    scored = palimpsest("evaluate", "run", "--split", "test", "--json", cwd=tmp_path)
    score = json.loads(scored.stdout)
    assert score["protocol"]["memory"] == 6
    tokens = load(tmp_path / "run").tokens().splits["test"].tokens
    assert score["tokens"] == tokens - 1
    written = palimpsest("generate", "run", "--length", "5", "--prompt", "the", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    again = palimpsest("resume", "run", cwd=tmp_path)
    assert again.returncode == 2
    assert "train --from" in again.stderr


def test_the_imported_model_is_the_one_in_the_file(checkpoint, tmp_path):
    run = load(import_checkpoint(checkpoint, "transformer-xl", WORDS, "wt103", {"mem_len": 3}, tmp_path / "run"))
    model = translate(torch.load(checkpoint), {"mem_len": 3}).build().eval()
    inputs = torch.randint(run.codec.size, (2, 9))
    assert torch.equal(run.model.predict(inputs)[0], model.predict(inputs)[0])


@pytest.mark.slow
def test_an_imported_model_can_be_trained_further(checkpoint, tmp_path):
    import_checkpoint(checkpoint, "transformer-xl", WORDS, "wt103", {"mem_len": 3}, tmp_path / "run")
    more = ("--steps", "2", "--batch", "2", "--data.segment", "4", "--threads", "1", "--folder", "more")
    trained = palimpsest("train", "--from", "run", *more, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr


def test_a_training_checkpoint_of_adaptive_span_is_imported(tmp_path):
    tokens = vocabulary_from(WORDS, "wikitext-103", ADAPTIVE_SPAN).size
    path = tmp_path / "checkpoint.pt"
    torch.save({"iter_no": 3, "model": adaptive_span(tokens), "optimizer": {"state": {}}}, path)
    run = load(import_checkpoint(path, "adaptive-span", WORDS, "wikitext-103", None, tmp_path / "run"))
    score = run.evaluate(run.tokens().splits["valid"])
    assert score.tokens == run.tokens().splits["valid"].tokens - 1
    assert run.generate("the", length=4)


def test_a_setting_that_the_weights_do_not_tell_is_asked_for(checkpoint, tmp_path):
    weights = {name: weight for name, weight in torch.load(checkpoint).items() if not name.startswith("r_")}
    for layer in range(LAYERS):
        del weights[f"layers.{layer}.dec_attn.r_net.weight"]
        q, k, v = weights.pop(f"layers.{layer}.dec_attn.qkv_net.weight").chunk(3)
        weights |= {
            f"layers.{layer}.dec_attn.q_net.weight": q,
            f"layers.{layer}.dec_attn.kv_net.weight": torch.cat([k, v]),
        }
    torch.save(weights, checkpoint)
    for number, name in enumerate(("attn_type", "n_head")):  # standard attention and linear ones have the same shapes
        with pytest.raises(UserError, match=rf"does not tell the setting '{name}'.*--set {name}=…"):
            import_checkpoint(
                checkpoint, "lmtool-fwms", WORDS, "wt103", {"attn_type": 2} if number else {}, tmp_path / "run"
            )
    assert not (tmp_path / "run").exists()
    settings = {"attn_type": 2, "n_head": HEADS, "d_head": HEAD, "tgt_len": 7}
    run = load(import_checkpoint(checkpoint, "lmtool-fwms", WORDS, "wt103", settings, tmp_path / "run"))
    assert run.recipe.evaluation.length == 7


@pytest.mark.parametrize(
    "data, dataset, fault",
    [
        (WORDS, None, "tokens is that of no corpus the original knows: say which with --dataset"),
        (WORDS, "wt13", "unknown dataset 'wt13'"),
        (None, "wt103", "has no train.txt.*--data.*palimpsest data prepare wikitext-103"),
        (Path("nowhere"), "wt103", "nowhere has no train.txt"),
    ],
)
def test_a_vocabulary_that_cannot_be_had_is_told_and_leaves_nothing_behind(data, dataset, fault, checkpoint, tmp_path):
    with pytest.raises(UserError, match=fault):
        import_checkpoint(checkpoint, "transformer-xl", data, dataset, None, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_vocabulary_of_another_text_is_refused(checkpoint, tmp_path):
    (tmp_path / "train.txt").write_text("a text of six words only")
    with pytest.raises(UserError, match="has 7 tokens, but the checkpoint knows"):
        import_checkpoint(checkpoint, "transformer-xl", tmp_path, "wt103", None, tmp_path / "run")


def test_weights_of_another_toolkit_are_told_apart(checkpoint, tmp_path):
    with pytest.raises(UserError, match="not an adaptive-span model"):
        import_checkpoint(checkpoint, "adaptive-span", WORDS, "wikitext-103", None, tmp_path / "run")
    with pytest.raises(UserError, match="unknown original 'transformer'"):
        import_checkpoint(checkpoint, "transformer", WORDS, "wt103")


def test_settings_that_do_not_fit_the_weights_are_told(checkpoint, tmp_path):
    with pytest.raises(UserError, match="the weights do not fit the settings"):
        import_checkpoint(checkpoint, "transformer-xl", WORDS, "wt103", {"d_inner": 5}, tmp_path / "run")


def lmtool_memory(tokens: int) -> dict[str, torch.Tensor]:
    """The state dict of a small delta memory of lmtool-fwms, by the original's names."""
    weights = {name: weight for name, weight in transformer_xl(tokens).items() if not name.startswith("r_")}
    for layer in range(LAYERS):
        attention = f"layers.{layer}.dec_attn."
        del weights[f"{attention}r_net.weight"], weights[f"{attention}qkv_net.weight"]
        weights[f"{attention}qkvb_net.weight"] = torch.randn(HEADS * (3 * HEAD + 1), WIDTH)
    return weights


SMALL = {
    "transformer-xl": (from_transformer_xl, transformer_xl(20), {}),
    "lmtool-fwms": (from_transformer_xl, lmtool_memory(20), {"attn_type": 24, "n_head": HEADS, "d_head": HEAD}),
    "adaptive-span": (
        from_adaptive_span,
        {name.removeprefix("module."): weight for name, weight in adaptive_span(20).items()},
        {},
    ),
}
every_original = pytest.mark.parametrize("original", SMALL)
UNREAD = ("pos_emb.inv_freq", "mask_template")  # which are the same in every model


@every_original
def test_a_checkpoint_that_lacks_any_of_its_weights_is_refused(original):
    translation, weights, settings = SMALL[original]
    translation.translate(weights, settings).build()
    for name in weights:
        if not name.endswith(UNREAD):
            rest = {other: weight for other, weight in weights.items() if other != name}
            with pytest.raises(UserError):
                translation.translate(rest, settings).build()


@every_original
def test_a_weight_of_another_shape_is_refused(original):
    translation, weights, settings = SMALL[original]
    for name, weight in weights.items():
        if not name.endswith(UNREAD):
            for other in (weight[:-1], weight.flatten()[0]):
                with pytest.raises(UserError):
                    translation.translate(weights | {name: other}, settings).build()


@every_original
def test_a_setting_that_is_not_what_it_may_be_is_refused_by_its_name(original):
    translation, weights, settings = SMALL[original]
    for name, bound in translation.BOUNDS.items():
        for value in ("x", None, -1, 0, 2.5, [2], 5):
            if not bound.holds(value):
                with pytest.raises(UserError, match=rf"the setting '{name}' of .* is .*; found .*--set {name}=…"):
                    translation.translate(weights, {**settings, name: value})


@pytest.mark.parametrize(
    "original, name",
    [
        ("transformer-xl", "word_emb.emb_layers.0.weight"),
        ("adaptive-span", "in_emb.weight"),
        ("adaptive-span", "layers.0.attn.proj_query.weight"),
    ],
)
def test_a_weight_that_settings_are_read_off_is_named_where_it_is_missing(original, name):
    translation, weights, settings = SMALL[original]
    rest = {other: weight for other, weight in weights.items() if other != name}
    with pytest.raises(UserError, match=f"lacks the weight {name}: it is incomplete"):
        translation.translate(rest, settings)


def test_heads_that_the_weights_cannot_be_shared_by_are_told():
    _, weights, settings = SMALL["lmtool-fwms"]
    with pytest.raises(UserError, match=r"qkvb_net.weight .* has 20 rows, and n_head=3 with d_head=3 ask for 30"):
        translate(weights, settings | {"n_head": 3})


def test_what_a_translation_stumbles_over_is_told_and_kept():
    _, weights, settings = SMALL["transformer-xl"]
    with pytest.raises(UserError, match=r"do not fit the settings, or are none of .* \(TypeError: .*complete") as told:
        translate(weights, {**settings, "cutoffs": ["x"]})
    assert isinstance(told.value.__cause__, TypeError)


def test_a_number_that_never_was_a_model_is_told(checkpoint, tmp_path):
    with pytest.raises(UserError, match="attn_type 7 was never a model"):
        import_checkpoint(checkpoint, "lmtool-fwms", WORDS, "wt103", {"attn_type": 7}, tmp_path / "run")


def test_a_published_model_whose_address_is_dead_says_where_to_put_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path))
    monkeypatch.setattr(checkpoints, "PUBLISHED", "http://127.0.0.1:9/{}.pt")
    with pytest.raises(UserError, match=r"cannot be had .*: put that file at .*adaptive-span-enwik8\.pt"):
        checkpoints.published("enwik8", lambda done, total: None)
    with pytest.raises(UserError, match=r"unknown .*enwik9.*did you mean enwik8"):
        checkpoints.published("enwik9", lambda done, total: None)


def test_both_originals_name_their_datasets():
    assert {"enwik8", "text8", "wt103", "wt2", "ptb", "lm1b"} == {*TRANSFORMER_XL}
    assert {"enwik8", "text8", "wikitext-103"} == {*ADAPTIVE_SPAN}
