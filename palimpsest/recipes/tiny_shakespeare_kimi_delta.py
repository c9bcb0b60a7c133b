"""As tiny-shakespeare, with Kimi Delta Attention: the delta rule, and each feature of a key fades at its own pace.

    palimpsest train tiny-shakespeare-kimi-delta

About seven minutes on two CPU cores; 1.55 nats per character on the whole validation split.
"""

from dataclasses import replace

from palimpsest.memory.read_outs import SigmoidGatedNorm
from palimpsest.memory.update_rules import FeatureGatedDelta
from palimpsest.recipes.tiny_shakespeare import with_mixer
from palimpsest.recipes.tiny_shakespeare_gated_delta_net import memory

kimi_delta = replace(memory, update_rule=FeatureGatedDelta(), read_out=SigmoidGatedNorm())
recipe = with_mixer("tiny-shakespeare-kimi-delta", kimi_delta)
