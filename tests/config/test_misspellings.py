"""Slips made by a seeded generator in every name of every recipe get the right suggestion."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from toolkit.config import (
    Recipe,
    RecipeError,
    check,
    find_recipe,
    list_recipes,
    load_recipe,
    to_yaml,
)
from toolkit.config.merge import TARGET
from toolkit.config.schema import METRIC_ARGUMENTS, TOP_KEYS, VARIANT_ARGUMENTS, named_in
from toolkit.config.targets import TargetError, find_target, signature_of

FIXTURE = """
    title: x
    paper: x
    minutes: 1
    device: cpu
    threads: 1
    nonfinite: stop
    wandb: {mode: disabled, project: x, tags: [a]}
    checkpoint: {monitor: val/error, mode: min, every_n_epochs: 2, test: last}
    variants:
      plain: {}
      wrapped:
        model.schedule: {_target_: torch.optim.lr_scheduler.CosineAnnealingLR, eta_min: 0.0}
        model.optimizer:
          _target_: config_parts.Wrapper
          rho: 0.1
          base: {_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9, weight_decay: 0.0}
      smooth: {model.loss: {_target_: torch.nn.functional.cross_entropy, label_smoothing: 0.1}}
    claims:
      better: {_target_: config_parts.Claim, arm: wrapped, baseline: plain, metric: test/error}
"""


@dataclass
class Case:
    """A name of a recipe, how to misspell it there, and which suggestions are of its kind."""

    kind: str
    name: str
    use: Callable[[str], object]
    is_right_kind: Callable[[str], bool]


def slips(word: str, rng: random.Random) -> Iterator[str]:
    """One letter deleted, one doubled, two neighbours swapped; each once, at a random place."""
    if len(word) > 1:
        place = rng.randrange(len(word))
        yield word[:place] + word[place + 1 :]
    place = rng.randrange(len(word))
    yield word[:place] + word[place] + word[place:]
    places = [i for i in range(len(word) - 1) if word[i] != word[i + 1]]
    if places:
        place = rng.choice(places)
        yield word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def cases_of(recipe: Recipe, folder: Path) -> Iterator[Case]:
    """Every name of a recipe that is not the author's own to choose."""
    yield from _names_of_variants(recipe)
    seen = set()
    for variant in recipe.variants:
        tree = recipe.resolve(variant, recipe.seeds[0])
        for path, kind, names in _keys(tree, (), recipe.packages):
            if (path, names) not in seen:
                seen.add((path, names))
                yield _key_case(tree, path, kind, names, folder)
        for path, target in _targets(tree):
            if (path, target) not in seen:
                seen.add((path, target))
                for position, word in enumerate(target.split(".")):
                    yield _target_case(tree, path, target, position, word, folder, recipe.packages)
        for name in tree["callbacks"]:
            if name not in seen and name != "sharpness_aware":
                seen.add(name)
                yield _callback_case(recipe, name)


def _names_of_variants(recipe: Recipe) -> Iterator[Case]:
    for name in recipe.variants:
        is_variant = recipe.variants.__contains__
        yield Case("variant", name, lambda slip: recipe.select([slip]), is_variant)
    claims = {"claims": recipe.claims}
    for arguments, kind in ((VARIANT_ARGUMENTS, "variant"), (METRIC_ARGUMENTS, "metric")):
        for path, name in named_in(claims, (), arguments):
            key = ".".join(path)
            yield Case(
                kind,
                name,
                lambda slip, key=key: check(load_recipe(recipe.path, [f"{key}={slip}"])),
                recipe.variants.__contains__ if kind == "variant" else lambda name: "/" in name,
            )


def _keys(
    tree: Any, path: tuple[str, ...], packages: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, frozenset[str]]]:
    """Paths of keys that a recipe does not choose itself, with the names accepted there."""
    if isinstance(tree, list):
        for position, item in enumerate(tree):
            yield from _keys(item, (*path, str(position)), packages)
    if not isinstance(tree, dict):
        return
    kind, names = _accepted(tree, path, packages)
    for key, value in tree.items():
        if key in names:
            yield (*path, key), kind, names
        yield from _keys(value, (*path, str(key)), packages)


def _accepted(
    tree: dict[str, Any], path: tuple[str, ...], packages: tuple[str, ...]
) -> tuple[str, frozenset[str]]:
    if not path:
        return "top-level key", frozenset(TOP_KEYS)
    if path == ("checkpoint",):
        return "section key", frozenset({"monitor", "mode", "every_n_epochs", "test"})
    if path == ("wandb",):
        return "section key", frozenset({"mode", "project", "entity", "tags"})
    if path == ("trainer",):
        return "trainer", frozenset(signature_of(find_target("lightning.Trainer")).arguments)
    if TARGET in tree:
        return "argument", frozenset(signature_of(find_target(tree[TARGET], packages)).arguments)
    return "", frozenset()


def _targets(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items if isinstance(tree, dict | list) else ():
        if key == TARGET:
            yield (*path, key), value
        elif isinstance(value, dict | list):
            yield from _targets(value, (*path, str(key)))


def _key_case(
    tree: Any, path: tuple[str, ...], kind: str, names: frozenset[str], folder: Path
) -> Case:
    def use(slip: str) -> None:
        changed = copy.deepcopy(tree)
        parent = _at(changed, path[:-1])
        parent[slip] = parent.pop(path[-1])
        _check_text(changed, folder)

    return Case(kind, path[-1], use, names.__contains__)


def _target_case(
    tree: Any,
    path: tuple[str, ...],
    target: str,
    position: int,
    word: str,
    folder: Path,
    packages: tuple[str, ...],
) -> Case:
    words = target.split(".")

    def use(slip: str) -> None:
        changed = copy.deepcopy(tree)
        misspelt = ".".join((*words[:position], slip, *words[position + 1 :]))
        _at(changed, path[:-1])[TARGET] = misspelt
        _check_text(changed, folder)

    def is_right_kind(suggestion: str) -> bool:
        whole = ".".join((*words[:position], suggestion, *words[position + 1 :]))
        try:
            find_target(whole, packages)
        except TargetError:
            return False
        return True

    return Case("class", word, use, is_right_kind)


def _callback_case(recipe: Recipe, name: str) -> Case:
    return Case(
        "callback",
        name,
        lambda slip: load_recipe(recipe.path, [f"~callbacks.{slip}"]),
        lambda found: any(found in tree["callbacks"] for tree in recipe.trees.values()),
    )


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


def _check_text(tree: Any, folder: Path) -> None:
    path = folder / "misspelt.yaml"
    path.write_text(to_yaml(tree), encoding="utf-8")
    check(load_recipe(path))


def _all_cases(folder: Path, fixture: Path, names: Iterable[str]) -> list[Case]:
    recipes = [load_recipe(fixture)]
    for name in names:
        recipe = load_recipe(name)
        check(recipe)
        recipes.append(recipe)
    cases = [case for recipe in recipes for case in cases_of(recipe, folder)]
    names = list_recipes()
    return cases + [Case("recipe", name, find_recipe, names.__contains__) for name in names]


def _suggested(case: Case, slip: str) -> list[str]:
    """The last words of what is suggested for a slip; ``RecipeError`` is the only way out."""
    with pytest.raises(RecipeError) as caught:
        case.use(slip)
    found = [fault.suggestion for fault in caught.value.faults if fault.suggestion]
    return [part for text in found for part in _words(text, case)]


def _words(suggestion: str, case: Case) -> list[str]:
    if case.kind == "class":
        return suggestion.split(".")
    return [suggestion.rpartition(".")[2]]


def _run(cases: list[Case], seed: int) -> None:
    rng = random.Random(seed)
    wrong: dict[str, list[str]] = {}
    total = 0
    for case in cases:
        for slip in slips(case.name, rng):
            if case.is_right_kind(slip):  # another right name: no slip that anybody could see
                continue
            total += 1
            suggested = _suggested(case, slip)
            if case.name in suggested:
                continue
            wrong.setdefault(case.kind, []).append(f"{case.name} -> {slip}: {suggested}")
            if case.kind != "class":
                assert all(map(case.is_right_kind, suggested)), wrong
    count = sum(map(len, wrong.values()))
    assert total > 100
    assert count <= 0.05 * total, f"{count} of {total}: {wrong}"


def test_at_least_95_of_100_slips_get_the_right_suggestion(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    """In one shipped recipe and one that has everything; to look at all takes minutes."""
    cases = _all_cases(tmp_path, write(FIXTURE, "fixture"), ["quickstart"])
    kinds = {"variant", "metric", "top-level key", "section key", "trainer", "argument", "class"}
    assert kinds | {"callback", "recipe"} == {case.kind for case in cases}
    _run(random.Random(0).sample(cases, 45), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_slips_in_every_name_of_every_recipe(
    write: Callable[..., Path], tmp_path: Path, seed: int
) -> None:
    _run(_all_cases(tmp_path, write(FIXTURE, "fixture"), list_recipes()), seed)
