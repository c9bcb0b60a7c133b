"""Where numbers are dropped: each place of the originals, one by one, against their equations written out by hand."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from closeness import close, states_close
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm, scaled_dot_product_attention
from torch.nn.functional import dropout as torch_dropout
from torch.overrides import TorchFunctionMode

from palimpsest.attention.persistent import PersistentVectors
from palimpsest.attention.positions import LearnedRelative, NoPositions, Sinusoidal
from palimpsest.attention.spans import Adaptive, Fixed, SegmentCache
from palimpsest.batch import Batch
from palimpsest.kernels import ATTENTION_BACKENDS, Relative, relative_attention
from palimpsest.legacy import from_adaptive_span, from_transformer_xl
from palimpsest.mixers.softmax_attention import SoftmaxAttention
from palimpsest.models.block import PostNorm, PreNorm
from palimpsest.models.embeddings import AdaptiveEmbedding, TokenEmbedding
from palimpsest.models.feed_forward import FeedForward, Relu
from palimpsest.models.heads import AdaptiveSoftmax, SoftmaxHead
from palimpsest.models.language_model import LanguageNetwork

TOKENS, WIDTH, HEADS, INNER, LAYERS, ROWS, LENGTH = 11, 8, 2, 10, 2, 2, 5
RATE, ATTENTION_RATE = 0.4, 0.3
Masks = Mapping[str, list[Tensor]]


class Drops(TorchFunctionMode):
    """Stands in for every dropout of a pass, whoever calls it, and knows them by the order in which they must come.

    At the chosen place numbers are dropped by masks that are kept for the tests; elsewhere nothing is.
    """

    def __init__(self, order: list[str], chosen: str | None, part: tuple | Any = ...):
        super().__init__()
        self.order, self.chosen, self.part = order, chosen, part
        self.rates: list[float] = []
        self.masks: dict[str, list[Tensor]] = defaultdict(list)

    def __torch_function__(self, function, types, arguments=(), named=None):
        stand_in = {torch_dropout: self.drop, scaled_dot_product_attention: self.attend}.get(function, function)
        return stand_in(*arguments, **(named or {}))

    def drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        assert len(self.rates) < len(self.order), "nothing else is dropped"
        place = self.order[len(self.rates)]
        self.rates.append(p)
        mask = torch.ones_like(x)
        if place == self.chosen:
            mask[self.part] = ((torch.rand_like(x) >= p) / (1 - p)).to(x)[self.part]
            self.masks[place].append(mask)
        return x * mask

    def attend(self, queries, keys, values, attn_mask=None, is_causal=False, dropout_p=0.0, scale=1.0) -> Tensor:
        seen = torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool).tril() if is_causal else attn_mask
        scores = (queries @ keys.transpose(-1, -2) * scale).masked_fill(~seen, -torch.inf)
        return self.drop(scores.softmax(-1), dropout_p) @ values

    def finish(self, rates: list[float]) -> Masks:
        """All dropouts came, each at its rate, and the chosen one did something."""
        assert self.rates == rates
        assert self.chosen is None or any((mask == 0).any() for mask in self.masks[self.chosen])
        return self.masks


def text() -> Batch:
    tokens = torch.randint(TOKENS, (ROWS, LENGTH + 1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64) * 0.5


def apply(masks: Masks) -> Callable[[str, Tensor], Tensor]:
    """A function that drops by the next mask of a place, where there are any."""
    supply = {place: iter(each) for place, each in masks.items()}
    return lambda place, x: x * next(supply[place]) if place in supply else x


def by_head(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1))


def sinusoid(places: Tensor) -> Tensor:
    angles = places[:, None] * 10000.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def nats_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


# --------------------------------------------------------------------------- Transformer-XL and lmtool-fwms

RELATIVE, LEARNED_RELATIVE, ABSOLUTE, LEARNED_ABSOLUTE = range(4)
KINDS = [(RELATIVE, False), (RELATIVE, True), (LEARNED_RELATIVE, False), (ABSOLUTE, False), (LEARNED_ABSOLUTE, False)]
RATES = {"attention": ATTENTION_RATE}
HEAD_WIDTH = WIDTH // HEADS


def transformer_xl_order(kind: int) -> list[str]:
    layer = [*(["sinusoids"] if kind == RELATIVE else []), "attention", "mixed", "inner", "fed"]
    return ["embedding", *LAYERS * layer, "final"]


def transformer_xl_weights(kind: int) -> dict[str, Tensor]:
    """Of the originals' names and shapes."""
    weights = {
        "word_emb.emb_layers.0.weight": random(TOKENS, WIDTH),
        "crit.out_layers.0.weight": random(TOKENS, WIDTH),
        "crit.out_layers.0.bias": random(TOKENS),
    }
    if kind == RELATIVE:
        weights |= {name: random(HEADS, HEAD_WIDTH) for name in ("r_w_bias", "r_r_bias")}
    elif kind == LEARNED_RELATIVE:
        weights |= {"r_w_bias": random(LAYERS, HEADS, HEAD_WIDTH), "r_bias": random(LAYERS, LENGTH, HEADS)}
    if kind in (LEARNED_RELATIVE, LEARNED_ABSOLUTE):
        weights["r_emb"] = random(LAYERS, LENGTH, HEADS, HEAD_WIDTH)
    projections = {"r_net": WIDTH} if kind == RELATIVE else {}
    together = kind in (RELATIVE, LEARNED_RELATIVE)
    projections |= {"qkv_net": 3 * WIDTH} if together else {"q_net": WIDTH, "kv_net": 2 * WIDTH}
    for layer in range(LAYERS):
        attention, fed = f"layers.{layer}.dec_attn.", f"layers.{layer}.pos_ff."
        weights |= {f"{attention}{name}.weight": random(rows, WIDTH) for name, rows in projections.items()}
        weights[f"{attention}o_net.weight"] = random(WIDTH, WIDTH)
        for number, (rows, columns) in {"0": (INNER, WIDTH), "3": (WIDTH, INNER)}.items():
            weights |= {f"{fed}CoreNet.{number}.weight": random(rows, columns)}
            weights |= {f"{fed}CoreNet.{number}.bias": random(rows)}
        for norm in (f"{attention}layer_norm", f"{fed}layer_norm"):
            weights |= {f"{norm}.weight": 1 + random(WIDTH), f"{norm}.bias": random(WIDTH)}
    return weights


def transformer_xl(weights: Mapping[str, Tensor], kind: int, pre_norm: bool, **settings) -> LanguageNetwork:
    given = {"n_head": HEADS, "d_head": HEAD_WIDTH, "tgt_len": LENGTH, "mem_len": 0, "pre_lnorm": pre_norm}
    rates = {"dropout": RATE, "dropatt": ATTENTION_RATE}
    return from_transformer_xl.translate(weights, given | rates | settings | {"attn_type": kind}).build()


def transformer_xl_by_hand(w: Mapping[str, Tensor], kind: int, pre_norm: bool, text: Batch, masks: Masks) -> Tensor:
    drop = apply({place: each[:1] if place == "sinusoids" else each for place, each in masks.items()})

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (WIDTH,), w[f"{name}.layer_norm.weight"], w[f"{name}.layer_norm.bias"])

    def beside(x: Tensor, name: str, place: str, part: Callable[[Tensor], Tensor]) -> Tensor:
        return x + drop(place, part(norm(x, name))) if pre_norm else norm(x + drop(place, part(x)), name)

    distances = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def attention(x: Tensor, layer: int) -> Tensor:
        name = f"layers.{layer}.dec_attn."
        nets = [f"{name}qkv_net.weight"] if kind < ABSOLUTE else [f"{name}q_net.weight", f"{name}kv_net.weight"]
        q, k, v = (by_head(part) for part in (x @ torch.cat([w[net] for net in nets]).T).chunk(3, dim=-1))
        asked = q
        if kind == RELATIVE:
            asked, r = q + w["r_w_bias"], by_head(waves @ w[f"{name}r_net.weight"].T)
            by_place = torch.einsum("bihk,ijhk->bhij", q + w["r_r_bias"], r[distances])
        elif kind == LEARNED_RELATIVE:
            asked, r, bias = q + w["r_w_bias"][layer], w["r_emb"][layer].flip(0), w["r_bias"][layer].flip(0)
            by_place = torch.einsum("bihk,ijhk->bhij", q, r[distances]) + bias[distances].permute(2, 0, 1)
        else:
            by_place = 0
        scores = (torch.einsum("bihk,bjhk->bhij", asked, k) + by_place) * HEAD_WIDTH**-0.5
        shares = drop("attention", scores.masked_fill(future, -torch.inf).softmax(-1))
        return torch.einsum("bhij,bjhk->bihk", shares, v).flatten(-2) @ w[f"{name}o_net.weight"].T

    def feed_forward(x: Tensor, layer: int) -> Tensor:
        name = f"layers.{layer}.pos_ff.CoreNet."
        inner = drop("inner", (x @ w[f"{name}0.weight"].T + w[f"{name}0.bias"]).relu())
        return inner @ w[f"{name}3.weight"].T + w[f"{name}3.bias"]

    x = w["word_emb.emb_layers.0.weight"][text.inputs] * WIDTH**0.5
    if kind == ABSOLUTE:
        x = x + sinusoid(torch.arange(LENGTH - 1, -1, -1))
    x, waves = drop("embedding", x), sinusoid(torch.arange(LENGTH))
    waves = drop("sinusoids", waves)  # once, for all layers
    for layer in range(LAYERS):
        if kind == LEARNED_ABSOLUTE:
            x = x + w["r_emb"][layer].flatten(1)
        x = beside(x, f"layers.{layer}.dec_attn", "mixed", lambda x: attention(x, layer))  # noqa: B023
        x = beside(x, f"layers.{layer}.pos_ff", "fed", lambda x: feed_forward(x, layer))  # noqa: B023
    return nats_of(drop("final", x) @ w["crit.out_layers.0.weight"].T + w["crit.out_layers.0.bias"], text.targets)


every_kind = pytest.mark.parametrize("kind, pre_norm", KINDS)


def check_transformer_xl(place: str, kind: int = RELATIVE, pre_norm: bool = False) -> None:
    weights, batch, order = transformer_xl_weights(kind), text(), transformer_xl_order(kind)
    network = transformer_xl(weights, kind, pre_norm)
    with Drops(order, place) as drops:
        nats, _ = network(batch)
    masks = drops.finish([RATES.get(place, RATE) for place in order])
    close(nats, transformer_xl_by_hand(weights, kind, pre_norm, batch, masks))


@every_kind
def test_transformer_xl_drops_the_sum_of_the_embedding(kind, pre_norm):
    check_transformer_xl("embedding", kind, pre_norm)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformer_xl_drops_the_sinusoids_once_for_all_layers(pre_norm):
    check_transformer_xl("sinusoids", RELATIVE, pre_norm)


@every_kind
def test_transformer_xl_drops_attention_weights(kind, pre_norm):
    check_transformer_xl("attention", kind, pre_norm)


@every_kind
def test_transformer_xl_drops_what_attention_adds(kind, pre_norm):
    check_transformer_xl("mixed", kind, pre_norm)


@every_kind
def test_transformer_xl_drops_inner_numbers_after_the_relu(kind, pre_norm):
    check_transformer_xl("inner", kind, pre_norm)


@every_kind
def test_transformer_xl_drops_what_the_feed_forward_part_adds(kind, pre_norm):
    check_transformer_xl("fed", kind, pre_norm)


@every_kind
def test_transformer_xl_drops_the_last_hidden_states_before_the_softmax(kind, pre_norm):
    check_transformer_xl("final", kind, pre_norm)


@every_kind
def test_transformer_xl_drops_nothing_else_and_nothing_at_all_in_evaluation(kind, pre_norm):
    weights, batch, order = transformer_xl_weights(kind), text(), transformer_xl_order(kind)
    network = transformer_xl(weights, kind, pre_norm)
    expected = transformer_xl_by_hand(weights, kind, pre_norm, batch, {})
    with Drops(order, None):
        close(network(batch)[0], expected)
    with Drops([], None):
        close(network.eval()(batch)[0], expected)
    close(network(batch)[0], expected)


def test_without_dropout_transformer_xl_drops_nothing_in_training():
    network = transformer_xl(transformer_xl_weights(RELATIVE), RELATIVE, False, dropout=0.0, dropatt=0.0)
    with Drops([], None):
        network(text())


def test_the_memory_keeps_the_embedding_as_it_was_dropped():
    weights, batch, order = transformer_xl_weights(RELATIVE), text(), transformer_xl_order(RELATIVE)
    network = transformer_xl(weights, RELATIVE, False, mem_len=LENGTH)
    with Drops(order, "embedding") as drops:
        _, state = network(batch)
    embedded = weights["word_emb.emb_layers.0.weight"][batch.inputs] * WIDTH**0.5
    close(state.blocks[0].hidden, embedded * drops.masks["embedding"][0])


def test_the_last_hidden_states_are_dropped_after_the_memory_is_kept():
    network, batch = transformer_xl(transformer_xl_weights(RELATIVE), RELATIVE, False, mem_len=LENGTH), text()
    with Drops(transformer_xl_order(RELATIVE), "final"):
        _, dropped = network(batch)
    with Drops(transformer_xl_order(RELATIVE), None):
        _, whole = network(batch)
    states_close(dropped, whole)


class Listening:
    """Keeps the sinusoids that each layer is given in a pass, as torch's own dropout has made them."""

    def __init__(self, network: LanguageNetwork):
        self.network, self.heard = network, []
        network.blocks[0].mixer.positions.draw.register_forward_hook(lambda *call: self.heard.append(call[-1]))

    def __call__(self, batch: Batch) -> list[Tensor]:
        self.heard.clear()
        self.network(batch)
        assert len(self.heard) == LAYERS
        return list(self.heard)


@pytest.fixture
def listening() -> Listening:
    return Listening(transformer_xl(transformer_xl_weights(RELATIVE), RELATIVE, False))


def test_all_layers_share_one_draw_of_the_sinusoids(listening):
    first, second = listening(text())
    assert torch.equal(first, second)
    whole = sinusoid(torch.arange(LENGTH)) / (1 - RATE)
    close(first, torch.where(first == 0, 0.0, whole))
    assert 0 < (first != 0).double().mean() < 1


def test_the_next_pass_draws_the_sinusoids_anew(listening):
    batch = text()
    assert not torch.equal(listening(batch)[0], listening(batch)[0])


def test_the_draw_of_the_sinusoids_repeats_with_the_seed(listening):
    batch = text()
    torch.manual_seed(3)
    before = listening(batch)
    torch.manual_seed(3)
    assert torch.equal(listening(batch)[0], before[0])


def test_the_draw_of_the_sinusoids_leaves_other_draws_alone(listening):
    """The number of layers that use it, and how often, does not change what is dropped elsewhere."""
    draw, before = listening.network.blocks[0].mixer.positions.draw, torch.get_rng_state()
    draw(torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_in_evaluation_the_sinusoids_are_whole_and_no_chance_is_used(listening):
    listening.network.eval()
    batch = text()
    before = torch.get_rng_state()
    close(listening(batch)[0], sinusoid(torch.arange(LENGTH)))
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------ adaptive-span

SPAN, RAMP, COUNT = 6, 2, 3
EMBEDDING_RATE = 0.25
RATIOS = torch.tensor([0.2, 0.7], dtype=torch.float64)
MODELS = ["fixed", "adaptive", "all-attention", "adaptive all-attention"]
with_feed_forward = pytest.mark.parametrize("model", MODELS[:2])
with_persistent_vectors = pytest.mark.parametrize("model", MODELS[2:])
every_model = pytest.mark.parametrize("model", MODELS)


def adaptive_span_order(model: str) -> list[str]:
    layer = ["attention"] if "all-attention" in model else ["attention", "inner"]
    return ["embedding", *LAYERS * layer, "final"]


def adaptive_span_weights(model: str) -> dict[str, Tensor]:
    """Of the original's names and shapes."""
    weights = {
        "key_pe": random(1, HEAD_WIDTH, SPAN),
        "in_emb.weight": random(TOKENS, WIDTH),
        "out_emb.weight": random(TOKENS, WIDTH),
        "out_emb.bias": random(TOKENS),
    }
    for layer in range(LAYERS):
        name = f"layers.{layer}."
        for one in ("query", "key", "val", "out"):
            weights[f"{name}attn.proj_{one}.weight"] = random(WIDTH, WIDTH)
        norms = ["norm1"]
        if "adaptive" in model:
            weights[f"{name}attn.attn.adaptive_span._mask.current_val"] = RATIOS[:, None, None].clone()
        if "all-attention" in model:
            weights[f"{name}attn.attn.persistent_memory.key"] = random(HEADS, HEAD_WIDTH, COUNT)
            weights[f"{name}attn.attn.persistent_memory.val"] = random(HEADS, COUNT, HEAD_WIDTH)
        else:
            norms.append("norm2")
            weights |= {f"{name}ff.fc1.weight": random(INNER, WIDTH), f"{name}ff.fc1.bias": random(INNER)}
            weights |= {f"{name}ff.fc2.weight": random(WIDTH, INNER), f"{name}ff.fc2.bias": random(WIDTH)}
        for norm in norms:
            weights |= {f"{name}{norm}.weight": 1 + random(WIDTH), f"{name}{norm}.bias": random(WIDTH)}
    return weights


def adaptive_span(weights: Mapping[str, Tensor]) -> LanguageNetwork:
    settings = {"dropout": RATE, "emb_dropout": EMBEDDING_RATE, "adapt_span_ramp": RAMP}
    return from_adaptive_span.translate(weights, settings).build()


def adaptive_span_by_hand(w: Mapping[str, Tensor], text: Batch, masks: Masks) -> Tensor:
    drop, scale = apply(masks), HEAD_WIDTH**-0.5

    def attention(x: Tensor, name: str) -> Tensor:
        behind = torch.cat([torch.zeros(ROWS, SPAN, WIDTH, dtype=x.dtype), x], dim=1)
        window = torch.arange(LENGTH)[:, None] + torch.arange(SPAN)  # the tokens before each, not its own
        q = by_head(x @ w[f"{name}proj_query.weight"].T)
        k, v = (by_head(behind @ w[f"{name}proj_{one}.weight"].T)[:, window] for one in ("key", "val"))
        scores = torch.einsum("bihk,bijhk->bhij", q, k) + torch.einsum("bihk,kj->bhij", q, w["key_pe"][0])
        persistent = w.get(f"{name}attn.persistent_memory.key")
        if persistent is not None:
            scores = torch.cat([scores, torch.einsum("bihk,hkp->bhip", q, persistent * HEAD_WIDTH**0.5)], dim=-1)
        shares = (scores * scale).softmax(-1)
        ratios = w.get(f"{name}attn.adaptive_span._mask.current_val")
        if ratios is not None:
            away = SPAN - torch.arange(SPAN)
            shares[..., :SPAN] = shares[..., :SPAN] * ((ratios * SPAN + 1 - away) / RAMP + 1).clamp(0, 1)
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-8)
        shares = drop("attention", shares)
        read = torch.einsum("bhij,bijhk->bihk", shares[..., :SPAN], v)
        if persistent is not None:
            values = w[f"{name}attn.persistent_memory.val"] * COUNT**0.5
            read = read + torch.einsum("bhip,hpk->bihk", shares[..., SPAN:], values)
        return read.flatten(-2) @ w[f"{name}proj_out.weight"].T

    x = drop("embedding", w["in_emb.weight"][text.inputs])
    for layer in range(LAYERS):
        name = f"layers.{layer}."
        x = layer_norm(x + attention(x, f"{name}attn."), (WIDTH,), w[f"{name}norm1.weight"], w[f"{name}norm1.bias"])
        if f"{name}ff.fc1.weight" in w:
            inner = drop("inner", (x @ w[f"{name}ff.fc1.weight"].T + w[f"{name}ff.fc1.bias"]).relu())
            fed = inner @ w[f"{name}ff.fc2.weight"].T + w[f"{name}ff.fc2.bias"]
            x = layer_norm(x + fed, (WIDTH,), w[f"{name}norm2.weight"], w[f"{name}norm2.bias"])
    return nats_of(drop("final", x) @ w["out_emb.weight"].T + w["out_emb.bias"], text.targets)


def check_adaptive_span(place: str, model: str, part: tuple | Any = ...) -> None:
    weights, batch, order = adaptive_span_weights(model), text(), adaptive_span_order(model)
    with Drops(order, place, part) as drops:
        nats, _ = adaptive_span(weights)(batch)
    masks = drops.finish([EMBEDDING_RATE if place in ("embedding", "final") else RATE for place in order])
    close(nats, adaptive_span_by_hand(weights, batch, masks))


@every_model
def test_adaptive_span_drops_the_embedding(model):
    check_adaptive_span("embedding", model)


@every_model
def test_adaptive_span_drops_attention_weights_of_tokens(model):
    check_adaptive_span("attention", model, (..., slice(SPAN)))


@with_persistent_vectors
def test_adaptive_span_drops_attention_weights_of_persistent_vectors(model):
    check_adaptive_span("attention", model, (..., slice(SPAN, None)))


@with_feed_forward
def test_adaptive_span_drops_inner_numbers_after_the_relu(model):
    check_adaptive_span("inner", model)


@every_model
def test_adaptive_span_drops_the_last_hidden_states_before_the_softmax(model):
    check_adaptive_span("final", model)


@every_model
def test_adaptive_span_drops_nothing_else_and_nothing_at_all_in_evaluation(model):
    weights, batch = adaptive_span_weights(model), text()
    network, expected = adaptive_span(weights), adaptive_span_by_hand(weights, batch, {})
    with Drops(adaptive_span_order(model), None):
        close(network(batch)[0], expected)
    with Drops([], None):
        close(network.eval()(batch)[0], expected)
    close(network(batch)[0], expected)


# ------------------------------------------------------------------------------------------ the clean parts


def check_part(places: list[str], part: torch.nn.Module, by_hand: Callable[[Callable], Tensor], *inputs: Any) -> None:
    """Place by place, in training; in evaluation nothing is dropped."""
    for place in places:
        part.train()
        with Drops(places, place) as drops:
            found = part(*inputs)
        masks = drops.finish([RATE] * len(places))
        part.eval()
        close(first(found), by_hand(apply(masks)))
        with Drops([], None):
            close(first(part(*inputs)), by_hand(apply({})))


def first(found: Tensor | tuple) -> Tensor:
    return found if isinstance(found, Tensor) else found[0]


ATTENTION = SoftmaxAttention(heads=HEADS)


def test_a_pre_norm_block_drops_what_each_part_adds():
    block, x = PreNorm(ATTENTION, Relu(INNER), dropout=RATE).build(WIDTH).double(), random(ROWS, LENGTH, WIDTH)

    def by_hand(drop):
        mixed = x + drop("mixed", block.mixer(x)[0])
        return mixed + drop("fed", block.feed_forward(block.norm(mixed)))

    check_part(["mixed", "fed"], block, by_hand, x)


def test_a_post_norm_block_drops_what_each_part_adds():
    block, x = PostNorm(ATTENTION, Relu(INNER), dropout=RATE).build(WIDTH).double(), random(ROWS, LENGTH, WIDTH)

    def by_hand(drop):
        mixed = block.mixer_norm(x + drop("mixed", block.mixer(x)[0]))
        return block.norm(mixed + drop("fed", block.feed_forward(mixed)))

    check_part(["mixed", "fed"], block, by_hand, x)


@pytest.mark.parametrize("variant", FeedForward.variants())
def test_a_feed_forward_part_drops_its_inner_numbers_after_the_activation(variant):
    part, x = variant(INNER, dropout=RATE).build(WIDTH).double(), random(ROWS, LENGTH, WIDTH)

    def by_hand(drop):
        return part.down(drop("inner", part.spec.activate(*part.up(x).chunk(part.spec.branches, dim=-1))))

    check_part(["inner"], part, by_hand, x)


SPANS = [Fixed(3), SegmentCache(4), Adaptive(limit=4, ramp=2)]


@pytest.mark.parametrize("persistent", [None, PersistentVectors(COUNT)])
@pytest.mark.parametrize("positions", [NoPositions(), LearnedRelative(reach=LENGTH)])
@pytest.mark.parametrize("span", SPANS)
def test_attention_drops_its_weights_those_of_persistent_vectors_included(span, positions, persistent):
    part = SoftmaxAttention(positions, span, persistent, heads=HEADS, dropout=RATE).build(WIDTH).double()
    for number in part.parameters():
        torch.nn.init.normal_(number, std=0.5)
    if isinstance(span, Adaptive):
        torch.nn.init.constant_(part.span.ratio, 0.3)
    x = random(ROWS, LENGTH, WIDTH)

    def by_hand(drop):
        q, k, v = part.project(x).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        distances = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        content, relative = part.positions.relate(q, LENGTH)
        scores = torch.einsum("bihk,bjhk->bhij", content, k)
        if relative is not None:
            scores = scores + torch.einsum("bihk,ijhk->bhij", q, relative.table[distances.clamp(min=0)])
            scores = scores + relative.bias[distances.clamp(min=0)].permute(2, 0, 1)
        reach = span.length if isinstance(span, Fixed) else LENGTH
        share = ((distances >= 0) & (distances < reach)).to(scores).expand_as(scores)
        if (mask := part.span.mask(slice(None), LENGTH)) is not None:
            share = share * mask[:, distances.clamp(min=0)]
        if part.persistent is not None:
            keys, values = part.persistent(slice(None))
            scores = torch.cat([scores, torch.einsum("bihk,hpk->bhip", content, keys)], dim=-1)
            share = torch.nn.functional.pad(share, (0, COUNT), value=1.0)
        weights = share * (scores * HEAD_WIDTH**-0.5).exp()
        weights = drop("attention", weights / weights.sum(-1, keepdim=True))
        reads = torch.einsum("bhij,bjhk->bihk", weights[..., :LENGTH], v)
        if part.persistent is not None:
            reads = reads + torch.einsum("bhip,hpk->bihk", weights[..., LENGTH:], values)
        return part.out(reads.flatten(-2))

    check_part(["attention"], part, by_hand, x)


@pytest.mark.parametrize("backend", [name for name in ATTENTION_BACKENDS if name != "fused"])  # it has its own test
def test_every_form_of_attention_drops_weights_at_the_given_rate(backend):
    """Where all scores are equal and the values count the keys, a read tells which weights are left."""
    keys, zeros = 32, torch.zeros(8, 32, 4, 4, dtype=torch.float64)
    values = torch.eye(keys, dtype=torch.float64)[None, :, None].expand(8, -1, 4, -1)
    relative = None if backend == "plain" else Relative(zeros[:, -1:], zeros[0])
    read = relative_attention(zeros[:, -1:], zeros, values, relative=relative, dropout=RATE, backend=backend)
    close(read, (read != 0).double() / keys / (1 - RATE))
    assert abs((read == 0).double().mean() - RATE) < 0.05


@pytest.mark.parametrize("spec", [TokenEmbedding, AdaptiveEmbedding])
def test_an_embedding_drops_its_sum_with_the_positions(spec):
    part = spec(positions=Sinusoidal(), dropout=RATE).build(TOKENS, WIDTH).double()
    tokens, places = text().inputs, torch.arange(LENGTH).expand(ROWS, -1)

    def by_hand(drop):
        return drop("embedding", part.look_up(tokens) * part.scale + sinusoid(torch.arange(LENGTH)))

    check_part(["embedding"], part, by_hand, tokens, places)


@pytest.mark.parametrize("spec", [SoftmaxHead(dropout=RATE), AdaptiveSoftmax((3, 7), 2, dropout=RATE)])
def test_a_head_drops_hidden_states(spec):
    part = spec.build(TOKENS, WIDTH, TokenEmbedding().build(TOKENS, WIDTH)).double()
    hidden, targets = random(ROWS, LENGTH, WIDTH), text().targets

    def by_hand(drop):
        logits = part.log_probabilities(drop("final", hidden).flatten(0, 1)).view(ROWS, LENGTH, TOKENS)
        return nats_of(logits, targets)

    check_part(["final"], part, by_hand, hidden, targets)
