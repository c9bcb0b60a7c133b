"""Where models, data, training and evaluation meet: a recipe is a value, and a run is that value carried out."""

from .inspection import inspect, report_instruments
from .recipe import Data, Recipe
from .run import resume, train
from .trained import Trained, load
from .translation import ParallelData, TranslationRecipe, Translator

__all__ = [
    "Data",
    "ParallelData",
    "Recipe",
    "Trained",
    "TranslationRecipe",
    "Translator",
    "inspect",
    "load",
    "report_instruments",
    "resume",
    "train",
]
