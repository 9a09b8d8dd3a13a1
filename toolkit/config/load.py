"""Load a recipe: files, variants and the command line, merged; nothing it names is imported."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolkit.config.collect import FaultCollector
from toolkit.config.errors import Fault, RecipeError, one_line
from toolkit.config.find import find_recipe
from toolkit.config.merge import (
    REMOVED,
    Layer,
    Override,
    absent_key,
    expand_keys,
    merge,
    overrides_layer,
    parse_override,
)
from toolkit.config.recipe import Recipe
from toolkit.config.schema import RUN_KEYS, TOP_KEYS, check_shape
from toolkit.config.variants import names_under_extends, variant_orders, variant_trees
from toolkit.config.yaml12 import Keys, parse_yaml, text_of
from toolkit.suggest import listed, nearest

__all__ = ["load_recipe"]


def load_recipe(name_or_path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Recipe:
    """Load a recipe, lay its variants and the command line over it, and check its keys.

    The order is: the recipes it extends, itself, the variant (after those it extends), the command
    line; interpolation comes last, in :meth:`Recipe.resolve`. Checked here is all that needs no
    import, so a slip here is told in a fraction of a second: keys, choices, the roots of targets,
    names of variants. :func:`toolkit.config.check` does the rest.

    A word of the command line below a node that only some variants have acts on those.

    Args:
        name_or_path: Name of an installed recipe, or path of a YAML file.
        overrides: Words ``key=value`` and ``~key``, for example ``model.optimizer.lr=0.1``.

    Raises:
        RecipeError: With every fault found.
    """
    words, faults = _parse_overrides(overrides)
    path = find_recipe(name_or_path)
    layers = _file_layers(path, (), faults)
    tree: dict[str, Any] = {}
    for layer in layers:
        tree = _lay(tree, layer, layer.tree, faults)
    tree = _override_study(tree, words, faults)
    command_line = overrides_layer(words)
    layers.append(command_line)
    orders, more = variant_orders(tree, layers)
    collector = FaultCollector(layers, orders)
    trees = variant_trees(tree, orders, words, collector)
    for variant, values in trees.items():
        check_shape(values, collector.report(variant))
    faults += more + collector.faults
    if faults:
        raise RecipeError(faults)
    return Recipe(path.stem, path, tree, trees, layers, orders)


def _parse_overrides(overrides: Iterable[str]) -> tuple[list[Override], list[Fault]]:
    words: list[Override] = []
    faults: list[Fault] = []
    for text in overrides:
        try:
            words.append(parse_override(text))
        except RecipeError as error:
            faults += error.faults
    return words, faults


def _file_layers(path: Path, stack: tuple[Path, ...], faults: list[Fault]) -> list[Layer]:
    """The layers of a file: those of what it extends, then its own."""
    file = _shown(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"must be a readable text file, got {one_line(error)}."
        raise RecipeError([Fault("", message, file=file)]) from error
    tree, lines = parse_yaml(text, file)
    if not isinstance(tree, dict):
        message = f"must be a mapping of keys to values, got {tree!r}."
        raise RecipeError([Fault("", message, file=file)])
    layer = Layer({}, file, lines)
    variants = tree.get("variants")
    if isinstance(variants, dict):
        tree["variants"] = _expanded_variants(variants, layer, faults)
    layer.tree = expand_keys(tree, layer, (), faults)
    result: list[Layer] = []
    try:
        names = names_under_extends(layer.tree.pop("extends", None))
    except ValueError as error:
        line = lines.get(("extends",))
        faults.append(Fault("extends", str(error), file=file, line=line))
        names = []
    for name in names:
        result += _extended(name, path, layer, stack, faults)
    return [*result, layer]


def _extended(
    name: str, path: Path, layer: Layer, stack: tuple[Path, ...], faults: list[Fault]
) -> list[Layer]:
    """Layers of a recipe named under ``extends``: a path from the file's folder, or a name."""
    line = layer.lines.get(("extends",))
    beside = path.parent / name
    if not beside.suffix:
        beside = beside.with_suffix(".yaml")
    is_own_name = beside.resolve() == path.resolve()  # extends the installed one of its own name
    try:
        found = beside if beside.is_file() and not is_own_name else find_recipe(name)
    except RecipeError as error:
        fault = error.faults[0]
        near = nearest(name, [other.stem for other in path.parent.glob("*.yaml") if other != path])
        near = near or fault.suggestion
        faults.append(Fault("extends", fault.message, near, file=layer.file, line=line))
        return []
    chain = (*stack, path.resolve())
    if found.resolve() in chain:
        circle = " -> ".join(p.stem for p in (*chain, found))
        message = f"must not come back to itself, got {circle}."
        faults.append(Fault("extends", message, file=layer.file, line=line))
        return []
    return _file_layers(found, chain, faults)


def _lay(tree: dict[str, Any], layer: Layer, over: Any, faults: list[Fault]) -> dict[str, Any]:
    """``over`` laid on ``tree``; removals of what is not there are faults."""
    absent: list[Keys] = []
    result: dict[str, Any] = merge(tree, over, absent=absent)
    for path in absent:
        message, near = absent_key(path, tree)
        line = layer.lines.get(path) or None
        faults.append(Fault(".".join(path), message, near, file=layer.file, line=line))
    return result


def _override_study(
    tree: dict[str, Any], words: list[Override], faults: list[Fault]
) -> dict[str, Any]:
    """The words of the command line that are about the study: variants, claims, seeds, title."""
    mine = []
    for word in words:
        head, *rest = word.path
        if head == "extends":
            message = "must be written in a file. Make a recipe that extends."
            faults.append(Fault("extends", message, file="command line"))
        elif head in ("variants", "claims") and rest:
            names = [str(name) for name in tree.get(head) or {}]
            if rest[0] not in names and (len(rest) > 1 or word.value is REMOVED):
                message = f"must be one of {listed(names, 24)}; got {rest[0]!r}."
                key, near = ".".join(word.path[:2]), nearest(rest[0], names)
                faults.append(Fault(key, message, near, file="command line"))
            else:
                mine.append(_expanded(word, faults))
        elif head in TOP_KEYS and head not in RUN_KEYS:
            mine.append(_expanded(word, faults))
    layer = overrides_layer(mine)
    return _lay(tree, layer, layer.tree, faults)


def _expanded(word: Override, faults: list[Fault]) -> Override:
    """A word that gives whole variants, whose keys may be dotted as in a file."""
    is_short = word.path[0] == "variants" and len(word.path) <= 2
    if not is_short or not isinstance(word.value, dict):
        return word
    layer = overrides_layer([word])
    if len(word.path) == 2:
        return Override(word.path, expand_keys(word.value, layer, word.path, faults))
    return Override(word.path, _expanded_variants(word.value, layer, faults))


def _expanded_variants(variants: dict[Any, Any], layer: Layer, faults: list[Fault]) -> Any:
    names = {text_of(name): changes for name, changes in variants.items()}
    return {
        name: expand_keys(changes, layer, ("variants", name), faults)
        if isinstance(changes, dict)
        else changes
        for name, changes in names.items()
    }


def _shown(path: Path) -> str:
    """A path as people like to read it: from the working directory if it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
