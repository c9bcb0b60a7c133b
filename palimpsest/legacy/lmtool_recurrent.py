"""What lmtool-fwms does in its own way around its recurrent mixers, as parts."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from ..gates import Gates
from ..memory.key_scales import KeyScale
from ..mixers.delta_mlp import DeltaMLP, DeltaMLPMixer, DeltaMLPState
from ..mixers.fast_weight import FastWeight, KeySum, count_keys
from ..mixers.mixer import Mixer
from ..mixers.recurrent_delta import RecurrentDeltaNet, RecurrentDeltaNetMixer, RecurrentDeltaNetState
from ..mixers.sums import fresh_sum
from ..models.block import BlockModule, MixerBlock
from ..models.feed_forward import FeedForward, Relu
from ..models.norms import LayerNorm, Norm
from ..spec import Fraction, NotNegative, Spec
from ..state import State


@dataclass(frozen=True)
class SumToAlmostOne(KeyScale):
    """Features divided by their sum and a little more."""

    epsilon: NotNegative = 1e-5
    needs_non_negative = True

    def __call__(self, features: Tensor) -> Tensor:
        return features / (features.sum(-1, keepdim=True) + self.epsilon)


@dataclass(frozen=True)
class ForgetfulDeltaMLP(DeltaMLP):
    """DeltaMLP whose state is carried and never read: every segment begins afresh."""

    @property
    def segment_invariant(self) -> bool:
        return False

    @property
    def packs(self) -> bool:
        return False

    @property
    def remembers(self) -> bool:
        return False

    def build(self, width: int, norm: nn.Module | None = None) -> "ForgetfulDeltaMLPMixer":
        return ForgetfulDeltaMLPMixer(self, width, norm)


class ForgetfulDeltaMLPMixer(DeltaMLPMixer):
    def forward(self, x: Tensor, state: DeltaMLPState | None = None) -> tuple[Tensor, DeltaMLPState]:
        return super().forward(x, None)


@dataclass(frozen=True)
class BluntlyNormalisedRecurrentDeltaNet(RecurrentDeltaNet):
    """RecurrentDeltaNet divided by the overlap of queries and keys as they were before memory and softmax had a say.

    They have signs, so the overlap may be near zero.
    """

    epsilon: NotNegative = 1e-5

    def build(self, width: int, norm: nn.Module | None = None) -> "BluntlyNormalisedMixer":
        return BluntlyNormalisedMixer(self, width, norm)


class BluntlyNormalisedState(NamedTuple):
    memory: Tensor  # b h v v
    key_sum: KeySum
    read: Tensor  # b h v


class BluntlyNormalisedMixer(RecurrentDeltaNetMixer):
    spec: BluntlyNormalisedRecurrentDeltaNet

    def initial_state(self, batch: int) -> BluntlyNormalisedState:  # pyright: ignore[reportIncompatibleMethodOverride]
        memory, read = super().initial_state(batch)
        return BluntlyNormalisedState(memory, fresh_sum(memory), read)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Tensor, state: BluntlyNormalisedState | None = None
    ) -> tuple[Tensor, BluntlyNormalisedState]:
        memory, key_sum, read = self.initial_state(len(x)) if state is None else state
        inputs = self.inputs(x)
        queries, keys, _ = inputs.split([self.head_width, self.head_width, self.head_width + 1], dim=-1)
        mass, key_sum = count_keys(queries, keys, Gates(), key_sum)
        reads, (memory, read) = self.recur(inputs, RecurrentDeltaNetState(memory, read))
        said = self.spec.scale * reads / (mass + self.spec.epsilon)[..., None]
        return self.out(said.flatten(-2)), BluntlyNormalisedState(memory, key_sum, read)


class Arrangement(Spec):
    """Where the norm and the path that skips a part stand: f is the part, x its input and n the norm."""

    normed: ClassVar[bool] = True

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        """What the part reads, and what skips it."""
        return x, x

    def leave(self, added: Tensor, skipping: Tensor | None, norm: nn.Module) -> Tensor:
        return added if skipping is None else skipping + added


@dataclass(frozen=True)
class NormAfter(Arrangement):
    """n(x + f(x))"""

    def leave(self, added: Tensor, skipping: Tensor | None, norm: nn.Module) -> Tensor:
        return norm(super().leave(added, skipping, norm))


@dataclass(frozen=True)
class NormAfterAlone(NormAfter):
    """n(f(x))"""

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        return x, None


@dataclass(frozen=True)
class NormBefore(Arrangement):
    """x + f(n(x))"""

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        return norm(x), x


@dataclass(frozen=True)
class NormFirst(Arrangement):
    """n(x) + f(n(x)): the bare input is lost."""

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        x = norm(x)
        return x, x


@dataclass(frozen=True)
class NormFirstAlone(Arrangement):
    """f(n(x))"""

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        return norm(x), None


@dataclass(frozen=True)
class Unnormed(Arrangement):
    """x + f(x)"""

    normed = False


@dataclass(frozen=True)
class Alone(Arrangement):
    """f(x)"""

    normed = False

    def enter(self, x: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor | None]:
        return x, None


@dataclass(frozen=True)
class Arranged(MixerBlock):
    """Mixer and feed-forward part, each with norm and skipping path where its arrangement puts them."""

    mixer: Mixer = FastWeight()
    feed_forward: FeedForward | None = Relu()
    norm: Norm = LayerNorm()
    dropout: Fraction = 0.0  # of what each part adds
    around_mixer: Arrangement = NormFirst()
    around_feed_forward: Arrangement = NormBefore()

    def build(self, width: int) -> "ArrangedBlock":
        return ArrangedBlock(self, width)


class ArrangedBlock(BlockModule):
    def __init__(self, spec: Arranged, width: int):
        super().__init__(spec, width, mixer_norm=None)
        self.spec = spec
        self.mixer_norm = spec.norm.build(width) if spec.around_mixer.normed else nn.Identity()
        feeds = spec.feed_forward is not None and spec.around_feed_forward.normed
        self.norm = spec.norm.build(width) if feeds else nn.Identity()

    def forward(self, x: Tensor, state: State | None = None, starts: Tensor | None = None) -> tuple[Tensor, State]:
        heard, skipping = self.spec.around_mixer.enter(x, self.mixer_norm)
        mixed, state = self.mix(heard, state, starts)
        x = self.spec.around_mixer.leave(self.dropout(mixed), skipping, self.mixer_norm)
        if self.feed_forward is not None:
            heard, skipping = self.spec.around_feed_forward.enter(x, self.norm)
            added = self.dropout(self.feed_forward(heard))
            x = self.spec.around_feed_forward.leave(added, skipping, self.norm)
        return x, state
