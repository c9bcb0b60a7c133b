"""What the originals were told and what they saved, by the names they have for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..models.language_model import LanguageModel, LanguageNetwork
from ..spec import Bound

# what a setting may be: those of the originals have no types of their own
SIZE = Bound("a whole number from 1 up", lambda value: type(value) is int and value > 0)
SIZE_OR_NONE = Bound(f"{SIZE.words}, or None", lambda value: value is None or SIZE.holds(value))
COUNT = Bound("a whole number from 0 up", lambda value: type(value) is int and value >= 0)
WHOLE = Bound("a whole number", lambda value: type(value) is int)
NUMBER = Bound("a number from 0 up", lambda value: type(value) in (int, float) and value >= 0)
LIST = Bound("a list", lambda value: isinstance(value, list | tuple))


class Settings(dict[str, Any]):
    """A setting that is missing says which, and how to give it."""

    def __init__(self, settings: Mapping[str, Any], original: str):
        super().__init__(settings)
        self.original = original

    def check(self, bounds: Mapping[str, Bound]) -> None:
        """Refuse, by its name, one that is not what it may be."""
        for name, bound in bounds.items():
            if name in self and not bound.holds(self[name]):
                raise UserError(
                    f"the setting {name!r} of {self.original} is {bound.words}; found {self[name]!r}: give it with "
                    f"--set {name}=…, as it was when the model was trained"
                )

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the checkpoint does not tell the setting {name!r} of {self.original}: give it with --set {name}=…, "
            f"as it was when the model was trained"
        )


class Weights(dict[str, Tensor]):
    """A weight that is missing says which."""

    def __init__(self, weights: Mapping[str, Tensor], original: str, prefix: str = ""):
        super().__init__(weights)
        self.original, self.prefix = original, prefix

    def within(self, prefix: str) -> "Weights":
        """Those whose names begin so, by the rest of their names."""
        found = {name.removeprefix(prefix): weight for name, weight in self.items() if name.startswith(prefix)}
        return Weights(found, self.original, self.prefix + prefix)

    def __missing__(self, name: str) -> Tensor:
        raise UserError(
            f"the checkpoint lacks the weight {self.prefix}{name}: it is incomplete, or no model of {self.original} "
            "as it would be imported"
        )


@contextmanager
def translating(original: str) -> Iterator[None]:
    """Weights of other shapes, and settings of other kinds, than those of the original are told, not stumbled over."""
    try:
        yield
    except UserError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"the weights do not fit the settings, or are none of {original} ({type(error).__name__}: {error}): bring "
            "a complete checkpoint, and settings as they were when the model was trained"
        ) from error


@dataclass(frozen=True)
class Imported:
    """A model of an original in our words, for a vocabulary of `tokens`, with the weights by our names."""

    model: LanguageModel
    tokens: int
    segment: int
    settings: "Settings"
    weights: dict[str, Tensor]

    def build(self) -> LanguageNetwork:
        with translating(self.settings.original):
            network = self.model.build(self.tokens)
        network.to(next(iter(self.weights.values())).dtype)
        try:
            network.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = "; ".join(line.strip() for line in str(error).splitlines()[1:])
            raise UserError(f"the weights do not fit the settings: {reason}") from error
        return network
