"""Group ids: disjoint sub-populations, most often class x attribute."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

__all__ = ["Groups", "class_by_attribute"]


class Groups(NamedTuple):
    """Group ids ``(examples,)`` in ``0..len(names) - 1``, and the name of each id."""

    ids: Tensor
    names: tuple[str, ...]


def class_by_attribute(
    targets: Int[Tensor, " examples"],
    attributes: Int[Tensor, " values"],
    num_classes: int,
    num_attributes: int,
    class_names: Sequence[str] = (),
    attribute_names: Sequence[str] = (),
    *,
    name: str = "data",
) -> Groups:
    """Groups ``num_attributes * class + attribute``, one for each pair whether it occurs or not.

    Args:
        targets: In ``0..num_classes - 1``.
        attributes: As many, in ``0..num_attributes - 1``.
        num_classes: The number of classes.
        num_attributes: The number of attribute values.
        class_names: By default ``class0``, ``class1``, ...
        attribute_names: By default ``attr0``, ``attr1``, ...
        name: What messages call the data.

    Raises:
        ValueError: If lengths differ or a value is out of range.

    Example:
        >>> import torch
        >>> groups = class_by_attribute(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, 2)
        >>> groups.ids.tolist(), groups.names
        ([1, 2], ('class0_attr0', 'class0_attr1', 'class1_attr0', 'class1_attr1'))
    """
    if len(targets) != len(attributes):
        raise ValueError(
            f"{name} attributes must be as many as the labels, got {len(attributes)} for "
            f"{len(targets)} labels. Check that both arrays belong to the same split."
        )
    for what, values, count in (
        ("labels", targets, num_classes),
        ("attributes", attributes, num_attributes),
    ):
        bad = values[(values < 0) | (values >= count)]
        if len(bad):
            raise ValueError(
                f"{name} {what} must lie in 0..{count - 1}, got {sorted(set(bad.tolist()))[:5]}. "
                "Renumber them from 0."
            )
    classes = class_names or [f"class{c}" for c in range(num_classes)]
    kinds = attribute_names or [f"attr{a}" for a in range(num_attributes)]
    names = tuple(f"{c}_{a}" for c in classes for a in kinds)
    return Groups(num_attributes * targets + attributes, names)
