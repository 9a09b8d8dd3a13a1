"""Names of metrics that a recipe may monitor or claim something about."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from toolkit.suggest import nearest

__all__ = ["KNOWN_METRICS", "is_metric", "logged_keys", "nearest_metric"]

KNOWN_METRICS = (
    "train/loss", "train/acc", "val/loss", "val/acc", "val/error", "test/loss", "test/acc",
    "test/error", "seconds", "updates", "epochs", "examples_seen",
)  # fmt: skip
"""What every run of an image classifier records."""

_OURS = ("toolkit", "callbacks", "lightning")


def logged_keys(targets: Iterable[Any]) -> tuple[tuple[str, ...], bool]:
    """Keys that the classes of a run log, with ``*`` for any text, and whether these are all.

    A class says its keys in ``logged_keys``, a tuple or a class method that returns one. A module
    or callback from elsewhere that does not say them may log anything.
    """
    keys = dict.fromkeys(KNOWN_METRICS)
    are_all = True
    for target in targets:
        declared = getattr(target, "logged_keys", None)
        if callable(declared):
            declared = declared()
        if isinstance(declared, Collection) and not isinstance(declared, str):
            keys.update(dict.fromkeys(map(str, declared)))
        elif hasattr(target, "on_train_start"):
            are_all &= str(target.__module__).partition(".")[0] in _OURS
    return tuple(keys), are_all


def is_metric(name: str, keys: Iterable[str]) -> bool:
    """Whether a name is one of the keys, ``*`` in a key standing for any text."""
    return any(fnmatchcase(name, key) for key in keys)


def nearest_metric(name: str, keys: Iterable[str]) -> str | None:
    """The nearest key; below a ``*`` the name's own words are kept."""
    parts = name.split("/")
    candidates = []
    for key in keys:
        pattern = key.split("/")
        if "*" not in key:
            candidates.append(key)
        elif len(pattern) == len(parts):
            filled = (p if w == "*" else w for w, p in zip(pattern, parts, strict=True))
            candidates.append("/".join(filled))
    return nearest(name, [key for key in candidates if "*" not in key])
