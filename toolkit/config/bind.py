"""Bind the arguments of a node to the signature of its target, faults collected; then build."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from toolkit.config.annotations import convert, describe, item_types, nearest_choice
from toolkit.config.collect import Report
from toolkit.config.errors import Fault, RecipeError, one_line
from toolkit.config.fits import (
    fits,
    fits_container,
    makes_factory,
    num_passed,
    passed_slots,
    takes_class,
    takes_objects,
)
from toolkit.config.merge import TARGET
from toolkit.config.targets import Signature, TargetError, find_target, signature_of
from toolkit.config.yaml12 import Keys
from toolkit.suggest import listed, nearest

__all__ = ["Binder", "Bound", "Factory"]


@dataclass(frozen=True)
class Bound:
    """A target with converted arguments, ready to be called.

    Args:
        target: Class or function.
        arguments: By name; nodes among them are bound too.
        signature: What the target takes.
        spread: Values of its ``*args``.
        is_factory: Whether :meth:`build` makes a function that calls the target.
        dropped: First arguments that do not take what a factory is called with, because the
            recipe gives them, or because their declared type is another.
        path: Where the node lies in the recipe.
    """

    target: Any
    arguments: Mapping[str, Any]
    signature: Signature
    spread: Sequence[Any] = ()
    is_factory: bool = False
    dropped: frozenset[str] = frozenset()
    path: Keys = ()

    def build(self, **extra: Any) -> Any:
        """The object, or the factory.

        Args:
            extra: More arguments, taken as they are.

        Raises:
            RecipeError: If the target refuses a value, or raises anything else.
        """
        if self.is_factory:
            is_plain = not (self.arguments or self.spread or self.dropped)
            return self.target if is_plain else Factory(self)
        return self.call((), extra)

    def call(self, args: Sequence[Any], extra: Mapping[str, Any]) -> Any:
        """Call the target; ``args`` go to its first arguments, apart from those ``dropped``."""
        slots = self.signature.slots
        named = dict(zip(slots, args, strict=False))
        named = {name: arg for name, arg in named.items() if name not in self.dropped}
        try:
            own = {name: _built(value) for name, value in self.arguments.items()}
            rest = [*args[len(slots) :], *(_built(item) for item in self.spread)]
            named = {**named, **own, **extra}
            first = [*itertools.takewhile(named.__contains__, slots)] if rest else []
            return self.target(*(named.pop(slot) for slot in first), *rest, **named)
        except (RecipeError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if type(error).__name__ == "OutOfMemoryError":  # torch's: no fault of the recipe
                raise
            word, _, more = str(error).partition(" ")
            path, message = (*self.path, word), more
            if word not in self.arguments or not more:
                path, message = self.path, f"must suit {_name(self.target)}: {one_line(error)}"
            raise RecipeError([Fault(".".join(path), " ".join(message.split()))]) from error


class Factory:
    """Calls a target with the arguments of a recipe, and those it is called with first.

    An argument that the recipe gives wins over one given by position, and a value goes to no
    argument that is declared with another type: called with an optimizer and a number of updates,
    ``CosineAnnealingLR`` takes the number as its ``T_max``, unless the recipe gives one, while
    ``ExponentialLR`` does not take it as its ``gamma``. Every call builds the nodes among the
    arguments anew, so two calls share nothing.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound

    def __call__(self, *args: Any, **extra: Any) -> Any:
        """What the target returns."""
        return self.bound.call(args, extra)

    def __repr__(self) -> str:
        name = getattr(self.bound.target, "__qualname__", repr(self.bound.target))
        given = ", ".join(f"{key}={value!r}" for key, value in self.bound.arguments.items())
        return f"{name}(..., {given})"


class Binder:
    """Binds nodes and reports what does not fit; nothing is built.

    Args:
        report: Takes a path of keys, a message, and maybe a suggestion.
        packages: Roots that targets may lie in besides the usual ones.
        supplied: For the path of a node, arguments that are given when it is built.
    """

    def __init__(
        self,
        report: Report,
        packages: Collection[str] = (),
        supplied: Mapping[Keys, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self.report = report
        self.packages = packages
        self.supplied = supplied
        self.targets: list[tuple[Keys, Any]] = []

    def bind(self, value: Any, annotation: Any, path: Keys) -> Any:
        """``value`` as the declared type takes it; :class:`Bound` in place of nodes."""
        if isinstance(value, Mapping) and TARGET in value:
            return self._node(value, annotation, path)
        if isinstance(value, str) and "." in value and takes_objects(annotation):
            try:
                return convert(value, annotation)  # such as str | Callable
            except TypeError:
                return self._node({TARGET: value}, annotation, path, is_text=True)
        if isinstance(value, list | Mapping) and (_has_node(value) or takes_objects(annotation)):
            items = item_types(annotation, value)
            if fits_container(value, annotation):
                if isinstance(value, list):
                    return [self.bind(v, items, (*path, str(i))) for i, v in enumerate(value)]
                return {k: self.bind(v, items, (*path, str(k))) for k, v in value.items()}
        try:
            return convert(value, annotation)
        except TypeError:
            message = f"must be {describe(annotation)}, got {_shown(value)}."
            if isinstance(value, str) and "." in value and "_target_" in message:
                message += f" Write {{{TARGET}: {value}}}."
            self.report(path, message, nearest_choice(value, annotation))
            return None

    def arguments(self, target: Any, given: Mapping[Any, Any], path: Keys) -> dict[str, Any]:
        """Arguments bound to a target's signature; unknown names are reported."""
        signature = signature_of(target)
        result: dict[str, Any] = {}
        for key, value in given.items():
            name, here = str(key), (*path, str(key))
            known = name in signature.arguments
            if not known and not signature.is_open and name != signature.spread:
                near = nearest(name, signature.arguments) or _deeper(name, given)
                accepted = listed(signature.arguments, 12 if near else 60)
                message = f"is no argument of {_name(target)}. Accepted: {accepted}."
                self.report(here, message, near)
            if value is None and name in signature.optional_none:
                result[name] = None
            else:
                result[name] = self.bind(value, signature.arguments.get(name, Any), here)
        return result

    def _node(
        self, node: Mapping[Any, Any], annotation: Any, path: Keys, *, is_text: bool = False
    ) -> Any:
        given = {key: value for key, value in node.items() if key != TARGET}
        try:
            target = find_target(node[TARGET], self.packages)
        except TargetError as error:
            self.report(path if is_text else (*path, TARGET), str(error), error.suggestion)
            for key, value in given.items():
                if _has_node(value):
                    self.bind(value, Any, (*path, str(key)))
            return None
        self.targets.append((path, target))
        if is_text and takes_class(annotation, target):
            return target
        signature = signature_of(target)
        is_factory = makes_factory(signature, given, annotation)
        if not is_factory and (is_text or not fits(signature.result, annotation)):
            self.report(path, f"must be {describe(annotation)}, got {node[TARGET]}.")
            return None
        arguments = self.arguments(target, given, path)
        spread = arguments.pop(signature.spread, ()) if signature.spread else ()
        if is_factory:
            self._report_too_few_slots(target, annotation, path)
        passed = passed_slots(annotation, signature) if is_factory else []
        dropped = frozenset(given) | {slot for slot, takes in passed if not takes}
        filled = {*given, *(slot for slot, takes in passed if takes)}
        self._report_missing(target, filled, path)
        return Bound(target, arguments, signature, spread or (), is_factory, dropped, path)

    def _report_too_few_slots(self, target: Any, annotation: Any, path: Keys) -> None:
        signature, number = signature_of(target), num_passed(annotation)
        if number > len(signature.slots) and not (signature.spread or signature.is_open):
            message = f"must take {number} arguments, got {_name(target)}, which takes "
            self.report(path, f"{message}{listed(signature.slots)}.")

    def _report_missing(self, target: Any, filled: Collection[str], path: Keys) -> None:
        """Report arguments that neither the recipe nor the caller of a factory gives."""
        signature = signature_of(target)
        supplied = self.supplied.get(path, ())
        missing = [n for n in signature.required if n not in filled and n not in supplied]
        if missing:
            hints = [f"{name} ({describe(signature.arguments[name])})" for name in missing]
            self.report(path, f"must give {_name(target)} its argument {listed(hints)}.")


def _deeper(name: str, given: Mapping[Any, Any]) -> str | None:
    """The path of an argument that a node among the arguments has, such as ``base.lr``."""
    nodes = {key: value for key, value in given.items() if _has_node(value)}
    keys = (key for key, node in nodes.items() if isinstance(node, Mapping) and name in node)
    return next((f"{key}.{name}" for key in keys), None)


def _built(value: Any) -> Any:
    if isinstance(value, Bound):
        return value.build()
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return [_built(item) for item in value] if isinstance(value, list) else value


def _has_node(value: Any) -> bool:
    if isinstance(value, Mapping):
        return TARGET in value or any(_has_node(item) for item in value.values())
    return isinstance(value, list) and any(_has_node(item) for item in value)


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or getattr(target, "__name__", target))


def _shown(value: Any, limit: int = 80) -> str:
    text = repr(value) if value is not None else "null"
    return text if len(text) <= limit else text[: limit - 1] + "…"
