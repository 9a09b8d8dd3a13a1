"""Recipes: load, extend, override, check, build; imports neither torch nor Lightning itself."""

from toolkit.config.build import build, instantiate
from toolkit.config.check import check
from toolkit.config.errors import Fault, RecipeError, one_line
from toolkit.config.find import find_recipe, list_recipes
from toolkit.config.fingerprint import difference, fingerprint
from toolkit.config.load import load_recipe
from toolkit.config.recipe import Recipe
from toolkit.config.seeds import read_seeds
from toolkit.config.targets import find_target
from toolkit.config.yaml12 import read_yaml, to_yaml

__all__ = [
    "Fault",
    "Recipe",
    "RecipeError",
    "build",
    "check",
    "difference",
    "find_recipe",
    "find_target",
    "fingerprint",
    "instantiate",
    "list_recipes",
    "load_recipe",
    "one_line",
    "read_seeds",
    "read_yaml",
    "to_yaml",
]
