"""Group metrics in fixed slots."""

import math

import pytest
import torch

from toolkit.metrics import group_means, group_summary

CORRECT = torch.tensor([True, True, False, True, False, False])
LOSSES = torch.tensor([0.5, 0.25, 1.0, 0.75, 2.0, 3.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 0, 2, 2, 3])


def test_hand_computed_values_with_an_absent_group() -> None:
    means = group_means(CORRECT, LOSSES, GROUPS, 4)
    assert means.count.tolist() == [3, 0, 2, 1]
    assert means.acc[[0, 2, 3]].tolist() == [2 / 3, 0.5, 0.0]
    assert means.loss[[0, 2, 3]].tolist() == [1.75 / 3, 1.375, 3.0]
    assert math.isnan(means.acc[1])
    assert math.isnan(means.loss[1])
    summary = group_summary(means.acc, torch.tensor([60, 10, 20, 20]))
    assert summary["worst_group_acc"] == 0
    assert summary["worst_group"] == 3
    assert summary["group_acc_gap"].item() == pytest.approx(2 / 3)
    assert summary["mean_group_acc"].item() == pytest.approx((2 / 3 + 0.5) / 3)
    # The absent group's 10 training examples are left out of the denominator too.
    assert summary["weighted_group_acc"].item() == pytest.approx((60 * 2 / 3 + 20 * 0.5) / 100)


@pytest.mark.parametrize("absent", [0, 2, 3])
def test_absent_group_shifts_no_other(absent: int) -> None:
    whole = group_means(CORRECT, LOSSES, GROUPS, 4)
    kept = absent != GROUPS
    part = group_means(CORRECT[kept], LOSSES[kept], GROUPS[kept], 4)
    others = [group for group in (0, 2, 3) if group != absent]
    assert part.acc[others].tolist() == whole.acc[others].tolist()
    assert part.loss[others].tolist() == whole.loss[others].tolist()
    assert part.count[absent] == 0


def test_one_group_is_plain_accuracy() -> None:
    means = group_means(CORRECT, LOSSES, torch.zeros(6, dtype=torch.int64), 1)
    summary = group_summary(means.acc, torch.tensor([6]))
    accuracy = CORRECT.double().mean().item()
    for name in ("worst_group_acc", "mean_group_acc", "weighted_group_acc"):
        assert summary[name].item() == pytest.approx(accuracy, rel=1e-15)
    assert summary["group_acc_gap"] == 0


def test_weighting_by_the_counts_of_the_same_examples_is_plain_accuracy() -> None:
    means = group_means(CORRECT, LOSSES, GROUPS, 4)
    summary = group_summary(means.acc, means.count)
    assert summary["weighted_group_acc"].item() == pytest.approx(CORRECT.double().mean().item())


def test_order_of_examples_is_irrelevant() -> None:
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    means = group_means(CORRECT, LOSSES, GROUPS, 4)
    shuffled = group_means(CORRECT[order], LOSSES[order], GROUPS[order], 4)
    torch.testing.assert_close(shuffled.acc, means.acc, equal_nan=True)
    torch.testing.assert_close(shuffled.loss, means.loss, equal_nan=True)


def test_a_nan_loss_counts_as_wrong_and_spoils_its_own_group_only() -> None:
    losses = torch.tensor([math.nan, 1.0])
    means = group_means(torch.tensor([True, True]), losses, torch.tensor([0, 1]), 2)
    assert means.acc.tolist() == [0.0, 1.0]
    assert means.loss.isnan().tolist() == [True, False]


def test_equally_bad_groups_give_the_lowest_id_and_no_group_gives_nan() -> None:
    assert group_summary(torch.tensor([0.5, 0.25, 0.25]))["worst_group"] == 1
    nothing = group_summary(torch.full((2,), math.nan), torch.tensor([1, 1]))
    assert all(math.isnan(value) for value in nothing.values())


def test_ids_out_of_range_and_counts_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group ids must lie in 0\.\.2, got 0\.\.3"):
        group_means(CORRECT, LOSSES, GROUPS, 3)
    with pytest.raises(ValueError, match=r"train_counts must be 2 numbers >= 0, .* got \[1\]"):
        group_summary(torch.tensor([0.5, 1.0]), torch.tensor([1]))
