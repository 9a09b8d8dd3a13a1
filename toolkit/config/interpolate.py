"""``${...}`` in a recipe, by OmegaConf: the last step, after every override."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.config.yaml12 import Keys
from toolkit.suggest import nearest

__all__ = ["has_interpolation", "interpolate"]

Problem = tuple[Keys, str, str | None]


def has_interpolation(value: Any) -> bool:
    """Whether there is a ``${...}`` anywhere in nested mappings and lists."""
    return any(True for _ in _interpolated(value, ()))


def interpolate(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of nested values with every ``${...}`` replaced by what it stands for.

    ``${data.root}`` is the value at that key, ``${.root}`` at the key beside it, and
    ``${oc.env:NAME,default}`` an environment variable (always text), all as in OmegaConf.

    Returns:
        The copy, and the paths of those that stand for nothing, each with a message and maybe
        the key that was meant; their values are ``None``.
    """
    from omegaconf import OmegaConf  # 0.1 s, which --help and --list do without
    from omegaconf.errors import OmegaConfBaseException

    result = _copy(tree)
    problems: list[Problem] = []
    places = list(_interpolated(result, ()))
    for path, text in places:  # a syntax error in one place would hide all others
        try:
            OmegaConf.create({"value": text})
        except OmegaConfBaseException:
            problems.append((path, f"must be an interpolation that closes, got {text!r}.", None))
            _set(result, path, None)
    config = OmegaConf.create(result, flags={"allow_objects": True})
    for path, text in places:
        if any(path == bad for bad, _, _ in problems):
            continue
        try:
            value: Any = config
            for key in path:
                value = value[_key(value, key)]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except (OmegaConfBaseException, RecursionError) as error:
            problems.append((path, *_explain(error, text, tree)))
            value = None
        _set(result, path, value)
    return result, problems


def _interpolated(value: Any, path: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str) and "${" in value:
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _interpolated(item, (*path, str(key)))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _interpolated(item, (*path, str(position)))


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _key(container: Any, key: str) -> Any:
    """The key or position of a container whose text is ``key``."""
    if hasattr(container, "keys"):
        return next(own for own in container if str(own) == key)
    return int(key)


def _set(tree: Any, path: Keys, value: Any) -> None:
    for key in path[:-1]:
        tree = tree[_key(tree, key)]
    tree[_key(tree, path[-1])] = value


def _explain(error: Exception, text: str, tree: Mapping[str, Any]) -> tuple[str, str | None]:
    missing = re.search(r"Interpolation key '([^']+)' not found", str(error))
    if missing:
        near = nearest(missing[1], _paths(tree))
        return f"must name a key of the recipe, got {text!r}.", near and f"${{{near}}}"
    variable = re.search(r"Environment variable '([^']+)' not found", str(error))
    if variable:
        message = f"needs the environment variable {variable[1]}, which is not set."
        return f"{message} Set it, or write ${{oc.env:{variable[1]},default}}.", None
    if isinstance(error, RecursionError) or "recursi" in str(error).lower():
        return f"must not refer to itself, got {text!r}.", None
    resolver = re.search(r"Unsupported interpolation type (\S+)", str(error))
    if resolver:
        return f"must use a resolver of OmegaConf such as oc.env, got {text!r}.", None
    return f"must be an interpolation, got {text!r}: {str(error).splitlines()[0]}.", None


def _paths(value: Any, path: Keys = ()) -> Iterator[str]:
    if path:
        yield ".".join(path)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths(item, (*path, str(key)))
