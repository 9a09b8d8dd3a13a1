"""Seeds of a study: ``0-4``, ``0,2,5-7``, a number or a list of numbers."""

import re
from typing import Any

__all__ = ["read_seeds"]

_MOST = 2**32 - 1  # what Lightning's seed_everything takes
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def read_seeds(value: Any) -> tuple[int, ...]:
    """Seeds in the order given.

    Args:
        value: A number (that one seed), text such as ``0-4`` or ``0,2,5-7``, or a list of numbers.

    Raises:
        ValueError: If it is something else, empty, descending, or names a seed twice.

    Example:
        >>> read_seeds("0-2,7"), read_seeds([3, 1]), read_seeds(5)
        ((0, 1, 2, 7), (3, 1), (5,))
    """
    items = value if isinstance(value, list | tuple) else str(value).replace(" ", "").split(",")
    seeds: list[int] = []
    for item in items:
        match = None if isinstance(item, bool | float) else _RANGE.fullmatch(str(item))
        if match is None or isinstance(value, bool):
            raise ValueError(
                f"must be a range such as 0-4 or a list such as [0, 3], got {value!r}."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > _MOST:
            raise ValueError(f"must ascend, from 0 to at most {_MOST}, got {value!r}.")
        if last - first >= 100_000:
            raise ValueError(f"must be fewer than 100000, got {value!r}.")
        seeds += range(first, last + 1)
    if not seeds:
        raise ValueError("must name at least one seed, got none. Write for example 0-4.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"must name each seed once, got {value!r}.")
    return tuple(seeds)
