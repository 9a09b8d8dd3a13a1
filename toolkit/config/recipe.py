"""A recipe as loaded: its own keys, and the configuration of each of its variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.config.collect import FaultCollector, Report
from toolkit.config.errors import Fault, RecipeError
from toolkit.config.interpolate import has_interpolation, interpolate
from toolkit.config.merge import TARGET, Layer
from toolkit.config.seeds import read_seeds
from toolkit.suggest import listed, nearest

__all__ = ["Recipe"]

_ASIDE = ("variants", "claims", "report", "seeds", "extends")
"""Keys about the study, not about one run."""

_SAM = ("toolkit.optim.SAM", "toolkit.optim.ASAM")
_SAM_CALLBACK = "callbacks.SharpnessAware"


@dataclass(frozen=True, repr=False)
class Recipe:
    """A loaded recipe; made by :func:`toolkit.config.load_recipe`.

    Args:
        name: File name without its ending.
        path: The file.
        tree: Merged values of the file, of what it extends, and of the command line.
        trees: Merged values of each variant, before interpolation.
        layers: What the values come from, first to last.
        orders: For each variant, the variants laid over one another, itself last.
    """

    name: str
    path: Path
    tree: Mapping[str, Any]
    trees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layers: Sequence[Layer] = ()
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, path={str(self.path)!r})"

    @property
    def title(self) -> str:
        """One line on what is shown; the name if there is none."""
        return str(self.tree.get("title") or self.name)

    @property
    def paper(self) -> str:
        """The paper it is about; empty if none is named."""
        return str(self.tree.get("paper") or "")

    @property
    def description(self) -> str:
        """What it trains and shows; empty if it does not say."""
        return str(self.tree.get("description") or "")

    @property
    def minutes(self) -> float | None:
        """How long it takes, in minutes; ``None`` if it does not say."""
        minutes = self.tree.get("minutes")
        return None if minutes is None else float(minutes)

    @property
    def device(self) -> str:
        """``cpu`` or ``gpu``: what it is meant for."""
        return str(self.tree.get("device") or "cpu")

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the study; ``(0,)`` if none are given."""
        default = self.tree.get("seed", 0)
        return read_seeds(self.tree.get("seeds", default))

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants; ``("default",)`` if the recipe has none."""
        return tuple(self.trees)

    @property
    def claims(self) -> dict[str, Any]:
        """The claims' nodes by name."""
        return self._part("claims")

    @property
    def report(self) -> dict[str, Any]:
        """What the recipe says about its report."""
        return self._part("report")

    @property
    def packages(self) -> tuple[str, ...]:
        """Root packages that targets may lie in besides the usual ones."""
        return tuple(self.tree.get("packages") or ())

    def select(self, variants: Sequence[str] | None = None) -> tuple[str, ...]:
        """The given variants in the recipe's order; all for ``None``.

        Raises:
            RecipeError: If a name is no variant of the recipe; says which one is near.
        """
        wanted = self.variants if variants is None else tuple(variants)
        message = f"must be a variant of {self.name}, one of {listed(self.variants, 24)}; got "
        faults = [
            Fault("variants", f"{message}{name!r}.", nearest(name, self.variants))
            for name in wanted
            if name not in self.variants
        ]
        if faults or not wanted:
            raise RecipeError(faults or [Fault("variants", f"{message}none.")])
        return tuple(name for name in self.variants if name in wanted)

    def resolve(self, variant: str, seed: int) -> dict[str, Any]:
        """The configuration of one run: plain values, overridden, interpolated.

        Where a node below ``model`` is SAM or ASAM and no callback is ``SharpnessAware``, that
        callback is added: an optimiser alone cannot reach the module it perturbs.

        Args:
            variant: Name of the variant.
            seed: Seed of the run; what ``${seed}`` stands for.

        Raises:
            RecipeError: If there is no such variant, or an interpolation stands for nothing.
        """
        self.select([variant])
        collector = FaultCollector(self.layers, {variant: self.orders[variant]})
        resolved = self.resolve_reporting(variant, seed, collector.report(variant))
        if collector.faults:
            raise RecipeError(collector.faults)
        return resolved

    def resolve_reporting(self, variant: str, seed: int, report: Report) -> dict[str, Any]:
        """As :meth:`resolve`, but faults are reported, and their values ``None``."""
        tree = {key: value for key, value in self.trees[variant].items() if key not in _ASIDE}
        tree["seed"] = seed
        resolved, problems = interpolate(tree)
        for problem in problems:
            report(*problem)
        for key, default in _defaults().items():
            if resolved.get(key) is None:
                resolved[key] = default
        _add_sharpness_aware(resolved)
        return resolved

    def _part(self, key: str) -> dict[str, Any]:
        part = self.tree.get(key) or {}
        if not has_interpolation(part):
            return dict(part)
        resolved, _ = interpolate({**self.tree, "seed": self.seeds[0]})
        return dict(resolved[key])


def _defaults() -> dict[str, Any]:
    return {"trainer": {}, "callbacks": {}, "threads": 1, "nonfinite": "stop"}


def _add_sharpness_aware(resolved: dict[str, Any]) -> None:
    callbacks = resolved["callbacks"]
    there = any(
        isinstance(node, Mapping) and node.get(TARGET) == _SAM_CALLBACK
        for node in callbacks.values()
    )
    if not there and _has_target(resolved.get("model"), _SAM):
        name = "sharpness_aware"
        while name in callbacks:
            name += "_"
        callbacks[name] = {TARGET: _SAM_CALLBACK}


def _has_target(value: Any, targets: tuple[str, ...]) -> bool:
    if isinstance(value, Mapping):
        found = value.get(TARGET) in targets
        return found or any(_has_target(item, targets) for item in value.values())
    return isinstance(value, list) and any(_has_target(item, targets) for item in value)
