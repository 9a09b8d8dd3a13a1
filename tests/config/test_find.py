"""Recipes by name and path, from our package and from others', without importing torch."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from toolkit.config import find, find_recipe, list_recipes

Write = Callable[..., Path]
Faults = Callable[..., list[str]]


def test_installed_recipes_are_found_by_name() -> None:
    recipes = list_recipes()
    assert recipes["quickstart"] == find_recipe("quickstart")
    assert all(path.is_file() for path in recipes.values())


def test_a_misspelt_name_or_path_is_told(write: Write, faults_of: Faults) -> None:
    faults = faults_of(find_recipe, "quikstart")
    assert "got recipe 'quikstart'. Did you mean 'quickstart'?" in faults[0]
    path = write("", "resnet")
    assert find_recipe(path) == path
    near = path.with_name("resnte.yaml")
    assert f"Did you mean '{path}'?" in faults_of(find_recipe, near)[0]
    assert "must be an existing file" in faults_of(find_recipe, "nowhere/at/all.yaml")[0]


def test_packages_bring_recipes_through_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config_other" / "recipes"
    folder.mkdir(parents=True)
    (tmp_path / "config_other" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "theirs.yaml").write_text("title: x")
    (folder / "quickstart.yaml").write_text("title: x")
    entries = [
        EntryPoint("a", value, find.ENTRY_POINTS)
        for value in ("config_other.recipes", "config_absent.recipes")
    ]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(find, "entry_points", lambda group: entries)
    find._folders.cache_clear()
    try:
        recipes = list_recipes()
    finally:
        find._folders.cache_clear()
    assert recipes["theirs"] == folder / "theirs.yaml"
    assert recipes["quickstart"].parent != folder  # ours is not replaced


_PROGRAM = """
import sys
from toolkit import config
for name in config.list_recipes():
    recipe = config.load_recipe(name, ["title=x"])
    recipe.resolve(recipe.variants[0], recipe.seeds[0])
try:
    config.load_recipe("quickstart", ["modle.lr=3", "variants.nope.x=1"])
except config.RecipeError as error:
    print(len(error.faults))
print(sorted({"torch", "lightning", "jsonargparse", "numpy"} & set(sys.modules)))
"""


def test_loading_and_resolving_need_no_torch() -> None:
    """So a slip that needs no import is answered at once: importing Lightning takes 5 s."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["2", "[]"]
