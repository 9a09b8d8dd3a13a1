"""Check every node of a recipe against what it names; imports, but builds no model or data."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from toolkit.config.bind import Binder, Bound
from toolkit.config.collect import FaultCollector, Report
from toolkit.config.errors import RecipeError, one_line
from toolkit.config.merge import TARGET
from toolkit.config.metrics import KNOWN_METRICS, is_metric, logged_keys, nearest_metric
from toolkit.config.recipe import Recipe
from toolkit.config.schema import METRIC_ARGUMENTS, check_shape, named_in
from toolkit.config.suggest import listed
from toolkit.config.targets import find_target
from toolkit.config.yaml12 import Keys

__all__ = ["check"]

_SET_BY_THE_RUN = ("callbacks", "logger", "default_root_dir", "use_distributed_sampler")
"""Arguments of Lightning's Trainer that a recipe must not give."""


def check(recipe: Recipe, variants: Sequence[str] | None = None) -> None:
    """Check all nodes of the given variants, all by default, before any data is read.

    Checked are interpolations, dotted paths, names and types of arguments, arguments of Lightning's
    Trainer, and names of metrics. A class may check more in ``check_recipe(resolved, node)``, a
    static or class method that gets the whole configuration and its own node, and returns
    sentences such as ``"separation_epochs must be below trainer.max_epochs, 3, got 5."``; what
    stands before the first blank is taken as the argument if it is one. Callbacks and claims are
    built, and thrown away, for the values that only their constructors refuse.

    Raises:
        RecipeError: With every fault; those of some variants only say so.
    """
    names = recipe.select(variants)
    collector = FaultCollector(recipe.layers, {name: recipe.orders[name] for name in names})
    checker = _Checker(recipe)
    for name in names:
        report = collector.report(name)
        resolved = recipe.resolve_reporting(name, recipe.seeds[0], report)
        if not collector.faults:  # else told already, or due to what has been told
            check_shape(resolved, report)
        checker.check_run(resolved, report)
    for name in names:
        checker.check_named_metrics(collector.report(name))
    if collector.faults:
        raise RecipeError(collector.faults)


class _Checker:
    """Checks runs; a node that several variants share is looked at once."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.claims = recipe.claims
        self._keys: dict[str, None] = {}
        self._are_all = True
        self._seen: dict[tuple[Keys, str], tuple[list[Any], list[tuple[Keys, Any]]]] = {}

    def check_run(self, resolved: Mapping[str, Any], report: Report) -> None:
        targets: list[tuple[Keys, Any]] = []
        for section in ("data", "model"):
            targets += self._check_node(resolved.get(section), (section,), report)
        for section, nodes in (("callbacks", resolved.get("callbacks")), ("claims", self.claims)):
            for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
                targets += self._check_node(node, (section, str(name)), report)
        self._check_trainer(resolved.get("trainer"), report)
        self._check_monitor(resolved, [target for _, target in targets], report)
        for path, target in targets:
            if path[0] != "claims":
                _call_hook(target, path, resolved, report)

    def check_named_metrics(self, report: Report) -> None:
        """Check the metrics of claims and report against the keys of all runs looked at."""
        if self._are_all:
            parts = {"claims": self.claims, "report": self.recipe.report}
            for path, name in named_in(parts, (), METRIC_ARGUMENTS):
                _check_metric(name, path, self._keys, report)

    def _check_node(self, node: Any, path: Keys, report: Report) -> list[tuple[Keys, Any]]:
        """Report what is wrong with a node; paths and targets of it and of the nodes in it."""
        if not isinstance(node, Mapping) or TARGET not in node:
            return []
        place = (path, json.dumps(node, default=str, sort_keys=True))
        if place not in self._seen:
            faults: list[Any] = []
            binder = Binder(lambda *fault: faults.append(fault), self.recipe.packages)
            bound = binder.bind(node, Any, path)
            if not faults and isinstance(bound, Bound) and path[0] in ("callbacks", "claims"):
                _try_to_build(bound, faults)
            self._seen[place] = (faults, binder.targets)
        faults, targets = self._seen[place]
        for fault in faults:
            report(*fault)
        return targets

    def _check_trainer(self, trainer: Any, report: Report) -> None:
        given = dict(trainer) if isinstance(trainer, Mapping) else {}
        for key in _SET_BY_THE_RUN:
            if key in given:
                more = "; write it at the top level" if key == "callbacks" else ""
                report(("trainer", key), f"must be left out: the run sets it{more}.")
                del given[key]
        target = find_target("lightning.Trainer")
        Binder(report, self.recipe.packages).arguments(target, given, ("trainer",))

    def _check_monitor(
        self, resolved: Mapping[str, Any], targets: Sequence[Any], report: Report
    ) -> None:
        keys, are_all = logged_keys(targets)
        self._keys.update(dict.fromkeys(keys))
        self._are_all &= are_all
        checkpoint = resolved.get("checkpoint")
        monitor = checkpoint.get("monitor") if isinstance(checkpoint, Mapping) else None
        if are_all and isinstance(monitor, str) and not monitor.startswith("test/"):
            live = [key for key in keys if key.startswith(("train/", "val/"))]
            _check_metric(monitor, ("checkpoint", "monitor"), live, report)


def _check_metric(name: str, path: Keys, keys: Collection[str], report: Report) -> None:
    if not is_metric(name, keys):
        known = listed([key for key in KNOWN_METRICS if key in keys])
        message = f"must be a metric that the run records, such as {known}; got {name!r}."
        report(path, message, nearest_metric(name, keys))


def _try_to_build(bound: Bound, faults: list[Any]) -> None:
    try:
        bound.build()
    except RecipeError as error:
        faults += [(tuple(f.key.split(".")), f.message, f.suggestion) for f in error.faults]


def _call_hook(target: Any, path: Keys, resolved: Mapping[str, Any], report: Report) -> None:
    """Report what a class itself has to say about its node in this recipe."""
    hook = getattr(target, "check_recipe", None)
    if hook is None:
        return
    node: Any = resolved
    for key in path:
        node = node[int(key)] if isinstance(node, list) else node.get(key)
    try:
        sentences = list(hook(resolved, node))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        sentences = [f"must suit {target.__name__}, whose check raised {one_line(error)}."]
    for sentence in sentences:
        word, _, rest = sentence.partition(" ")
        if word in node and rest:
            report((*path, word), rest)
        else:
            report(path, sentence)
