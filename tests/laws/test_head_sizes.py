"""What it means that heads share keys, differ in width, map their values or write several times. Laws: test_mixers."""

from dataclasses import replace

import pytest
import torch
from closeness import close
from test_mixers import HEADS, LENGTH, MEMORY, WIDTH, built

from palimpsest.errors import UserError
from palimpsest.memory.feature_maps import Silu
from palimpsest.memory.update_rules import Delta
from palimpsest.mixers.fast_weight import FastWeight


def test_heads_that_share_a_key_are_heads_with_the_same_key():
    sharing = built(FastWeight(heads=4, key_heads=2, head_width=3))
    alone = built(FastWeight(heads=4, head_width=3))
    queries, keys, values = sharing.project.weight.detach().split([6, 6, 12])
    copied = [z.view(2, 3, WIDTH).repeat_interleave(2, dim=0).flatten(0, 1) for z in (queries, keys)]
    weights = sharing.state_dict() | {"project.weight": torch.cat([*copied, values])}
    alone.load_state_dict(weights)
    x = torch.randn(2, LENGTH, WIDTH)
    close(sharing(x)[0], alone(x)[0])


@pytest.mark.parametrize("key_heads", (0, 3, 8))
def test_keys_that_the_heads_cannot_share_are_refused(key_heads):
    with pytest.raises(UserError, match=f"4 heads cannot share the keys of {key_heads}"):
        FastWeight(heads=4, key_heads=key_heads)


def test_only_the_last_write_of_a_token_is_read():
    once = built(replace(MEMORY, update_rule=Delta()))
    twice = built(replace(MEMORY, update_rule=Delta(writes=2)))
    queries, keys, values = once.project.weight.detach().chunk(3)
    weights = once.state_dict()
    weights["project.weight"] = torch.cat([queries, keys, keys, torch.zeros_like(values), values])
    weights["update_rule.beta.weight"] = torch.cat([torch.zeros(HEADS, WIDTH), once.update_rule.beta.weight.detach()])
    weights["update_rule.beta.bias"] = torch.cat([torch.full((HEADS,), -1e3), once.update_rule.beta.bias.detach()])
    twice.load_state_dict(weights)  # the first write comes to nothing
    x = torch.randn(2, LENGTH, WIDTH)
    close(twice(x)[0], once(x)[0])


def test_values_are_mapped_before_they_are_written():
    plain, mapped = built(MEMORY), built(replace(MEMORY, value_map=Silu()))
    mapped.load_state_dict(plain.state_dict())
    x = torch.randn(2, 1, WIDTH)
    before, after = (mixer.address(x, mixer.initial_state(2)).values for mixer in (plain, mapped))
    close(after, torch.nn.functional.silu(before))
    assert not torch.equal(mapped(x)[0], plain(x)[0])
