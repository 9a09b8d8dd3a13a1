"""Layers of a recipe, how one is laid over another, and the command line as a layer."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.config.errors import Fault, RecipeError
from toolkit.config.yaml12 import Keys, parse_yaml
from toolkit.suggest import nearest

__all__ = [
    "REMOVED", "TARGET", "Layer", "Override", "absent_key", "expand_keys", "merge",
    "overrides_layer", "parse_override",
]  # fmt: skip

TARGET = "_target_"
REMOVED = object()
"""Stands in a layer for a key that the layer takes out."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


@dataclass
class Layer:
    """Part of a recipe: what one file, variant or command line says.

    Args:
        tree: Nested mappings; :data:`REMOVED` marks keys to take out.
        file: Where it is written.
        lines: Line of each path of keys; 0 on the command line.
        is_command_line: Whether it is the command line.
    """

    tree: dict[str, Any]
    file: str
    lines: dict[Keys, int] = field(default_factory=dict)
    is_command_line: bool = False


@dataclass(frozen=True)
class Override:
    """One word of the command line: ``key=value`` or ``~key``."""

    path: Keys
    value: Any

    def __str__(self) -> str:
        name = ".".join(self.path)
        return f"~{name}" if self.value is REMOVED else f"{name}={self.value}"


def merge(base: Any, over: Any, path: Keys = (), absent: list[Keys] | None = None) -> Any:
    """``over`` laid on ``base``: mappings merge, the rest is replaced, :data:`REMOVED` keys go.

    A mapping with a ``_target_`` replaces what is there: it inherits no argument of the old one.
    Below ``variants.<name>`` the marks are kept, because they act on the recipe, not on the
    variant's own list of changes.

    Args:
        base: Values; not changed.
        over: Values to lay on it; not changed.
        path: Where the two lie in the recipe.
        absent: Gets the paths that were to be removed but are not there.
    """
    if not isinstance(over, Mapping):
        return over
    if not isinstance(base, Mapping) or TARGET in over:
        base = {}
    keep = len(path) >= 2 and path[0] == "variants"
    result = dict(base)
    for key, value in over.items():
        here = (*path, str(key))
        if value is REMOVED and not keep:
            if key not in result and absent is not None:
                absent.append(here)
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value, here, absent)
    return result


def expand_keys(tree: Mapping[Any, Any], layer: Layer, path: Keys, faults: list[Fault]) -> Any:
    """``tree`` with dotted keys nested and ``~key: null`` turned into :data:`REMOVED` marks.

    Dotted keys are meant at the top of a file and of a variant only; arguments deeper down may
    have dots in their names. ``layer.lines`` learns the lines of the nested keys.
    """
    result: dict[Any, Any] = {}
    for key, value in tree.items():
        written = (*path, str(key))
        name = str(key)
        if name.startswith("~"):
            name = name[1:]
            if value is not None:
                message = f"must be null where a key is removed, got {value!r}."
                faults.append(_fault(layer, written, message))
            value = REMOVED
        parts = tuple(name.split(".")) if _DOTTED.fullmatch(name) else (name,)
        if value is REMOVED or len(parts) > 1:
            _copy_lines(layer.lines, written, (*path, *parts))
        if _place(result, parts if isinstance(key, str) else (key,), value):
            faults.append(_fault(layer, written, "is given twice, once with dots."))
    return _mark_removals(result, layer, path, faults)


def parse_override(word: str) -> Override:
    """A word ``key=value`` (the value read as YAML 1.2) or ``~key`` of the command line.

    Raises:
        RecipeError: If it is neither, or if the value is no YAML.

    Example:
        >>> parse_override("model.optimizer.lr=1e-2").path
        ('model', 'optimizer', 'lr')
        >>> parse_override("wandb.mode=off").value
        'off'
    """
    name, equals, text = word.partition("=")
    removal = name.startswith("~")
    path = tuple(name.removeprefix("~").split("."))
    valid = all(re.fullmatch(r"[\w-]+", part) for part in path)
    if not valid or bool(equals) == removal:
        message = f"must be key=value or ~key with a dotted key, got {word!r}."
        raise RecipeError([Fault("", message, file="command line")])
    if removal:
        return Override(path, REMOVED)
    try:
        value, _ = parse_yaml(text, "command line")
    except RecipeError as error:
        message = f"{error.faults[0].message} Quote the value, got {text!r}."
        raise RecipeError([Fault(".".join(path), message, file="command line")]) from error
    return Override(path, value)


def overrides_layer(overrides: Iterable[Override]) -> Layer:
    """The words of a command line as one layer; the order of the words does not matter."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _place(tree, override.path, override.value)
    lines = dict.fromkeys(_paths(tree), 0)
    return Layer(tree, "command line", lines, is_command_line=True)


def absent_key(path: Keys, tree: Any) -> tuple[str, str | None]:
    """Message and suggestion where a key is to be removed that is not there."""
    *parents, name = path
    for parent in parents:
        tree = tree.get(parent) if isinstance(tree, Mapping) else None
    siblings = [str(key) for key in tree] if isinstance(tree, Mapping) else []
    near = nearest(name, siblings)
    suggestion = "~" + ".".join((*parents, near)) if near else None
    return "must be there to be removed, got no such key.", suggestion


def _place(tree: dict[Any, Any], path: Keys, value: Any) -> bool:
    """Set a nested value; whether it, or something above it, was there already."""
    *parents, last = path
    for parent in parents:
        below: Any = tree.setdefault(parent, {})
        if not isinstance(below, dict):
            return True
        tree = below
    old = tree.get(last)
    both = isinstance(old, dict) and isinstance(value, Mapping)
    if both and old:
        again = [_place(old, (key,), item) for key, item in value.items()]
        return any(again)
    there = last in tree
    tree[last] = dict(value) if isinstance(value, Mapping) else value
    return there


def _mark_removals(tree: Any, layer: Layer, path: Keys, faults: list[Fault]) -> Any:
    """``tree`` with nested ``~key: null`` turned into marks."""
    if not isinstance(tree, dict):
        return tree
    result = {}
    for key, value in tree.items():
        here = (*path, str(key))
        if isinstance(key, str) and key.startswith("~"):
            if value is not None:
                faults.append(_fault(layer, here, f"must be null to remove a key, got {value!r}."))
            result[key[1:]] = REMOVED
            _copy_lines(layer.lines, here, (*path, key[1:]))
        else:
            result[key] = _mark_removals(value, layer, here, faults)
    return result


def _copy_lines(lines: dict[Keys, int], written: Keys, nested: Keys) -> None:
    """Lines of ``written`` and of what lies below it, under the nested path too."""
    depth = len(written)
    below = {path[depth:]: line for path, line in lines.items() if path[:depth] == written}
    for end in range(depth, len(nested)):
        lines.setdefault(nested[:end], below[()])
    lines.update({(*nested, *rest): line for rest, line in below.items()})


def _paths(tree: Any, path: Keys = ()) -> Iterator[Keys]:
    if path:
        yield path
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _paths(value, (*path, str(key)))


def _fault(layer: Layer, path: Keys, message: str) -> Fault:
    return Fault(".".join(path), message, file=layer.file, line=layer.lines.get(path))
