"""Accuracy, loss and margin per group in fixed slots, and what they come to: worst, means, gap."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

__all__ = ["GroupMeans", "group_means", "group_summary", "lead", "per_example_cross_entropy"]


@dataclass(frozen=True, eq=False)
class GroupMeans:
    """One number per group: accuracy in [0, 1], mean loss, number of examples, mean margin.

    The margin is ``None`` where none were given.
    """

    acc: Float[Tensor, " groups"]
    loss: Float[Tensor, " groups"]
    count: Float[Tensor, " groups"]
    margin: Float[Tensor, " groups"] | None = None

    @property
    def error(self) -> Float[Tensor, " groups"]:
        """One minus the accuracy."""
        return 1 - self.acc


def per_example_cross_entropy(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Cross-entropy of each example, at least in single precision, in nats.

    Example:
        >>> per_example_cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor([0.6931, 0.6931])
    """
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(exact, targets.long(), reduction="none")


def group_means(
    correct: Bool[Tensor, " examples"],
    losses: Float[Tensor, " examples"],
    groups: Int[Tensor, " examples"] | Bool[Tensor, " examples groups"],
    num_groups: int,
    margins: Float[Tensor, " examples"] | None = None,
) -> GroupMeans:
    """Accuracy, mean loss and margin, count of each group; NaN and count 0 for an empty group.

    Each group has its own slot: an absent group shifts no other. Sums are in double precision.
    An example whose loss is NaN counts as wrong, since a NaN among its logits makes the largest
    one meaningless.

    Args:
        correct: Whether the prediction is right.
        losses: Per example.
        groups: Ids in ``0..num_groups - 1``, or, where groups overlap, who is in which.
        num_groups: The number of groups, also of those without an example here.
        margins: Per example.

    Raises:
        ValueError: If a group id is out of range, or there is not a column for each group.

    Example:
        >>> correct, groups = torch.tensor([True, False, True]), torch.tensor([2, 0, 0])
        >>> group_means(correct, torch.tensor([0.5, 1.0, 2.0]), groups, num_groups=3).acc
        tensor([0.5000,    nan, 1.0000], dtype=torch.float64)
    """
    total = _sum_over_members(groups, num_groups)
    count = total(torch.ones_like(losses, dtype=torch.float64))
    right = correct & ~losses.isnan()
    return GroupMeans(
        acc=total(right.double()) / count,
        loss=total(losses.double()) / count,
        count=count,
        margin=None if margins is None else total(margins.double()) / count,
    )


def lead(
    losses: Float[Tensor, " groups"], leader: int | None = None, tolerance: float = 0.0
) -> int | None:
    """Which group leads: the one with the lowest loss, the lowest id of equals.

    Args:
        losses: Mean loss per group, NaN for an absent one.
        leader: Who led before; it stays in the lead unless another is below it by more than
            ``tolerance``.
        tolerance: At least 0; keeps noise from changing the lead.

    Returns:
        Its id; ``leader`` if no group has a loss.

    Example:
        >>> lead(torch.tensor([0.50, 0.49]), leader=0, tolerance=0.02)
        0
    """
    known = torch.where(losses.isnan(), torch.inf, losses)
    if not known.isfinite().any():
        return leader
    best = int(known.argmin())
    if leader is not None and not float(known[best]) < float(known[leader]) - tolerance:
        return leader
    return best


def group_summary(
    acc: Float[Tensor, " groups"], train_counts: Shaped[Tensor, " counts"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """What the groups' accuracies come to, over the groups that have one.

    Args:
        acc: Accuracy per group, NaN for an absent one, which is left out of everything here.
        train_counts: Number of training examples of each group.

    Returns:
        ``worst_group_acc`` and its id ``worst_group`` (the lowest id of equals),
        ``mean_group_acc`` (each group alike), ``group_acc_gap`` (best minus worst) and, given
        ``train_counts``, ``weighted_group_acc``: each group by its share of the training set, the
        shares of absent groups left out of the denominator. All are NaN if no group has an
        accuracy.

    Raises:
        ValueError: If ``train_counts`` has another length than ``acc`` or a negative entry.

    Example:
        >>> summary = group_summary(torch.tensor([0.5, 1.0]), torch.tensor([1, 3]))
        >>> {name: value.item() for name, value in summary.items()}
        ... # doctest: +NORMALIZE_WHITESPACE
        {'worst_group_acc': 0.5, 'worst_group': 0.0, 'mean_group_acc': 0.75, 'group_acc_gap': 0.5,
         'weighted_group_acc': 0.875}
    """
    present = ~acc.isnan()
    worst = torch.where(present, acc, torch.inf)
    best = torch.where(present, acc, -torch.inf)
    some = present.any()
    summary = {
        "worst_group_acc": worst.amin(),
        "worst_group": worst.argmin().to(acc.dtype),
        "mean_group_acc": acc[present].mean(),
        "group_acc_gap": best.amax() - worst.amin(),
    }
    if train_counts is not None:
        if train_counts.shape != acc.shape or bool((train_counts < 0).any()):
            raise ValueError(
                f"train_counts must be {len(acc)} numbers >= 0, one per group, "
                f"got {train_counts.tolist()}. Count every group, also one without examples."
            )
        weights = torch.where(present, train_counts.to(acc.dtype), 0.0)
        total = (weights * torch.where(present, acc, 0.0)).sum()
        summary["weighted_group_acc"] = total / weights.sum()
    return {name: torch.where(some, value, torch.nan) for name, value in summary.items()}


def _sum_over_members(groups: Tensor, num_groups: int) -> Callable[[Tensor], Tensor]:
    """Sums of a column over each group's examples, in double precision."""
    if groups.dtype == torch.bool:
        if groups.shape[1] != num_groups:
            raise ValueError(
                f"groups must have a column for each of {num_groups} groups, got "
                f"{groups.shape[1]}. Name every column."
            )
        # Not a product of matrices: a NaN would spread to the groups that it is not in.
        return lambda values: torch.where(groups, values[:, None], 0.0).sum(0)
    if len(groups) and not (int(groups.min()) >= 0 and int(groups.max()) < num_groups):
        raise ValueError(
            f"group ids must lie in 0..{num_groups - 1}, got "
            f"{int(groups.min())}..{int(groups.max())}. Declare every group, also one without "
            "examples here."
        )
    zeros = torch.zeros(num_groups, dtype=torch.float64, device=groups.device)
    return lambda values: zeros.index_add(0, groups.long(), values)
