"""What can be said about a recipe without importing what it names: keys, choices, variants."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from toolkit.config.collect import Report
from toolkit.config.merge import TARGET
from toolkit.config.seeds import read_seeds
from toolkit.config.yaml12 import Keys
from toolkit.suggest import listed, nearest

__all__ = [
    "METRIC_ARGUMENTS",
    "ROOTS",
    "RUN_KEYS",
    "TOP_KEYS",
    "VARIANT_ARGUMENTS",
    "check_shape",
    "named_in",
    "unknown",
]

ROOTS = (
    "callbacks", "diffusers", "lightning", "sklearn", "timm", "toolkit", "torch", "torchmetrics",
    "torchvision",
)  # fmt: skip
"""Root packages a ``_target_`` may name, besides those under ``packages:``."""

RUN_KEYS = (
    "data", "model", "trainer", "callbacks", "checkpoint", "nonfinite", "threads", "wandb",
)  # fmt: skip
"""Top-level keys that a variant may change."""

TOP_KEYS = (
    "title", "paper", "minutes", "device", "description", "extends", "packages", "seeds", "seed",
    *RUN_KEYS, "variants", "claims", "report",
)  # fmt: skip

VARIANT_ARGUMENTS = (
    "arm", "arms", "baseline", "baselines", "control", "controls", "variant", "variants",
)  # fmt: skip
"""Arguments of claims that name variants."""

METRIC_ARGUMENTS = ("metric", "metrics", "until")
"""Arguments of claims, and keys of ``report``, that name metrics."""

_SECTIONS: dict[str, tuple[str, ...]] = {
    "checkpoint": ("monitor", "mode", "every_n_epochs", "test"),
    "wandb": ("mode", "project", "entity", "tags"),
}
_CHOICES: dict[Keys, tuple[str, ...]] = {
    ("device",): ("cpu", "gpu"),
    ("nonfinite",): ("stop", "skip"),
    ("checkpoint", "mode"): ("min", "max"),
    ("checkpoint", "test"): ("best", "last"),
    ("wandb", "mode"): ("auto", "offline", "online", "disabled"),
}
_TEXTS: tuple[Keys, ...] = (
    ("title",), ("paper",), ("description",), ("checkpoint", "monitor"), ("wandb", "project"),
    ("wandb", "entity"),
)  # fmt: skip
_COUNTS: tuple[Keys, ...] = (("threads",), ("checkpoint", "every_n_epochs"))
_LISTS: tuple[Keys, ...] = (("packages",), ("wandb", "tags"))


def check_shape(tree: Mapping[str, Any], report: Report) -> None:
    """Report what is wrong with the merged values of one variant, short of importing anything."""
    for key in tree:
        if key not in TOP_KEYS:
            unknown(report, (str(key),), TOP_KEYS, "is no key of a recipe")
    for section, keys in _SECTIONS.items():
        for key in _mapping(tree, section, report):
            if key not in keys:
                unknown(report, (section, str(key)), keys, f"is no key of {section}")
    _mapping(tree, "trainer", report)
    _mapping(tree, "report", report)
    _check_scalars(tree, report)
    _check_checkpoint(tree, report)
    roots = [*ROOTS, *_names(tree.get("packages"))]
    for part in ("data", "model"):
        _check_part(tree.get(part), (part,), report, roots)
    for group in ("callbacks", "claims"):
        nodes = _mapping(tree, group, report)
        for name, node in nodes.items():
            others = [other for other, value in nodes.items() if _is_node(value)]
            _check_part(node, (group, str(name)), report, roots, others)
    for part in ("trainer", "report"):
        _check_targets(tree.get(part), (part,), report, roots)
    _check_claim_variants(tree, report)


def named_in(value: Any, path: Keys, arguments: Collection[str]) -> Iterator[tuple[Keys, str]]:
    """Names given to certain arguments, singly or in a list, anywhere in nested nodes."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        here = (*path, str(key))
        if key in arguments:
            names = item if isinstance(item, list) else [item]
            yield from ((here, name) for name in names if isinstance(name, str))
        yield from named_in(item, here, arguments)


def unknown(report: Report, path: Keys, accepted: Collection[str], message: str) -> None:
    """Report a name that is not among the accepted ones, with the nearest of them."""
    near = None if path[-1] in accepted else nearest(path[-1], accepted)
    report(path, f"{message}. Accepted: {listed(accepted, 24)}.", near)


def _check_scalars(tree: Mapping[str, Any], report: Report) -> None:
    for path, choices in _CHOICES.items():
        value = _at(tree, path)
        if value is not None and value not in choices:
            report(path, f"must be {' or '.join(choices)}, got {value!r}.", _near(value, choices))
    for path in _TEXTS:
        if not isinstance(_at(tree, path), str | None):
            report(path, f"must be text, got {_at(tree, path)!r}. Put it in quotes.")
    for path in _COUNTS:
        value = _at(tree, path)
        if value is not None and (not isinstance(value, int) or value is True or value < 1):
            report(path, f"must be a whole number of at least 1, got {value!r}.")
    for path in _LISTS:
        value = _at(tree, path)
        if value is not None and _names(value) != value:
            report(path, f"must be a list of names, got {value!r}. Write [a, b].")
    minutes = tree.get("minutes")
    if not isinstance(minutes, int | float | None) or minutes is True or (minutes or 0) < 0:
        report(("minutes",), f"must be a number of at least 0, got {minutes!r}.")
    _check_seeds(tree, report)


def _check_seeds(tree: Mapping[str, Any], report: Report) -> None:
    if "seeds" in tree:
        try:
            read_seeds(tree["seeds"])
        except ValueError as error:
            report(("seeds",), str(error))
    seed = tree.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        report(("seed",), f"must be one whole number of at least 0, got {seed!r}.", "seeds")


def _check_checkpoint(tree: Mapping[str, Any], report: Report) -> None:
    section = tree.get("checkpoint")
    if not isinstance(section, Mapping):
        return
    monitor = section.get("monitor")
    if isinstance(monitor, str) and monitor.startswith("test/"):
        message = f"must not see test data, got {monitor!r}. Name a val/ metric."
        report(("checkpoint", "monitor"), message)
    if monitor is not None and section.get("mode") is None:
        report(("checkpoint",), f"must say mode: min or mode: max for {monitor!r}.")
    if monitor is None and section.get("test") == "best":
        report(
            ("checkpoint",), "must name a monitor where test is best. Add for example val/error."
        )


def _check_part(
    node: Any, path: Keys, report: Report, roots: list[str], others: Collection[str] = ()
) -> None:
    """Report a node that is missing or without ``_target_``, then the targets in it."""
    if node is None:
        more = f" Remove it with ~{'.'.join(path)}." if len(path) > 1 else ""
        report(path, f"must be a node with a {TARGET}, got nothing.{more}")
    elif not isinstance(node, Mapping):
        report(path, f"must be a node with a {TARGET}, got {node!r}.")
    elif TARGET not in node:
        near = nearest(path[-1], [name for name in others if name != path[-1]])
        near = ".".join((*path[:-1], near)) if near else None
        if not any(nearest(str(key), [TARGET]) for key in node):  # else said below
            report(path, f"must have a {TARGET}, got only {listed(map(str, node))}.", near)
    _check_targets(node, path, report, roots)


def _check_targets(value: Any, path: Keys, report: Report, roots: list[str]) -> None:
    """Report underscore keys that are no ``_target_``, and targets outside the allow-list."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            _check_targets(item, (*path, str(position)), report, roots)
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        here = (*path, str(key))
        if key == TARGET:
            _check_target(item, here, report, roots)
        elif (str(key).startswith("_") and str(key).endswith("_")) or _near(key, (TARGET,)):
            hint = " A factory is made where one is declared." if key == "_partial_" else ""
            report(here, f"is no key of a node; {TARGET} is the only special one.{hint}",
                   _near(key, (TARGET,)))  # fmt: skip
        else:
            _check_targets(item, here, report, roots)


def _check_target(target: Any, path: Keys, report: Report, roots: list[str]) -> None:
    if not isinstance(target, str) or "." not in target.strip("."):
        report(path, f"must be the dotted path of a class or function, got {target!r}.")
        return
    root, _, rest = target.partition(".")
    if root not in roots:
        near = nearest(root, roots)
        message = f"must lie in one of {listed(roots)}, got {target!r}."
        add = "" if near else f" If it is yours, write packages: [{root}]."
        report(path, message + add, f"{near}.{rest}" if near else None)


def _check_claim_variants(tree: Mapping[str, Any], report: Report) -> None:
    variants = tree.get("variants")
    names = [str(name) for name in variants] if isinstance(variants, Mapping) else []
    for path, name in named_in(tree.get("claims"), ("claims",), VARIANT_ARGUMENTS):
        if name not in names:
            message = f"must be a variant, one of {listed(names, 24)}; got {name!r}."
            report(path, message, nearest(name, names))


def _mapping(tree: Mapping[str, Any], key: str, report: Report) -> Mapping[Any, Any]:
    value = tree.get(key)
    if isinstance(value, Mapping):
        return value
    if value is not None:
        report((key,), f"must be a mapping of names to values, got {value!r}.")
    return {}


def _at(tree: Mapping[str, Any], path: Keys) -> Any:
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if isinstance(value, str) and "${" in value else value


def _near(value: Any, choices: Collection[str]) -> str | None:
    return nearest(value, choices) if isinstance(value, str) else None


def _names(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value
