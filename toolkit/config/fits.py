"""What fits where: targets and declared types, and whether a node stands for a factory."""

import typing
from collections.abc import Callable, Collection
from typing import Any

from toolkit.config.annotations import callables, classes, members
from toolkit.config.targets import Signature

__all__ = [
    "fits",
    "fits_container",
    "makes_factory",
    "num_passed",
    "passed_slots",
    "takes_class",
    "takes_objects",
]


def makes_factory(signature: Signature, given: Collection[Any], annotation: Any) -> bool:
    """Whether a target stands for a function to be called later, not for what it makes now.

    It does where a ``Callable`` is declared, and a call of the target makes what that callable is
    to return; or, if types do not tell, where arguments are missing that the caller gives, or what
    it makes cannot be called.
    """
    declared = callables(annotation)
    if not declared:
        return False
    made = classes(signature.result) if signature.result is not None else []
    if any(_is_subclass(kind, wanted) for kind in made for wanted in classes(annotation)):
        return False
    returned = classes(_returned(declared[0]))
    if made and returned:
        return any(_is_subclass(kind, wanted) for kind in made for wanted in returned)
    if any(name not in given for name in signature.required):
        return True
    return not _makes_callables(made)


def _returned(declared: Any) -> Any:
    args = typing.get_args(declared)
    return args[1] if len(args) == 2 else Any


def num_passed(annotation: Any) -> int:
    """Number of arguments that a declared callable is called with; 0 if it does not say."""
    args = typing.get_args(callables(annotation)[0])
    return len(args[0]) if args and isinstance(args[0], list) else 0


def passed_slots(annotation: Any, signature: Signature) -> list[tuple[str, bool]]:
    """The first arguments of a target, and whether they take what the factory is called with."""
    args = typing.get_args(callables(annotation)[0])
    if not args or not isinstance(args[0], list):  # a Callable that does not say
        return [(slot, True) for slot in signature.slots]
    pairs = zip(signature.slots, args[0], strict=False)
    return [(slot, _matches(given, signature.arguments.get(slot, Any))) for slot, given in pairs]


def _matches(given: Any, declared: Any) -> bool:
    if any(member in (Any, object) for member in (*members(given), *members(declared))):
        return True
    if callables(given) and callables(declared):
        return True
    return any(
        _is_subclass(one, other) or _is_subclass(other, one)
        for one in classes(given)
        for other in classes(declared)
        if (one, other) != (int, float)
    )


_CALLABLE: Any = Callable


def fits(result: Any, annotation: Any) -> bool:
    """Whether what a call returns, as far as declared, may be given where a type is declared."""
    if any(member in (Any, object) for member in members(annotation)):
        return True
    made = classes(result) if result is not None else []
    if not made or Any in members(result):
        return True
    if callables(annotation) and _makes_callables(made):
        return True
    return any(_is_subclass(kind, wanted) for kind in made for wanted in classes(annotation))


def _makes_callables(made: list[type]) -> bool:
    return any(issubclass(kind, _CALLABLE) for kind in made)


def _is_subclass(kind: type, wanted: type) -> bool:
    wanted = getattr(wanted, "array_type", wanted)  # jaxtyping's Float[Tensor, "..."]
    kind = getattr(kind, "array_type", kind)
    if wanted is float and kind is int:
        return True
    try:
        return issubclass(kind, wanted)
    except TypeError:  # a protocol with data members, a typed dict
        return True


def takes_class(annotation: Any, target: Any) -> bool:
    """Whether a class itself is declared, as ``type[...]`` does, and the target is one."""
    kinds = [m for m in members(annotation) if m is type or typing.get_origin(m) is type]
    return bool(kinds) and isinstance(target, type)


def takes_objects(annotation: Any) -> bool:
    """Whether functions or classes, or lists or mappings of them, are declared."""
    for member in members(annotation):
        origin, args = typing.get_origin(member), typing.get_args(member)
        if callables(member) or member is type or origin is type:
            return True
        if origin is not None and any(takes_objects(a) for a in args if not isinstance(a, list)):
            return True
    return False


def fits_container(value: Any, annotation: Any) -> bool:
    """Whether a list or mapping, whatever is in it, may be given where a type is declared."""
    kind = list if isinstance(value, list) else dict
    for member in members(annotation):
        origin = typing.get_origin(member) or member
        if member in (Any, object) or (isinstance(origin, type) and _is_subclass(kind, origin)):
            return True
        if kind is list and origin in (tuple, set, frozenset):
            return True
    return False
