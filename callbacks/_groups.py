"""Names and training counts of groups and classes, as arguments or a data module declare them."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from toolkit.metrics import GroupMeans

__all__ = ["NO_GROUP", "DeclaredGroups", "keyed", "warn_of_absent"]

# Takes the place of the group id where a batch has no groups, so that every rank, also one without
# a batch, reads from the gathered rows that the classes are the groups.
NO_GROUP = -1


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


def keyed(kind: str, names: Sequence[str], means: GroupMeans) -> dict[str, Tensor]:
    """``<kind>_acc/<name>``, ``<kind>_loss/<name>`` and ``<kind>_count/<name>`` of each name."""
    values: dict[str, Tensor] = {}
    for what, column in (("acc", means.acc), ("loss", means.loss), ("count", means.count)):
        values |= {f"{kind}_{what}/{name}": column[i] for i, name in enumerate(names)}
    return values


def warn_of_absent(split: str, names: Sequence[str], means: GroupMeans) -> bool:
    """Warn, on rank 0, if some group has no example; whether there was one."""
    absent = [name for name, count in zip(names, means.count.tolist(), strict=True) if count == 0]
    if absent:
        rank_zero_warn(
            f"{split} has no example of {', '.join(absent)}: metrics of such a group are NaN, and "
            "means over groups leave it out."
        )
    return bool(absent)
