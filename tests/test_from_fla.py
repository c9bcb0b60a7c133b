"""Models of flash-linear-attention: their equations, written out, give what the import gives."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from closeness import close
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import elu, silu, softplus
from toys import TEXT, palimpsest

from palimpsest import load
from palimpsest.data.corpora import Text
from palimpsest.data.vocabulary import Characters
from palimpsest.errors import UserError
from palimpsest.experiment import Data, Recipe
from palimpsest.experiment.run import write_json
from palimpsest.legacy.checkpoints import import_checkpoint
from palimpsest.legacy.from_fla import BOUNDS, from_folder, translate
from palimpsest.serialise import to_json

WIDTH, HEADS, INNER, LAYERS, TOKENS, LENGTH = 8, 2, 10, 2, 11, 9
COMMON = {
    "hidden_size": WIDTH, "num_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": TOKENS, "norm_eps": 1e-3,
    "allow_neg_eigval": False, "use_short_conv": True, "conv_size": 4, "tie_word_embeddings": False, "attn": None,
}  # fmt: skip
DELTA = COMMON | {
    "model_type": "delta_net", "expand_k": 1.0, "expand_v": 1.0, "use_gate": False, "use_beta": True, "qk_norm": "l2",
    "qk_activation": "silu",
}  # fmt: skip
GATED = COMMON | {
    "model_type": "gated_deltanet", "expand_v": 2.0, "head_dim": 3, "num_v_heads": None, "use_gate": True
}  # fmt: skip
SETTINGS = [
    DELTA,
    DELTA | {"use_gate": True, "allow_neg_eigval": True, "expand_k": 0.5, "expand_v": 2.0},
    DELTA | {"qk_activation": "elu", "qk_norm": "sum", "tie_word_embeddings": True},
    DELTA | {"qk_activation": "elu", "conv_size": 2},
    DELTA | {"qk_activation": "identity", "use_short_conv": False},
    GATED,
    GATED | {"num_v_heads": 4, "allow_neg_eigval": True},
    GATED | {"use_gate": False, "expand_v": 1.0, "use_short_conv": False, "tie_word_embeddings": True},
]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))


def sizes(settings: dict) -> tuple[int, int, int]:
    """Heads of values, numbers in a key, numbers in a value."""
    if settings["model_type"] == "delta_net":
        return HEADS, int(WIDTH * settings["expand_k"]) // HEADS, int(WIDTH * settings["expand_v"]) // HEADS
    width = settings["head_dim"]
    return settings["num_v_heads"] or HEADS, width, int(width * settings["expand_v"])


def weights_of(settings: dict) -> dict[str, Tensor]:
    """By the original's names, in float64."""
    heads, key, value = sizes(settings)
    projections = {"q": HEADS * key, "k": HEADS * key, "v": heads * value}
    shapes: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (TOKENS, WIDTH), "model.norm.weight": (WIDTH,)}
    if not settings["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (TOKENS, WIDTH)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        shapes |= {f"{name}attn.{one}_proj.weight": (size, WIDTH) for one, size in projections.items()}
        if settings["use_short_conv"]:
            taps = settings["conv_size"]
            shapes |= {f"{name}attn.{one}_conv1d.weight": (size, 1, taps) for one, size in projections.items()}
        if settings["use_gate"]:
            shapes[f"{name}attn.g_proj.weight"] = (heads * value, WIDTH)
        if settings["model_type"] == "gated_deltanet":
            shapes |= {f"{name}attn.{one}": (heads,) for one in ("A_log", "dt_bias")}
            shapes[f"{name}attn.a_proj.weight"] = (heads, WIDTH)
        shapes |= {
            f"{name}attn.b_proj.weight": (heads, WIDTH),
            f"{name}attn.o_norm.weight": (value,),
            f"{name}attn.o_proj.weight": (WIDTH, heads * value),
            f"{name}attn_norm.weight": (WIDTH,),
            f"{name}mlp_norm.weight": (WIDTH,),
            f"{name}mlp.gate_proj.weight": (INNER, WIDTH),
            f"{name}mlp.up_proj.weight": (INNER, WIDTH),
            f"{name}mlp.down_proj.weight": (WIDTH, INNER),
        }
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def by_hand(weights: dict[str, Tensor], settings: dict, tokens: list[int]) -> Tensor:
    """The logits after each token of one text, `t tokens`."""
    table, epsilon = weights["model.embeddings.weight"], settings["norm_eps"]
    x = torch.stack([table[token] for token in tokens])
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        inside = {key.removeprefix(name): weight for key, weight in weights.items() if key.startswith(name)}
        x = x + attention(inside, settings, root_mean_square_one(x, inside["attn_norm.weight"], epsilon))
        heard = root_mean_square_one(x, inside["mlp_norm.weight"], epsilon)
        opened = silu(heard @ inside["mlp.gate_proj.weight"].T) * (heard @ inside["mlp.up_proj.weight"].T)
        x = x + opened @ inside["mlp.down_proj.weight"].T
    return root_mean_square_one(x, weights["model.norm.weight"], epsilon) @ weights.get("lm_head.weight", table).T


def attention(inside: dict[str, Tensor], settings: dict, x: Tensor) -> Tensor:
    heads, key, value = sizes(settings)
    q, k, v = (
        convolved(x @ inside[f"attn.{one}_proj.weight"].T, inside.get(f"attn.{one}_conv1d.weight")) for one in "qkv"
    )
    beta = (x @ inside["attn.b_proj.weight"].T).sigmoid() * (2 if settings["allow_neg_eigval"] else 1)
    keep = torch.ones_like(beta)
    if "attn.A_log" in inside:
        step = softplus(x @ inside["attn.a_proj.weight"].T + inside["attn.dt_bias"])
        keep = (-inside["attn.A_log"].exp() * step).exp()
    reads = torch.empty(len(x), heads, value, dtype=x.dtype)
    for head in range(heads):
        shared = head // (heads // HEADS)  # the head of keys that this head of values listens to
        page = torch.zeros(key, value, dtype=x.dtype)
        for t in range(len(x)):
            query, address = (addressed(z[t, shared * key : (shared + 1) * key], settings) for z in (q, k))
            page = keep[t, head] * page
            written = silu(v[t, head * value : (head + 1) * value]) - address @ page
            page = page + torch.outer(address, beta[t, head] * written)
            reads[t, head] = query @ page / key**0.5
    reads = root_mean_square_one(reads, inside["attn.o_norm.weight"], settings["norm_eps"])
    if settings["use_gate"]:
        reads = reads * silu(x @ inside["attn.g_proj.weight"].T).view_as(reads)
    return reads.flatten(1) @ inside["attn.o_proj.weight"].T


def convolved(x: Tensor, taps: Tensor | None) -> Tensor:
    if taps is None:
        return x
    size, y = taps.shape[-1], torch.zeros_like(x)
    for t in range(len(x)):
        for back in range(min(size, t + 1)):
            y[t] += taps[:, 0, size - 1 - back] * x[t - back]
    return y


def addressed(x: Tensor, settings: dict) -> Tensor:
    """A query or a key as it meets the page."""
    activations = {"silu": silu, "elu": lambda x: elu(x) + 1, "identity": lambda x: x}
    x = activations[settings.get("qk_activation", "silu")](x)
    return x / x.sum() if settings.get("qk_norm") == "sum" else x / (x.square().sum() + 1e-6).sqrt()


def root_mean_square_one(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * scale


def logits(model, tokens: Tensor, state=None) -> Tensor:
    return model.head.logits(model.read(tokens, state)[0])


def save(folder: Path, weights: dict[str, Tensor], settings: dict) -> Path:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@every_setting
def test_the_imported_model_is_what_the_equations_say(settings, tmp_path):
    weights, tokens = weights_of(settings), torch.randint(TOKENS, (1, LENGTH))
    model = from_folder(save(tmp_path / "model", weights, settings)).build()
    expected = by_hand(weights, settings, tokens[0].tolist())
    close(logits(model, tokens)[0], expected)
    _, state = model.read(tokens[:, :4], None)
    close(logits(model, tokens[:, 4:], state)[0], expected[4:], what="the rest, after a state")


@pytest.mark.parametrize("settings", [DELTA, GATED], ids=["delta", "gated"])
def test_settings_that_a_folder_does_not_tell_are_the_originals_own(settings):
    weights = weights_of(settings)
    needed = ("model_type", "hidden_size", "num_heads", "num_hidden_layers", "vocab_size", "head_dim", "norm_eps")
    brief = {name: settings[name] for name in needed if name in settings}
    assert translate(weights, brief).model == translate(weights, settings).model


def test_weights_in_several_files_are_one_model(tmp_path):
    weights = weights_of(GATED)
    whole = save(tmp_path / "whole", weights, GATED)
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "config.json").write_text((whole / "config.json").read_text())
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({name: weight for name, weight in weights.items() if places[name] == file}, parts / file)
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    one, other = (from_folder(folder).build().state_dict() for folder in (whole, parts))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_older_versions_saved_is_the_same_model(tmp_path):
    weights = weights_of(GATED)
    older = dict(weights)
    for layer in range(LAYERS):
        both = [older.pop(f"model.layers.{layer}.mlp.{one}_proj.weight") for one in ("gate", "up")]
        older[f"model.layers.{layer}.mlp.gate_proj.weight"] = torch.cat(both)
        older[f"model.layers.{layer}.attn.D"] = torch.ones(HEADS)
    one, other = (translate(found, GATED).weights for found in (weights, older))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_half_precision_on_disk_is_single_precision_here():
    half = {name: weight.bfloat16() for name, weight in weights_of(DELTA).items()}
    model = translate(half, DELTA).build()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.state_dict()["norm.weight"].bfloat16(), half["model.norm.weight"])


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({"attn": {"layers": [1]}}, r"with attn=.*cannot be imported, only with attn=None"),
        ({"attnres_block_size": 2}, "with attnres_block_size=2 cannot be imported"),
        ({"hidden_act": "powlu"}, "with hidden_act=powlu cannot be imported, only with hidden_act=swish"),
        ({"output_gate_activation": "sigmoid"}, "with output_gate_activation=sigmoid cannot be imported"),
        ({"use_beta": False}, "with use_beta=False cannot be imported"),
        ({"qk_activation": "relu"}, "qk_activation=relu .*qk_activation=silu or qk_activation=elu or"),
        ({"qk_norm": "sum"}, "qk_norm=sum and qk_activation=silu cannot be imported: it divides by a sum"),
        ({"model_type": "gated_deltaproduct"}, "unknown model of flash-linear-attention 'gated_deltaproduct'"),
    ],
)
def test_what_we_have_no_words_for_is_refused_by_its_setting(changes, fault):
    with pytest.raises(UserError, match=fault):
        translate(weights_of(DELTA), DELTA | changes)


def test_a_weight_that_belongs_nowhere_is_refused_by_its_name():
    extra = {"model.layers.1.attn.q_conv1d.bias": torch.zeros(WIDTH)}
    with pytest.raises(UserError, match=r"the weight model\.layers\.1\.attn\.q_conv1d\.bias is part of no"):
        translate(weights_of(DELTA) | extra, DELTA)
    with pytest.raises(UserError, match="are not a language model of flash-linear-attention"):
        translate({"embeddings.weight": torch.zeros(TOKENS, WIDTH)}, DELTA)


def test_settings_that_do_not_fit_the_weights_are_told():
    with pytest.raises(UserError, match="the weights do not fit the settings"):
        translate(weights_of(DELTA), DELTA | {"expand_k": 2.0}).build()


@every_setting
def test_weights_that_lack_one_or_have_one_of_another_shape_are_refused(settings):
    weights = weights_of(settings)
    for name, weight in weights.items():
        rest = {other: weight for other, weight in weights.items() if other != name}
        for changed in (rest, weights | {name: weight[:-1]}, weights | {name: weight.flatten()[0]}):
            with pytest.raises(UserError):
                translate(changed, settings).build()


@pytest.mark.parametrize("inside", ["attn.b_proj.weight", "mlp.down_proj.weight", "mlp.gate_proj.weight"])
def test_a_weight_that_others_are_made_after_is_named_where_it_is_missing(inside):
    weights = weights_of(GATED)
    del weights[name := f"model.layers.1.{inside}"]
    with pytest.raises(UserError, match=f"lacks the weight {name}: it is incomplete"):
        translate(weights, GATED)


def test_weights_that_are_joined_and_do_not_fit_are_named():
    wide = {"model.layers.1.mlp.up_proj.weight": torch.zeros(INNER, WIDTH + 1)}
    with pytest.raises(UserError, match=r"shapes differ: .*1\.mlp\.gate_proj\.weight \(10, 8\), .*up_proj.* \(10, 9\)"):
        translate(weights_of(DELTA) | wide, DELTA)


@pytest.mark.parametrize("settings", [DELTA, GATED], ids=["delta", "gated"])
def test_a_setting_that_is_not_what_it_may_be_is_refused_by_its_name(settings):
    for name, bound in BOUNDS.items():
        for value in ("x", None, -1, 0, 2.5, [2]):
            if not bound.holds(value):
                with pytest.raises(UserError, match=rf"the setting '{name}' of .* is .*; found .*--set {name}=…"):
                    translate(weights_of(settings), {**settings, name: value})


def test_only_a_tied_model_speaks_through_its_embedding():
    weights = weights_of(DELTA)
    head = weights.pop("lm_head.weight")
    with pytest.raises(UserError, match=r"the weights do not fit the settings: Missing .*head\.project\.weight"):
        translate(weights, DELTA).build()
    tied = translate(weights, DELTA | {"tie_word_embeddings": True}).build()
    assert torch.equal(tied.head.project.weight, weights["model.embeddings.weight"])
    untied = translate(weights | {"lm_head.weight": head}, DELTA).build()
    assert torch.equal(untied.head.project.weight, head)


def test_a_folder_that_lacks_something_is_told(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json that can be read"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"has no config\.json that can be read"):
        from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(DELTA))
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read as safetensors"):
        from_folder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="weight_map"):
        from_folder(tmp_path)


def test_with_the_vocabulary_of_a_run_it_becomes_a_run(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    data = Data(corpus=Text(tmp_path / "text.txt"), vocabulary=Characters())
    codec = Characters().learn(TEXT.encode(), [TEXT.encode()])
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    write_json(earlier / "recipe.json", to_json(Recipe(data=data)))
    write_json(earlier / "vocabulary.json", codec.to_json())
    settings = GATED | {"vocab_size": codec.size, "max_position_embeddings": 64}
    tables = {name: torch.randn(codec.size, WIDTH).double() for name in ("model.embeddings.weight", "lm_head.weight")}
    model = save(tmp_path / "gated-1.3B", weights_of(GATED) | tables, settings)
    run = load(import_checkpoint(model, "flash-linear-attention", earlier, folder=tmp_path / "run"))
    assert run.recipe.name == "flash-linear-attention-gated-1.3B"
    assert run.recipe.data == replace(data, order=run.recipe.data.order, segment=64)
    valid = run.tokens().splits["valid"]
    assert run.evaluate(valid).tokens == valid.tokens - 1
    assert len(run.generate("line", length=4)) == 4


def test_the_command_says_that_it_does_not_know_the_tokens(tmp_path):
    save(tmp_path / "model", weights_of(DELTA), DELTA)
    refused = palimpsest("import", "model", "--from", "flash-linear-attention", cwd=tmp_path)
    assert refused.returncode == 2
    assert "does not say what its 11 tokens are" in " ".join(refused.stderr.split())
    assert "from_fla.from_folder" in refused.stderr
    assert not (tmp_path / "runs").exists()
