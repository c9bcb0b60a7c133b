"""Recipes by name, by path, or made of a text."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from .. import recipes
from ..errors import UserError, unknown
from ..experiment import Recipe
from ..serialise import import_file, to_json
from .sources import recipe_names as names

DEFAULT = "tiny-shakespeare"
PAIRS = "shopping-lists"  # what learns from tab-separated sentence pairs


def summary(name: str) -> str:
    return (module_of(name).__doc__ or "").strip().split("\n")[0]


def module_of(name: str):
    return import_module(f"{recipes.__name__}.{name.replace('-', '_')}")


def find_recipe(name: str) -> Recipe:
    """A recipe's name, a recipe.json, a Python file with a `recipe` in it, or a text for the default recipe;
    sentence pairs, .tsv, are for the smallest that translates."""
    path = Path(name).expanduser()
    if name in names():
        return module_of(name).recipe
    if path.suffix == ".json" and path.is_file():
        return Recipe.read(path)
    if path.suffix == ".py" and path.is_file():
        return from_python(path)
    if path.exists() or path.suffix or "/" in name:
        return on_text(module_of(PAIRS if path.suffix.lower() == ".tsv" else DEFAULT).recipe, path)
    raise UserError(f"{unknown('recipe', name, names())}; a text is given as a file or a folder, and {name} is neither")


def from_python(path: Path) -> Recipe:
    sys.path.insert(0, str(path.parent.resolve()))  # so that its parts can be imported by name
    recipe = getattr(import_file(path), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"{path} defines no Recipe called `recipe`")
    return recipe


def on_text(recipe: Recipe, path: Path) -> Recipe:
    """The recipe with another text to learn from."""
    corpus = recipe.data.corpus_at(path.resolve())
    return replace(recipe, name=corpus.name, data=replace(recipe.data, corpus=corpus))


def from_run(folder: Path, text: str | None) -> Recipe:
    """The recipe of a run, to start another one from its weights."""
    recipe = Recipe.read(folder / "recipe.json")
    recipe = replace(recipe, run=replace(recipe.run, start_from=folder.resolve(), keep_optimiser=False))
    return recipe if text is None else on_text(recipe, Path(text).expanduser())


def pretty(recipe: Recipe) -> str:
    return json.dumps(to_json(recipe), indent=2)
