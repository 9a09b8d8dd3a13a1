"""Check every node of a recipe against what it names; imports, but builds no model or data."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.config.bind import Binder, Bound
from toolkit.config.collect import FaultCollector, Report
from toolkit.config.errors import RecipeError, one_line
from toolkit.config.merge import TARGET
from toolkit.config.metrics import KNOWN_METRICS, is_metric, logged_keys, nearest_metric
from toolkit.config.recipe import Recipe
from toolkit.config.schema import METRIC_ARGUMENTS, check_shape, named_in
from toolkit.config.targets import find_target
from toolkit.config.trainer import check_trainer_values, settled
from toolkit.config.yaml12 import Keys
from toolkit.suggest import listed

__all__ = ["check"]

_Said = tuple[Keys, str, str | None]


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
        unknown: list[_Said] = []
        resolved = recipe.resolve_reporting(name, recipe.seeds[0], _collecting(unknown))
        for said in unknown:
            report(*said)
        report = _leaving_out(report, [path for path, _, _ in unknown])
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
        self._seen: dict[tuple[Keys, str], _Looked] = {}

    def check_run(self, resolved: Mapping[str, Any], report: Report) -> None:
        """Report what is wrong with one run."""
        nodes: dict[Keys, Any] = {
            (section,): resolved.get(section) for section in ("data", "model")
        }
        for section, group in (("callbacks", resolved.get("callbacks")), ("claims", self.claims)):
            if isinstance(group, Mapping):
                nodes |= {(section, str(name)): node for name, node in group.items()}
        looked = [self._look(node, path) for path, node in nodes.items()]
        for one in looked:
            told = [*one.faults]
            if not told and one.path[0] != "claims":
                told = [fault for at in one.targets for fault in _ask(*at, resolved)]
            if not told and one.path[0] in ("callbacks", "claims"):
                told = one.trial()
            for fault in told:
                report(*fault)
        self._check_trainer(resolved.get("trainer"), report)
        check_trainer_values(resolved, report)
        targets = [target for one in looked for _, target in one.targets]
        self._check_monitor(resolved, targets, report)

    def check_named_metrics(self, report: Report) -> None:
        """Check the metrics of claims and report against the keys of all runs looked at."""
        if self._are_all:
            parts = {"claims": self.claims, "report": self.recipe.report}
            for path, name in named_in(parts, (), METRIC_ARGUMENTS):
                _check_metric(name, path, self._keys, report)

    def _look(self, node: Any, path: Keys) -> "_Looked":
        place = (path, repr(node))
        if place not in self._seen:
            faults: list[_Said] = []
            binder = Binder(_collecting(faults), self.recipe.packages)
            is_node = isinstance(node, Mapping) and TARGET in node
            bound = binder.bind(node, Any, path) if is_node else None
            self._seen[place] = _Looked(path, bound, faults, binder.targets)
        return self._seen[place]

    def _check_trainer(self, trainer: Any, report: Report) -> None:
        target = find_target("lightning.Trainer")
        given = settled(trainer, report)
        Binder(report, self.recipe.packages).arguments(target, given, ("trainer",))

    def _check_monitor(
        self, resolved: Mapping[str, Any], targets: Sequence[Any], report: Report
    ) -> None:
        keys, are_all = logged_keys(targets)
        self._keys.update(dict.fromkeys(keys))
        self._are_all &= are_all
        if not are_all:
            return
        live = [key for key in keys if key.startswith(("train/", "val/"))]
        parts = {key: resolved.get(key) for key in ("checkpoint", "callbacks")}
        for path, monitor in named_in(parts, (), ("monitor",)):
            if not monitor.startswith("test/"):
                _check_metric(monitor, path, live, report)


def _check_metric(name: str, path: Keys, keys: Collection[str], report: Report) -> None:
    if not is_metric(name, keys):
        known = listed([key for key in KNOWN_METRICS if key in keys])
        message = f"must be a metric that the run records, such as {known}; got {name!r}."
        report(path, message, nearest_metric(name, keys))


@dataclass
class _Looked:
    """What a look at a node found."""

    path: Keys
    bound: Any
    faults: list[_Said]
    targets: list[tuple[Keys, Any]]
    _trial: list[_Said] | None = None

    def trial(self) -> list[_Said]:
        """Faults that building the node brings up."""
        if self._trial is None:
            self._trial = []
            try:
                if isinstance(self.bound, Bound):
                    self.bound.build()
            except RecipeError as error:
                self._trial = [
                    (tuple(fault.key.split(".")), fault.message, fault.suggestion)
                    for fault in error.faults
                ]
        return self._trial


def _collecting(faults: list[_Said]) -> Report:
    def report(path: Keys, message: str, suggestion: str | None = None) -> None:
        faults.append((path, message, suggestion))

    return report


def _leaving_out(report: Report, paths: Collection[Keys]) -> Report:
    """``report`` but for values that an interpolation has left unknown."""

    def add(path: Keys, message: str, suggestion: str | None = None) -> None:
        if path not in paths:
            report(path, message, suggestion)

    return add


def _ask(path: Keys, target: Any, resolved: Mapping[str, Any]) -> list[_Said]:
    """What a class itself has to say about its node in this recipe."""
    hook = getattr(target, "check_recipe", None)
    node: Any = resolved
    for key in path:
        node = node[int(key)] if isinstance(node, list) else node.get(key)
    if hook is None or not isinstance(node, Mapping):
        return []
    try:
        sentences = list(hook(resolved, node))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        sentences = [f"must suit {target.__name__}, whose check raised {one_line(error)}."]
    result: list[_Said] = []
    for sentence in sentences:
        word, _, rest = sentence.partition(" ")
        is_argument = word in node and bool(rest)
        result.append(((*path, word), rest, None) if is_argument else (path, sentence, None))
    return result
