"""Where recipes lie: the installed ones by name, others by path."""

import os
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import toolkit
from toolkit.config.errors import Fault, RecipeError
from toolkit.suggest import listed, nearest

__all__ = ["ENTRY_POINTS", "find_recipe", "list_recipes"]

ENTRY_POINTS = "toolkit.recipes"
"""Entry-point group; the value of each names a package, or folder of one, that holds recipes."""

_ENDINGS = (".yaml", ".yml")


def find_recipe(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a recipe.

    Args:
        name_or_path: A name as :func:`list_recipes` has it, or the path of a YAML file (anything
            with a folder in it, or with the ending ``.yaml`` or ``.yml``).

    Raises:
        RecipeError: If there is no such file or name; says which one is near.
    """
    text = os.fspath(name_or_path)
    if text.endswith(_ENDINGS) or os.sep in text or "/" in text:
        return _existing(Path(text).expanduser())
    recipes = list_recipes()
    if text in recipes:
        return recipes[text]
    message = f"must be a path, or one of {listed(recipes)}; got recipe {text!r}."
    raise RecipeError([Fault("", message, nearest(text, recipes))])


def list_recipes() -> dict[str, Path]:
    """Names and files of the installed recipes, ours first, each part in alphabetical order.

    Packages add theirs through the entry-point group ``toolkit.recipes``, whose values name a
    package, for example ``mine = "my_package.recipes"``. A name that is taken is not replaced.
    """
    result: dict[str, Path] = {}
    for folder in _folders():
        files = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
        for path in files:
            result.setdefault(path.stem, path)
    return result


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    folder = path.parent
    beside = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
    beside = sorted(name for name in beside if name.endswith(_ENDINGS))
    near = nearest(path.name, beside)
    message = f"must be an existing file, got {str(path)!r}."
    raise RecipeError([Fault("", message, str(folder / near) if near else None)])


@cache
def _folders() -> tuple[Path, ...]:
    # Ours lies beside the package: a folder named recipes in the working directory, which comes
    # first on the import path, must not take its place.
    ours = Path(toolkit.__file__).resolve().parent.parent / "recipes"
    folders = [ours]
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        folders += _package_folders(entry.value)
    return tuple(dict.fromkeys(folder for folder in folders if folder.is_dir()))


def _package_folders(name: str) -> list[Path]:
    """Folders of a package; only its root is looked up, and nothing of it is imported."""
    root, *parts = name.replace(":", ".").replace("/", ".").split(".")
    try:
        spec = find_spec(root)
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec is not None else None
    return [Path(place, *parts) for place in places or ()]
