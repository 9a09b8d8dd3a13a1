"""From the dotted path of a ``_target_`` to the class or function, and to its signature."""

import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from toolkit.config.errors import one_line
from toolkit.config.schema import ROOTS
from toolkit.suggest import listed, nearest

__all__ = ["Signature", "TargetError", "find_target", "signature_of"]

_EMPTY = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class TargetError(ValueError):
    """A dotted path that leads to nothing a recipe may use.

    Args:
        message: What is wrong.
        suggestion: The path that was probably meant.
    """

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


@dataclass(frozen=True)
class Signature:
    """What a target takes and makes.

    Args:
        arguments: Declared type of each argument that can be given by name; ``Any`` if undeclared.
        required: Arguments without a default.
        optional_none: Arguments whose default is ``None``.
        slots: Arguments that can be given by position, in order.
        spread: Name of the ``*args`` argument, or ``None``.
        is_open: Whether it takes names that are not listed.
        result: Type of what a call returns; ``None`` if unknown.
    """

    arguments: Mapping[str, Any]
    required: tuple[str, ...] = ()
    optional_none: frozenset[str] = frozenset()
    slots: tuple[str, ...] = ()
    spread: str | None = None
    is_open: bool = False
    result: Any = None


def find_target(path: str, packages: Collection[str] = ()) -> Any:
    """The class or function at a dotted path, imported if need be.

    Args:
        path: Dotted path of a public name.
        packages: Roots it may lie in besides :data:`toolkit.config.schema.ROOTS`.

    Raises:
        TargetError: If the path leaves the allowed packages, leads nowhere, leads to something
            that cannot be called, or if an import on the way fails.
    """
    roots = [*ROOTS, *packages]
    root, *names = path.split(".")
    if root not in roots:
        near = nearest(root, roots)
        message = f"must lie in one of {listed(roots)}, got {path!r}."
        raise TargetError(message, ".".join((near, *names)) if near else None)
    here: Any = _import(root, path)
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        found = _child(here, name, path)
        if found is None or (is_last and isinstance(found, ModuleType)):
            near = nearest(name, _public_names(here, callables_only=is_last))
            whole = ".".join((root, *names[:position], near or "", *names[position + 1 :]))
            what = "is a module" if found is not None else "does not exist"
            where = ".".join((root, *names[: position + 1]))
            raise TargetError(f"must name a class or function; {where} {what}.", near and whole)
        here = found
        _check_home(here, path, roots)
    if not callable(here):
        raise TargetError(f"must name a class or function, got {path}, a {type(here).__name__}.")
    return here


@cache
def signature_of(target: Any) -> Signature:
    """Arguments of a class, function or method; open where it has no signature in Python."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (ValueError, TypeError):
        result = target if isinstance(target, type) else None
        return Signature({}, is_open=True, result=result)
    hints = _hints(target)
    arguments = {p.name: hints.get(p.name, Any) for p in parameters if p.kind in _NAMED}
    is_open = False
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        more = _passed_on(target)
        is_open = not more.keys() - arguments.keys()
        arguments = {**more, **arguments}
    return Signature(
        arguments=arguments,
        required=tuple(p.name for p in parameters if p.default is _EMPTY and p.kind in _NAMED),
        optional_none=frozenset(p.name for p in parameters if p.default is None),
        slots=tuple(p.name for p in parameters if p.kind in _POSITIONAL),
        spread=next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None),
        is_open=is_open,
        result=target if isinstance(target, type) else hints.get("return"),
    )


def _import(name: str, path: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise TargetError(f"needs the package {name}, which is not installed.") from error
        raise TargetError(f"must be importable; {path} raised {one_line(error)}.") from error
    except Exception as error:  # whatever a module does when imported is a fault of the recipe
        raise TargetError(f"must be importable; {path} raised {one_line(error)}.") from error


def _child(parent: Any, name: str, path: str) -> Any:
    """Attribute or submodule; ``None`` if there is none, or if it is private."""
    if name.startswith("_") or not name:
        return None
    found = getattr(parent, name, None)
    if found is None and isinstance(parent, ModuleType) and hasattr(parent, "__path__"):
        whole = f"{parent.__name__}.{name}"
        if whole in sys.modules or find_spec(whole) is not None:
            return _import(whole, path)
    return found


def _check_home(found: Any, path: str, roots: Collection[str]) -> None:
    """Refuse what a module has merely imported from elsewhere, such as ``torch.os``."""
    home = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    root = home.partition(".")[0] if isinstance(home, str) else None
    if root is not None and root not in (*roots, "builtins"):
        raise TargetError(f"must lie in one of {listed(roots)}; {path} leads to {home}.")


def _public_names(parent: Any, *, callables_only: bool) -> list[str]:
    """Names to suggest below a module or class, in the order of ``__all__`` if there is one."""
    names = list(getattr(parent, "__all__", None) or [])
    names += [name for name in dir(parent) if not name.startswith("_") and name not in names]
    if callables_only:
        found = {name: getattr(parent, name, None) for name in names}
        return [n for n, v in found.items() if callable(v) and not isinstance(v, ModuleType)]
    submodules = pkgutil.iter_modules(getattr(parent, "__path__", []))
    names = [n for n in names if isinstance(getattr(parent, n, None), ModuleType | type)]
    return [*names, *(m.name for m in submodules if not m.name.startswith("_"))]


def _hints(target: Any) -> dict[str, Any]:
    """Declared types by argument name; what cannot be evaluated is left out."""
    function = _function(target)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are code, and may raise anything
        hints = {}
        for name, hint in getattr(function, "__annotations__", {}).items():
            value = _evaluated(hint, inspect.unwrap(function))
            if value is not None:
                hints[name] = value
    if isinstance(target, type):
        hints.pop("return", None)
    return {name: Any if hint is type(None) and name != "return" else hint
            for name, hint in hints.items()}  # fmt: skip


def _evaluated(hint: Any, function: Any) -> Any:
    if not isinstance(hint, str):
        return hint
    holder: Callable[..., None] = lambda: None  # noqa: E731 - carries one annotation
    holder.__annotations__ = {"hint": hint}
    try:
        names = getattr(function, "__globals__", {})
        return typing.get_type_hints(holder, globalns=names).get("hint")
    except Exception:  # noqa: BLE001 - such as a name imported for type checkers only
        return None


def _function(target: Any) -> Any:
    if not isinstance(target, type):
        return target
    initialize: Any = inspect.getattr_static(target, "__init__")
    return target.__new__ if initialize is object.__init__ else initialize


def _passed_on(target: Any) -> dict[str, Any]:
    """Arguments that ``**kwargs`` leads to, as jsonargparse reads them from the source.

    Those of base classes have their declared types, others ``Any``.
    """
    from jsonargparse import ArgumentParser  # 0.1 s, which --help and --list do without

    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    try:
        names = [name.removeprefix("node.") for name in add(target, "node", fail_untyped=False)]
    except Exception:  # noqa: BLE001 - it reads source code, and gives up in many ways
        return {}
    typed: dict[str, Any] = {}
    for base in reversed(target.__mro__[1:]) if isinstance(target, type) else ():
        if "__init__" in vars(base) and base is not object:
            typed.update(_hints(base))
    return {name: typed.get(name, Any) for name in names}
