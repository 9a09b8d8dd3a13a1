"""Names and counts of groups as declared, overlapping groups, and which group leads."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from toolkit.metrics import GroupMeans, lead
from toolkit.suggest import listed

__all__ = [
    "NO_GROUP",
    "DeclaredGroups",
    "Leads",
    "Value",
    "as_mask",
    "check_groups",
    "keyed",
    "members",
    "warn_of_absent",
    "warn_of_collapse",
]

# Takes the place of the group id where a batch has no groups, so that every rank, also one without
# a batch, reads from the gathered rows that the classes are the groups.
NO_GROUP = -1

Value = Literal["acc", "error", "loss", "margin", "count"]
_MOST_OVERLAPPING = 63  # bits of an integer


class DeclaredGroups:
    """What groups and classes there are, whether or not examples of them have been seen.

    Args:
        data: A data module, or anything else; read are ``group_names`` or ``num_groups``,
            ``class_names``, ``num_classes``, ``train.groups`` and ``train.targets``.
        num_classes: The number of classes that logits showed.
        by_class: Whether the classes are the groups.
        own_groups: Whether the groups are others than the data module's.
        names: One per group; before the data module's.
        counts: Training examples of each group; before the data module's.
    """

    def __init__(
        self,
        data: Any,
        num_classes: int,
        *,
        by_class: bool,
        own_groups: bool,
        names: tuple[str, ...] | None,
        counts: Sequence[int] | None,
    ) -> None:
        self._data = data
        self._num_classes = max(num_classes, self._number("num_classes"))
        self._by_class = by_class
        self._own_groups = own_groups
        self._names = names
        self._counts = counts

    def class_names(self) -> tuple[str, ...]:
        """The data module's, else ``class0``, ``class1``, ..."""
        names = self._declared_names("class_names")
        return names if len(names) == self._num_classes else _numbered("class", self._num_classes)

    def group_names(self) -> tuple[str, ...]:
        """One name per group id.

        Raises:
            ValueError: If nothing says how many groups there are.
        """
        if self._by_class:
            return self.class_names()
        if self._names is not None:
            return self._names
        declared: tuple[str, ...] = ()
        if not self._own_groups:
            numbered = _numbered("group", self._number("num_groups"))
            declared = self._declared_names("group_names") or numbered
        if declared or self._counts is None:
            return _some(declared)
        return _numbered("group", len(self._counts))

    def train_counts(self) -> Tensor | None:
        """Training examples of each group, ``None`` where nothing says."""
        if self._counts is not None:
            return torch.tensor(self._counts, dtype=torch.float64)
        if self._own_groups and not self._by_class:
            return None
        name = "targets" if self._by_class else "groups"
        ids = getattr(getattr(self._data, "train", None), name, None)
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 1:
            return None
        return torch.bincount(ids.cpu(), minlength=len(self.group_names())).double()

    def _number(self, attribute: str) -> int:
        number = getattr(self._data, attribute, None)
        return number if isinstance(number, int) else 0

    def _declared_names(self, attribute: str) -> tuple[str, ...]:
        return tuple(getattr(self._data, attribute, None) or ())


def _numbered(kind: str, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}{index}" for index in range(count))


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError(
            "groups must be declared, got group ids without names. Give "
            "BiasTracker(group_names=[...]), or a data module with group_names or num_groups."
        )
    return names


def check_groups(tracker: Any, *, has_groups: bool) -> None:
    """Check the arguments of a bias tracker.

    Raises:
        ValueError: If one of them is out of range or does not fit the others.
    """
    per_decade = tracker.updates_per_decade
    if per_decade is not None and per_decade < 1:
        raise ValueError(f"updates_per_decade must be at least 1, got {per_decade}.")
    names, counts = tracker.group_names, tracker.train_group_counts
    if names is not None and (not names or len(set(names)) != len(names)):
        raise ValueError(f"group_names must be at least one, all different, got {list(names)}.")
    if not tracker.values or not set(tracker.values) <= set(get_args(Value)):
        raise ValueError(
            f"values must be some of {get_args(Value)}, got {list(tracker.values)}. Name what to "
            "log of each group."
        )
    tolerance = tracker.lead_tolerance
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(
            f"lead_tolerance must be at least 0, got {tolerance}. 0 tells each change."
        )
    if tracker.overlapping and (names is None or len(names) > _MOST_OVERLAPPING):
        raise ValueError(
            f"group_names must be 1 to {_MOST_OVERLAPPING} names where groups overlap, got "
            f"{names and len(names)}. Name each column of the matrix."
        )
    if names is not None and not has_groups:
        raise ValueError(
            f"group_names must be None where the classes are the groups, got {list(names)}. Leave "
            "them out, or name the groups in fields."
        )
    if names is not None and counts is not None and len(names) != len(counts):
        raise ValueError(
            f"train_group_counts must be {len(names)}, one per group name, got {len(counts)}. "
            "Count every group, also one without examples."
        )


def as_mask(groups: Tensor, names: Sequence[str]) -> Tensor:
    """Which groups each example is in, as the bits of an integer.

    Raises:
        ValueError: If ``groups`` is no boolean matrix with a column for each name.
    """
    if groups.dtype != torch.bool or groups.ndim != 2 or groups.shape[1] != len(names):
        raise ValueError(
            f"overlapping groups must be a boolean matrix of shape (batch, {len(names)}), one "
            f"column per name, got {groups.dtype} of shape {tuple(groups.shape)}. Compare "
            "with each value of the attribute."
        )
    bits = torch.arange(len(names), device=groups.device)
    return (groups.long() << bits).sum(1)


def members(mask: Tensor, num_groups: int) -> Tensor:
    """What :func:`as_mask` was given, boolean ``(examples, groups)``."""
    return (mask[:, None] >> torch.arange(num_groups, device=mask.device)) & 1 > 0


class Leads:
    """Which group leads in each split, and how often that has changed.

    Args:
        tolerance: See :func:`toolkit.metrics.lead`; ``None`` looks at nothing.
    """

    def __init__(self, tolerance: float | None) -> None:
        self._tolerance = tolerance
        self._leaders: dict[str, int] = {}
        self._changes: dict[str, int] = {}

    def after(self, split: str, losses: Tensor) -> dict[str, Tensor]:
        """``leading_group`` and ``lead_changes`` with these losses of the groups."""
        if self._tolerance is None:
            return {}
        before = self._leaders.get(split)
        leader = lead(losses, before, self._tolerance)
        changes = self._changes.setdefault(split, 0)
        if leader is not None:
            self._leaders[split] = leader
            self._changes[split] = changes = changes + (before is not None and before != leader)
        number = float("nan") if leader is None else float(leader)
        return {
            "leading_group": torch.tensor(number, dtype=torch.float64),
            "lead_changes": torch.tensor(changes, dtype=torch.float64),
        }

    def state_dict(self) -> dict[str, dict[str, int]]:
        """Leaders and numbers of changes."""
        return {"leaders": dict(self._leaders), "changes": dict(self._changes)}

    def load_state_dict(self, state_dict: dict[str, dict[str, int]]) -> None:
        """Restore leaders and numbers of changes."""
        self._leaders = dict(state_dict["leaders"])
        self._changes = dict(state_dict["changes"])


def keyed(
    kind: str, names: Sequence[str], means: GroupMeans, values: Sequence[str]
) -> dict[str, Tensor]:
    """``<kind>_<value>/<name>`` of each value and name."""
    found: dict[str, Tensor] = {}
    for value in values:
        column: Tensor = getattr(means, value)
        found |= {f"{kind}_{value}/{name}": column[i] for i, name in enumerate(names)}
    return found


def warn_of_absent(split: str, names: Sequence[str], means: GroupMeans, warned: set[str]) -> None:
    """Warn once, on rank 0, if some group has no example."""
    absent = [name for name, count in zip(names, means.count.tolist(), strict=True) if count == 0]
    if absent and split not in warned:
        warned.add(split)
        rank_zero_warn(
            f"{split} has no example of {listed(absent)}: metrics of such a group are NaN, and "
            "means over groups leave it out."
        )


def warn_of_collapse(
    split: str, classes: Sequence[str], means: GroupMeans, warned: set[str]
) -> None:
    """Warn once, on rank 0, if all predictions are of one class and were not so before."""
    present = means.acc[means.count > 0]
    collapsed = len(present) > 1 and bool(
        (present == 1).sum() == 1 and (present == 0).sum() == len(present) - 1
    )
    if not collapsed:
        warned.add(f"{split} told classes apart")
    elif f"{split} told classes apart" in warned and f"{split} collapsed" not in warned:
        warned.add(f"{split} collapsed")
        name = classes[int(means.acc.nan_to_num(0).argmax())]
        rank_zero_warn(
            f"{split} predictions have collapsed: all are {name!r} now, and were not before. Lower "
            "the learning rate, or look at the balance of the classes."
        )
