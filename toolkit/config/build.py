"""Build the object that a node of a recipe describes."""

from collections.abc import Collection, Mapping
from typing import Any

from toolkit.config.bind import Binder
from toolkit.config.errors import Fault, RecipeError
from toolkit.config.merge import TARGET
from toolkit.config.yaml12 import Keys

__all__ = ["build", "instantiate"]


def build(resolved: Mapping[str, Any], key: str) -> Any:
    """The object at a dotted key of a run's configuration, such as ``model``.

    Raises:
        RecipeError: As :func:`instantiate`; targets may lie in the recipe's ``packages`` too.
    """
    node: Any = resolved
    for part in key.split("."):
        node = node[part]
    return instantiate(node, resolved.get("packages") or (), key)


def instantiate(
    node: Mapping[str, Any], packages: Collection[str] = (), key: str = "", /, **extra: Any
) -> Any:
    """The object a ``_target_`` node describes; nodes among its arguments are built first.

    Values are converted to the declared types by jsonargparse. Where a ``Callable`` is declared,
    such as an optimizer factory ``Callable[[Iterable[nn.Parameter]], Optimizer]``, the node
    becomes a function that makes a new object at every call, and a plain dotted path the function
    itself.

    Args:
        node: Mapping with ``_target_``, the dotted path of a class, class method or function, and
            its arguments, interpolated.
        packages: Roots that targets may lie in besides the usual ones; a recipe's ``packages``.
        key: Where the node lies in the recipe, for messages; for example ``model``.
        extra: Arguments that are objects already; they are passed on as they are.

    Raises:
        RecipeError: With every fault of the node, or with what a target raised; running out of
            memory is left as it is.

    Example:
        >>> instantiate({"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2})
        Linear(in_features=3, out_features=2, bias=True)
    """
    faults: list[Fault] = []

    def report(path: Keys, message: str, suggestion: str | None = None) -> None:
        faults.append(Fault(".".join(path), message, suggestion))

    if not isinstance(node, Mapping) or TARGET not in node:
        raise RecipeError([Fault(key, f"must be a node with a {TARGET}, got {node!r}.")])
    path = tuple(key.split(".")) if key else ()
    bound = Binder(report, packages, {path: extra}).bind(node, Any, path)
    if faults:
        raise RecipeError(faults)
    return bound.build(**extra)
