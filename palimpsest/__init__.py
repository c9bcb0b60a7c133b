"""palimpsest: language models with fast weight memory.

A palimpsest is a page that is kept, erased and written again. So is every fast weight memory.

    import palimpsest

    model = palimpsest.load("runs/tiny-shakespeare-001")
    print(model.generate("ROMEO:"))
"""

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .experiment import Recipe, Trained, TranslationRecipe, Translator, inspect, load, resume, train

__all__ = [
    "Recipe",
    "Trained",
    "TranslationRecipe",
    "Translator",
    "__version__",
    "inspect",
    "load",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    # on first use: `palimpsest --help` should not wait for torch
    if name not in __all__:
        raise AttributeError(f"palimpsest has no {name!r}")
    from . import experiment

    return getattr(experiment, name)
