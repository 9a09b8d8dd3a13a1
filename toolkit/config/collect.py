"""Faults of all variants together: each said once, with the file and line it comes from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from toolkit.config.errors import Fault
from toolkit.config.merge import Layer
from toolkit.config.yaml12 import Keys

__all__ = ["FaultCollector", "Report", "locate"]

Report = Callable[..., None]
"""Called with a path of keys, a message, and maybe a suggestion."""


def locate(path: Keys, layers: Sequence[Layer], variants: Sequence[str]) -> tuple[str, int | None]:
    """File and line that say the value at ``path``, or what is nearest above it.

    Args:
        path: Keys from the top of a recipe.
        layers: Files from the first extended one to the recipe itself, then the command line.
        variants: The variants laid over the files, in their order.
    """
    for end in range(len(path), 0, -1):
        places = [path[:end]]
        places += [("variants", name, *path[:end]) for name in variants]
        if layers[-1].is_command_line and path[:end] in layers[-1].lines:
            return layers[-1].file, None
        for place in [*reversed(places[1:]), places[0]]:
            for layer in reversed(layers):
                if place in layer.lines:
                    return layer.file, layer.lines[place] or None
    return layers[0 if layers[-1].is_command_line else -1].file, None


class FaultCollector:
    """Collects faults per variant and tells those of some variants from those of all.

    Args:
        layers: As for :func:`locate`.
        orders: Each variant that is looked at, with the variants laid over one another for it.
    """

    def __init__(self, layers: Sequence[Layer], orders: Mapping[str, Sequence[str]]) -> None:
        self._layers = layers
        self._orders = orders
        self._found: dict[Fault, list[str]] = {}
        self._suggestions: dict[Fault, str] = {}

    def report(self, variant: str) -> Report:
        """A function that takes the faults of one variant."""
        order = self._orders[variant]

        def add(path: Keys, message: str, suggestion: str | None = None) -> None:
            file, line = locate(path, self._layers, order)
            fault = Fault(".".join(path), " ".join(message.split()), file=file, line=line)
            variants = self._found.setdefault(fault, [])
            if variant not in variants:
                variants.append(variant)
            if suggestion is not None:  # other variants may have nothing to suggest
                self._suggestions.setdefault(fault, suggestion)

        return add

    @property
    def faults(self) -> list[Fault]:
        """What was found, in the order of the finds."""
        return [
            replace(
                fault,
                suggestion=self._suggestions.get(fault),
                variants=() if len(variants) == len(self._orders) else tuple(variants),
            )
            for fault, variants in self._found.items()
        ]
