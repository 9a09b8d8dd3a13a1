"""Declared types of arguments: what they accept, in words, and conversion by jsonargparse."""

import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from toolkit.config.yaml12 import read_scalar, text_of
from toolkit.suggest import listed, nearest

__all__ = [
    "callables",
    "classes",
    "convert",
    "describe",
    "item_types",
    "members",
    "nearest_choice",
]

_SCALARS = (bool, int, float, complex, str, type(None), object)
_LISTS = (list, tuple, set, frozenset)
_NAMES = {
    bool: "true or false", int: "a whole number", float: "a number", complex: "a number",
    str: "text", type(None): "null", object: "any value", Any: "any value",
}  # fmt: skip


def members(annotation: Any) -> list[Any]:
    """The alternatives of a type: those of a union, or the type itself; aliases are followed.

    Example:
        >>> members(int | None)
        [<class 'int'>, <class 'NoneType'>]
    """
    if annotation is None:
        return [type(None)]
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [part for choice in typing.get_args(annotation) for part in members(choice)]
    if origin is typing.Annotated:
        return members(typing.get_args(annotation)[0])
    if isinstance(annotation, typing.NewType):
        return members(annotation.__supertype__)
    if isinstance(annotation, typing.TypeVar):
        choices = annotation.__constraints__ or (annotation.__bound__ or Any,)
        return [part for choice in choices for part in members(choice)]
    if isinstance(annotation, str) or annotation is inspect.Parameter.empty:
        return [Any]
    return [annotation]


def callables(annotation: Any) -> list[Any]:
    """The alternatives that are declared as ``Callable``."""
    return [m for m in members(annotation) if _origin(m) is Callable or m is Callable]


def classes(annotation: Any) -> list[type]:
    """The alternatives that are classes, of which a value must be an instance; no ``Callable``."""
    found = [_origin(m) or m for m in members(annotation)]
    return [m for m in found if isinstance(m, type) and m not in (type, Callable, Any)]


def item_types(annotation: Any, value: Any) -> Any:
    """Type of the items of a list or mapping ``value``; ``Any`` if the type does not say."""
    found = []
    for member in members(annotation):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if not isinstance(origin, type) or not args:
            continue
        if isinstance(value, dict) and issubclass(origin, Mapping) and len(args) == 2:
            found.append(args[1])
        elif isinstance(value, list) and _is_listlike(origin):
            found += [arg for arg in args if arg is not Ellipsis]
    return _union(found) if found else Any


def convert(value: Any, annotation: Any) -> Any:
    """``value``, a scalar or nested list or mapping of scalars, as the declared type takes it.

    Text stays text where text is accepted; a number given where only text is accepted becomes the
    text that was written; text given where only a number is accepted is read by YAML 1.2.
    Classes and callables take no plain values, and are left out here.

    Raises:
        TypeError: If no alternative of the type takes the value.

    Example:
        >>> convert(1, float), convert("3", int | None), convert(read_scalar("010"), str)
        (1.0, 3, '010')
    """
    plain = [member for member in members(annotation) if _is_plain(member)]
    if any(member in (Any, object) for member in plain):
        return value
    if value is None and type(None) in plain:
        return None
    plain = [member for member in plain if member is not type(None)]
    if value is None or not plain:
        raise TypeError(value)
    declared = _union(plain)
    for attempt in (lambda item: item, _as_number, text_of, _as_whole):
        try:
            return _parse(_mapped(value, attempt), declared)
        except TypeError:
            continue
    raise TypeError(value)


def describe(annotation: Any) -> str:
    """A declared type in words.

    Example:
        >>> describe(int | None), describe(typing.Literal["a", "b"]), describe(list[float])
        ('a whole number or null', "one of 'a', 'b'", 'a list of a number')
    """
    choices = [
        choice
        for member in members(annotation)
        if typing.get_origin(member) is typing.Literal
        for choice in typing.get_args(member)
    ]
    others = [m for m in members(annotation) if typing.get_origin(m) is not typing.Literal]
    words = [_describe(member) for member in others]
    if choices:
        words.insert(0, f"one of {listed(map(repr, choices), 24)}")
    return " or ".join(dict.fromkeys(words))


def nearest_choice(value: Any, annotation: Any) -> str | None:
    """The nearest of the choices that a type lists, if it lists any."""
    choices: list[str] = []
    for member in members(annotation):
        if typing.get_origin(member) is typing.Literal:
            choices += [item for item in typing.get_args(member) if isinstance(item, str)]
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            choices += list(member.__members__)
        elif member is bool:
            choices += ["true", "false"]
    return nearest(value, choices) if isinstance(value, str) else None


def _describe(member: Any) -> str:
    if member in _NAMES:
        return _NAMES[member]
    origin, args = typing.get_origin(member), typing.get_args(member)
    if member is Callable or _origin(member) is Callable:
        return "a function, as a dotted path or a node with a _target_"
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return f"one of {listed(member.__members__)}"
    kind = origin if isinstance(origin, type) else member
    items = [arg for arg in args if arg is not Ellipsis]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return f"a mapping to {describe(items[-1])}" if len(items) == 2 else "a mapping"
    if kind is tuple and items and Ellipsis not in args:
        return f"a list of {len(items)}: {', '.join(describe(item) for item in items)}"
    if kind in _LISTS or (origin is not None and _is_listlike(kind)):
        return f"a list of {describe(items[0])}" if items else "a list"
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return "a path"
    name = getattr(kind, "__name__", str(kind))
    return f"a node whose _target_ makes a {name}"


def _origin(member: Any) -> Any:
    origin = typing.get_origin(member)
    return Callable if origin is typing.get_origin(Callable[[], None]) else origin


def _is_listlike(kind: Any) -> bool:
    is_iterable = isinstance(kind, type) and issubclass(kind, Iterable)
    return is_iterable and not issubclass(kind, Mapping)


def _union(parts: list[Any]) -> Any:
    return typing.Union[tuple(parts)]  # noqa: UP007 - of types known at run time only


def _is_plain(member: Any) -> bool:
    """Whether values of the type are written in YAML as they are."""
    if member in _SCALARS or member is Any or member in _LISTS or member is dict:
        return True
    origin, args = typing.get_origin(member), typing.get_args(member)
    if origin is typing.Literal:
        return True
    if isinstance(member, type) and origin is None:
        return issubclass(member, enum.Enum | PurePath)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return all(arg is Ellipsis or any(_is_plain(part) for part in members(arg)) for arg in args)
    return False


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value if value is None else change(value)


def _as_number(value: Any) -> Any:
    return read_scalar(value) if isinstance(value, str) else value


def _as_whole(value: Any) -> Any:
    """``1e3`` is a float by YAML's rules, also where a whole number is declared."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Text(str):
    """Text that jsonargparse leaves as it is.

    It reads values of type ``str`` by YAML 1.1, where ``off`` is false and ``1:30`` is ninety.
    """

    __slots__ = ()


def _parse(value: Any, declared: Any) -> Any:
    from jsonargparse import ArgumentParser  # 0.1 s, not needed by --help and --list

    parser = ArgumentParser(exit_on_error=False)  # a used one prefers the type it gave last
    parser.add_argument("--value", type=declared)
    try:
        parsed = parser.parse_object({"value": _mapped(value, _as_text)}).value
    except Exception as error:
        raise TypeError(value) from error
    return _plain(parsed)


def _as_text(value: Any) -> Any:
    return _Text(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_plain(item) for item in value)
    return str(value) if isinstance(value, _Text) else value
