"""The variants of a recipe: which build on which, and the values of each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.config.collect import FaultCollector, locate
from toolkit.config.errors import Fault
from toolkit.config.merge import REMOVED, Layer, Override, absent_key, merge, overrides_layer
from toolkit.config.schema import RUN_KEYS, TOP_KEYS
from toolkit.config.yaml12 import Keys
from toolkit.suggest import listed, nearest

__all__ = ["DEFAULT_VARIANT", "names_under_extends", "variant_orders", "variant_trees"]

DEFAULT_VARIANT = "default"
"""Name of the only variant of a recipe that lists none."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_TAKEN = ("figures", "report.html", "results.csv", "study.json")
"""What lies beside the variants' folders in a study's."""

Orders = dict[str, list[str]]


def variant_orders(tree: Mapping[str, Any], layers: Sequence[Layer]) -> tuple[Orders, list[Fault]]:
    """For each variant, the variants to lay over one another: each once, itself last.

    Args:
        tree: Merged values of the recipe.
        layers: Where they are written, for the messages.

    Returns:
        The orders, and what is wrong with names, keys and ``extends`` of the variants.
    """
    variants = tree.get("variants")
    if variants is None:
        return {DEFAULT_VARIANT: []}, []
    faults: list[Fault] = []

    def fault(path: Keys, message: str, near: str | None = None) -> None:
        file, line = locate(path, layers, ())
        faults.append(Fault(".".join(path), message, near, file=file, line=line))

    if not isinstance(variants, Mapping) or not variants:
        fault(("variants",), f"must be a mapping of names to changes, got {variants!r}.")
        return {DEFAULT_VARIANT: []}, faults
    parents = {name: _parents(name, variants, fault) for name in variants}
    return {name: _order(name, parents, (), fault) for name in variants}, faults


def variant_trees(
    tree: Mapping[str, Any],
    orders: Mapping[str, Sequence[str]],
    words: Sequence[Override],
    collector: FaultCollector,
) -> dict[str, dict[str, Any]]:
    """Merged values of each variant, the words of the command line laid over them last.

    A word below a node that only some variants have acts on those variants; a word that no
    variant has a place for acts on all, so that the check of keys says what is wrong with it.
    """
    trees: dict[str, dict[str, Any]] = {}
    for variant, order in orders.items():
        values = dict(tree)
        for name in order:
            changes = tree["variants"][name]
            changes = changes if isinstance(changes, Mapping) else {}
            own = {key: value for key, value in changes.items() if key in RUN_KEYS}
            values = _laid(values, own, collector, variant)
        trees[variant] = values
    chosen: dict[str, list[Override]] = {variant: [] for variant in trees}
    for word in words:
        if word.path[0] in RUN_KEYS or word.path[0] not in TOP_KEYS:
            for variant in _places(word, trees):
                chosen[variant].append(word)
    return {
        variant: _laid(values, overrides_layer(chosen[variant]).tree, collector, variant)
        for variant, values in trees.items()
    }


def names_under_extends(value: Any) -> list[str]:
    """The names under an ``extends``: one, or a list of them.

    Raises:
        ValueError: If it is something else.
    """
    names = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"must be a name or a list of names, got {value!r}.")
    return names


def _parents(name: str, variants: Mapping[str, Any], fault: Any) -> list[str]:
    """The variants that a variant names under ``extends``, after a look at its name and keys."""
    changes = variants[name]
    if not _NAME.fullmatch(name):
        fault(("variants", name), "must be letters, digits, '_', '-' and '.': it names a folder.")
    if name in _TAKEN:
        fault(("variants", name), f"must not be one of {listed(_TAKEN)}: these lie beside it.")
    if changes is None:
        return []
    if not isinstance(changes, Mapping):
        fault(("variants", name), f"must be a mapping of changes, got {changes!r}.")
        return []
    accepted = (*RUN_KEYS, "extends")
    for key in changes:
        if key not in accepted:
            why = "is not for a variant to set" if key in TOP_KEYS else "is no key of a recipe"
            message = f"{why}. Accepted: {listed(accepted)}."
            near = None if key in TOP_KEYS else nearest(str(key), accepted)
            fault(("variants", name, str(key)), message, near)
    path = ("variants", name, "extends")
    try:
        parents = names_under_extends(changes.get("extends"))
    except ValueError as error:
        fault(path, str(error))
        return []
    for other in parents:
        if other not in variants:
            message = f"must name variants of the recipe, {listed(variants, 24)}; got {other!r}."
            fault(path, message, nearest(other, [known for known in variants if known != name]))
    return [other for other in parents if other in variants]


def _order(
    name: str, parents: Mapping[str, list[str]], stack: tuple[str, ...], fault: Any
) -> list[str]:
    result: list[str] = []
    for other in parents[name]:
        if other in (*stack, name):
            if not stack:  # said once, at the variant where the circle is entered
                message = f"must not come back to itself, got {' -> '.join((name, other))}."
                fault(("variants", name, "extends"), message)
            elif other == stack[0]:
                message = f"must not come back to itself, got {' -> '.join((*stack, name, other))}."
                fault(("variants", stack[0], "extends"), message)
        else:
            order = _order(other, parents, (*stack, name), fault)
            result += [new for new in order if new not in result]
    return [*result, name]


def _laid(
    values: dict[str, Any], changes: Mapping[str, Any], collector: FaultCollector, variant: str
) -> dict[str, Any]:
    absent: list[Keys] = []
    result: dict[str, Any] = merge(values, changes, absent=absent)
    for path in absent:
        collector.report(variant)(path, *absent_key(path, values))
    return result


def _places(word: Override, trees: Mapping[str, Any]) -> list[str]:
    """The variants that have what a word of the command line is about; all if none has."""
    place = word.path if word.value is REMOVED else word.path[:-1]
    if len(place) < 2:
        return list(trees)
    having = [variant for variant, tree in trees.items() if _has(tree, place)]
    return having or list(trees)


def _has(tree: Any, path: Keys) -> bool:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True
