"""How what the heads of a recurrent mixer say becomes as wide as the model."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import dropout

from ..errors import UserError
from ..spec import Fraction, Spec


@dataclass(frozen=True)
class OutProjection(Spec):
    """A learned matrix; without one, what is said is as wide as the model already."""

    dropout: Fraction = 0.0  # of what is said

    def build(self, said: int, width: int) -> nn.Module:
        return DroppedLinear(said, width, self.dropout)


class DroppedLinear(nn.Linear):
    """Dropout, then a matrix."""

    def __init__(self, inputs: int, outputs: int, probability: float):
        super().__init__(inputs, outputs, bias=False)
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(dropout(x, self.probability, self.training))


def build_out(spec: OutProjection | None, said: int, width: int) -> nn.Module:
    if spec is not None:
        return spec.build(said, width)
    if said != width:
        raise UserError(f"without an out projection what is said is as wide as the model, {width}; found {said}")
    return nn.Identity()
