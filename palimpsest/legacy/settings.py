"""What the originals were told, by the names they have for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..models.language_model import LanguageModel, LanguageNetwork


class Settings(dict[str, Any]):
    """A setting that is missing says which, and how to give it."""

    def __init__(self, settings: Mapping[str, Any], original: str):
        super().__init__(settings)
        self.original = original

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the checkpoint does not tell the setting {name!r} of {self.original}: give it with --set {name}=…, "
            f"as it was when the model was trained"
        )


@dataclass(frozen=True)
class Imported:
    """A model of an original in our words, for a vocabulary of `tokens`, with the weights by our names."""

    model: LanguageModel
    tokens: int
    segment: int
    settings: "Settings"
    weights: dict[str, Tensor]

    def build(self) -> LanguageNetwork:
        network = self.model.build(self.tokens)
        network.to(next(iter(self.weights.values())).dtype)
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = "; ".join(line.strip() for line in str(error).splitlines()[1:])
            raise UserError(f"the weights do not fit the settings: {reason}") from error
        return network
