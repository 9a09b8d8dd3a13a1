"""What a run depends on, as one number, and what differs between two runs."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.config.yaml12 import text_of

__all__ = ["difference", "fingerprint"]

_PARTS = ("model", "data", "trainer", "callbacks", "seed", "checkpoint", "threads", "nonfinite")

_MACHINE = {
    "trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy",
    "trainer.enable_progress_bar", "trainer.enable_model_summary", "data.root",
}  # fmt: skip
"""Where a run takes place and what it prints; ``batch_size`` is global, so more devices change
the speed and nothing else, and a study may be divided over machines that differ."""


def fingerprint(resolved: Mapping[str, Any]) -> str:
    """SHA-256, as 64 hexadecimal digits, of what the result of a run depends on.

    That is the model, data, trainer, callbacks, seed, checkpoint rule, threads (they change the
    order of sums) and ``nonfinite``; not the title, W&B, the devices, and not where the data lies.
    ``1`` and ``1.0`` are the same, and so are keys in another order.

    Args:
        resolved: The configuration of a run, see :meth:`Recipe.resolve`.

    Example:
        >>> fingerprint({"seed": 1, "title": "a"}) == fingerprint({"title": "b", "seed": 1.0})
        True
    """
    text = json.dumps(sorted(_values(resolved).items()), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per dotted key in which two runs' fingerprints differ, with both values.

    Example:
        >>> difference({"seed": 1}, {"seed": 2, "threads": 1})
        ['seed: 1 -> 2', 'threads: absent -> 1']
    """
    before, after = _values(old), _values(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _values(resolved: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys and values, as text, of what the fingerprint is about."""
    parts = {key: resolved[key] for key in _PARTS if key in resolved}
    return {key: text for key, text in _leaves(parts, "") if key not in _MACHINE}


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for name, item in items:
        here = f"{key}.{name}" if key else str(name)
        if isinstance(item, Mapping | list | tuple) and item:
            yield from _leaves(item, here)
        elif item not in ({}, []) or key:  # a section that is empty is as good as absent
            yield here, _text(item)


def _text(value: Any) -> str:
    if isinstance(value, float) and str(value) == text_of(value) and value.is_integer():
        return str(int(value))
    return repr(value) if isinstance(value, str | Mapping | list) else text_of(value)
