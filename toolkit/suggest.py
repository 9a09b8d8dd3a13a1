"""The nearest right word for a misspelt one."""

from collections.abc import Iterable

__all__ = ["listed", "nearest", "spelling_distance"]


def spelling_distance(typed: str, meant: str) -> float:
    """Cost of the slips that turn ``meant`` into ``typed``: 0 if equal, about 1 per slip.

    A weighted Damerau-Levenshtein distance (optimal string alignment): a doubled letter 0.8; a
    forgotten letter, two swapped letters 0.9; a letter too many 1; a wrong letter 1.2, but 0.3 if
    only its case, or a dash for an underscore, is wrong. The weights break ties between
    candidates that are one slip away in favour of the commoner slips.

    Example:
        >>> spelling_distance("momentun", "momentum"), spelling_distance("lrr", "lr")
        (1.2, 0.8)
    """
    before_last: list[float] = []
    last = [0.9 * column for column in range(len(meant) + 1)]
    for row, letter in enumerate(typed, start=1):
        previous = typed[row - 2] if row > 1 else ""
        extra = 0.8 if letter == previous else 1.0
        current = [last[0] + extra]
        for column, right in enumerate(meant, start=1):
            cost = min(
                last[column] + extra,
                current[column - 1] + 0.9,
                last[column - 1] + _substitution(letter, right),
            )
            if row > 1 and column > 1 and letter == meant[column - 2] and previous == right:
                cost = min(cost, before_last[column - 2] + 0.9)
            current.append(cost)
        before_last, last = last, current
    return last[-1]


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``word`` most likely stands for; ``None`` if none is near.

    Near is a distance of at most a third of the word's length, and at least one slip; a wrong
    letter needs two right ones beside it. Ties go to the candidate that comes first.

    Example:
        >>> nearest("momentun", ["lr", "momentum", "weight_decay"])
        'momentum'
        >>> nearest("colour", ["lr", "momentum"]) is None
        True
    """
    limit = max(1.2 if len(word) > 2 else 1.0, 0.35 * len(word))
    best, least = None, limit
    for candidate in dict.fromkeys(candidates):
        if abs(len(candidate) - len(word)) * 0.8 > limit:
            continue
        distance = spelling_distance(word, candidate)
        if distance < least or (best is None and distance == least):
            best, least = candidate, distance
    return best


def listed(names: Iterable[str], limit: int = 12) -> str:
    """Names in a sentence: ``a, b, c``, cut after ``limit`` of them; ``none`` if there are none."""
    names = list(names)
    if not names:
        return "none"
    rest = f", and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _substitution(typed: str, meant: str) -> float:
    if typed == meant:
        return 0.0
    return 0.3 if typed.lower() == meant.lower() or {typed, meant} == {"-", "_"} else 1.2
