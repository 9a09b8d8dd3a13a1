"""Epochs in which each group, or class, takes as many positions."""

from collections import Counter

import pytest
import torch

from toolkit.data import ArrayLoader, Digits, GroupBalancedSampler, ImageArrays

GROUPS = torch.tensor([0] * 12 + [1] * 5 + [3] * 1)  # group 2 has no example


def test_present_groups_take_equally_many_positions_of_each_epoch() -> None:
    sampler = GroupBalancedSampler(GROUPS, batch_size=6)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        assert GROUPS[sampler.order()].bincount().tolist() == [6, 6, 0, 6]


def test_examples_of_a_group_are_seen_equally_often_to_within_one() -> None:
    sampler = GroupBalancedSampler(GROUPS, batch_size=6, seed=3)
    seen: Counter[int] = Counter()
    for epoch in range(7):
        sampler.set_epoch(epoch)
        seen.update(sampler.order().tolist())
        for group in (0, 1, 3):
            counts = [seen[i] for i in (group == GROUPS).nonzero()[:, 0].tolist()]
            assert max(counts) - min(counts) <= 1


def test_what_does_not_divide_goes_to_the_first_groups() -> None:
    sampler = GroupBalancedSampler(torch.tensor([0, 0, 1, 1, 2]), batch_size=1)
    assert torch.tensor([0, 0, 1, 1, 2])[sampler.order()].bincount().tolist() == [2, 2, 1]


def test_the_order_depends_on_seed_and_epoch_only_and_mixes_the_groups() -> None:
    first, again = (GroupBalancedSampler(GROUPS, batch_size=6) for _ in range(2))
    again.set_epoch(1)
    other = again.order()
    again.set_epoch(0)
    assert torch.equal(first.order(), again.order())
    assert not torch.equal(first.order(), other)
    assert GROUPS[first.order()].diff().ne(0).sum() > 2  # not one group after the other


def test_a_loader_balances_groups_or_classes_of_whatever_it_holds() -> None:
    arrays = ImageArrays(
        images=torch.zeros(18, 1, 2, 2, dtype=torch.uint8),
        targets=torch.tensor([0] * 15 + [1] * 3),
        num_classes=2,
        groups=GROUPS,
        group_names=("a", "b", "c", "d"),
    )
    loader = ArrayLoader(arrays, 6, shuffle=True, balance="groups")
    groups = torch.cat([batch["groups"] for batch in loader])
    assert groups.bincount().tolist() == [6, 6, 0, 6]
    classes = ArrayLoader(arrays, 6, shuffle=True, balance="classes")
    assert torch.cat([batch["targets"] for batch in classes]).bincount().tolist() == [9, 9]
    fewer = classes.with_indices(torch.tensor([0, 1, 2, 3, 17, 17]))
    assert torch.cat([batch["targets"] for batch in fewer]).bincount().tolist() == [3, 3]


def test_what_cannot_be_balanced_is_refused() -> None:
    arrays = ImageArrays(
        images=torch.zeros(4, 1, 2, 2, dtype=torch.uint8), targets=torch.arange(4), num_classes=4
    )
    with pytest.raises(ValueError, match="balance must be 'classes' where data has no groups"):
        ArrayLoader(arrays, 2, shuffle=True, balance="groups")
    with pytest.raises(ValueError, match="balance must go with shuffled epochs"):
        ArrayLoader(arrays, 2, balance="classes")
    with pytest.raises(ValueError, match="balance must be 'classes' where train has no groups"):
        Digits(balance="groups").check()


def test_a_data_module_balances_its_training_batches_only() -> None:
    data = Digits(balance="classes", train_size=250, batch_size=25)
    data.setup()
    seen = torch.cat([batch["targets"] for batch in data.train_dataloader()])
    assert seen.bincount().tolist() == [25] * 10
    val = torch.cat([batch["targets"] for batch in data.val_dataloader()])
    assert torch.equal(val, data.val.targets)
