"""Noisy labels and long tails: counts in closed form, splits left alone, refusals."""

import numpy as np
import pytest
import torch
from scipy import stats

from toolkit.data import ArrayImages, Digits, LabelNoise, LongTail, Spurious, symmetric_noise
from toolkit.data.long_tail import exponential_counts, rebalanced


def _digits(seed=3, **arguments):
    data = Digits(train_size=900, val_size=300, test_size=400, seed=seed, **arguments)
    data.check()
    return data


def _source(n=60):
    """Pixels that tell which example it is."""
    images = np.arange(n, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    return {"train_images": images, "train_labels": np.arange(n) % 3}


def _noisy(n=60):
    return ((np.arange(n) % 3 + (np.arange(n) % 5 == 0)) % 3).tolist()


def _arrays(noise, **arguments):
    arguments = {"val_size": 12, "test_size": 12, **arguments}
    data = ArrayImages(_source(), label_noise=noise, **arguments)
    data.check()
    return data


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 1.0])
def test_the_fraction_is_the_share_of_wrong_labels_exactly(fraction):
    targets = torch.arange(400) % 7
    noisy = symmetric_noise(targets, 7, fraction, torch.Generator().manual_seed(0))
    assert int((noisy != targets).sum()) == round(400 * fraction)
    assert noisy.min() >= 0
    assert noisy.max() <= 6


def test_wrong_labels_are_uniform_over_the_other_classes():
    targets = torch.arange(40_000) % 5
    noisy = symmetric_noise(targets, 5, 0.5, torch.Generator().manual_seed(0))
    wrong = noisy != targets
    table = torch.bincount(5 * targets[wrong] + noisy[wrong], minlength=25).view(5, 5)
    assert table.diagonal().sum() == 0
    others = table[~torch.eye(5).bool()]
    assert stats.chisquare(others.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("validation", ["clean", "noisy"])
def test_noise_is_in_the_training_data_and_elsewhere_as_asked(validation):
    clean, noisy = _digits(), _digits(label_noise=LabelNoise(validation, fraction=0.2))
    assert torch.equal(noisy.true_targets, clean.train.targets)
    shares = []
    for split in ("train", "val", "test"):
        ours, theirs = getattr(noisy, split), getattr(clean, split)
        assert torch.equal(ours.images, theirs.images)
        shares.append(float((ours.targets != theirs.targets).double().mean()))
    assert shares == pytest.approx([0.2, 0.2 if validation == "noisy" else 0.0, 0.0])


def test_the_same_seed_gives_the_same_noise_and_another_seed_another():
    noise = LabelNoise("clean", fraction=0.3)
    one, same, other = (_digits(seed, label_noise=noise) for seed in (3, 3, 4))
    assert torch.equal(one.train.targets, same.train.targets)
    wrong = [data.train.targets != data.true_targets for data in (one, other)]
    assert not torch.equal(*wrong)


def test_given_labels_follow_their_examples_into_the_splits():
    data = _arrays(LabelNoise("noisy", labels=_noisy()))
    given = torch.tensor(_noisy())
    for split in (data.train, data.val):
        assert torch.equal(split.targets, given[split.images[:, 0, 0, 0].long()])
    assert torch.equal(data.test.targets, data.test.images[:, 0, 0, 0].long() % 3)
    assert torch.equal(data.true_targets, data.train.images[:, 0, 0, 0].long() % 3)
    clean = _arrays(None)
    assert torch.equal(clean.train.images, data.train.images)


def test_given_labels_are_read_from_a_file(tmp_path):
    np.savez(tmp_path / "people.npz", worst=np.array(_noisy(), np.uint8))
    noise = LabelNoise("clean", labels="people.npz:worst", root=str(tmp_path))
    from_file, given = _arrays(noise), _arrays(LabelNoise("clean", labels=_noisy()))
    assert torch.equal(from_file.train.targets, given.train.targets)
    assert not torch.equal(from_file.train.targets, from_file.true_targets)


def test_clean_and_noisy_are_groups_where_asked():
    data = _digits(label_noise=LabelNoise("clean", fraction=0.2, groups=True))
    assert data.group_names == ("clean", "noisy")
    assert torch.equal(data.train.groups.bool(), data.train.targets != data.true_targets)
    assert data.val.groups.sum() == data.test.groups.sum() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "fraction or labels must be given, and one only, got neither"),
        ({"fraction": 0.1, "labels": [1]}, "and one only, got both"),
        ({"fraction": 1.2}, r"fraction must lie in \[0, 1\], got 1.2"),
    ],
)
def test_noise_refuses_what_makes_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        LabelNoise("clean", **arguments)


@pytest.mark.parametrize(
    ("noise", "arguments", "message"),
    [
        (LabelNoise("clean", labels=[0] * 59), {}, "must be as many .* of the source, 60, got 59"),
        (LabelNoise("clean", labels=[3] * 60), {}, r"must lie in 0..2, got 3..3. Use the classes"),
        (
            LabelNoise("clean", fraction=0.1, groups=True),
            {"spurious": Spurious("patch", patch_size=2)},
            "label_noise.groups must be false where the data has groups, got those of",
        ),
    ],
)
def test_noise_that_does_not_fit_the_data_is_refused_at_check(noise, arguments, message):
    with pytest.raises(ValueError, match=message):
        _arrays(noise, **arguments)


def test_given_labels_cannot_make_a_validation_split_of_its_own_noisy():
    source = _source() | {"val_images": _source()["train_images"], "val_labels": np.arange(60) % 3}
    noise = LabelNoise("noisy", labels=_noisy())
    data = ArrayImages(source, label_noise=noise, val_size=None, test_size=12)
    with pytest.raises(ValueError, match=r"label_noise.validation must be clean where labels are"):
        data.check()


def test_noise_of_one_class_is_refused():
    with pytest.raises(ValueError, match="num_classes must be at least 2 for label noise, got 1"):
        symmetric_noise(torch.zeros(3).long(), 1, 0.1)
    with pytest.raises(ValueError, match=r"fraction must lie in \[0, 1\], got -0.1"):
        symmetric_noise(torch.zeros(3).long(), 2, -0.1)


def test_counts_fall_by_one_factor_from_class_to_class():
    counts = exponential_counts(torch.full((10,), 5000), 10.0).double()
    assert counts[0] == 5000
    assert counts[-1] == 500
    steps = counts[1:] / counts[:-1]
    torch.testing.assert_close(steps, torch.full((9,), 10 ** (-1 / 9)).double(), rtol=2e-3, atol=0)


def test_a_long_tail_cuts_the_training_data_only_and_larger_ratios_nest():
    plain = _digits()
    cut = [_digits(long_tail=LongTail(ratio)) for ratio in (1.0, 3.0, 10.0)]
    smallest = int(plain.train.targets.bincount().min())
    rows = []
    for data, ratio in zip(cut, (1.0, 3.0, 10.0), strict=True):
        counts = data.train.targets.bincount()
        assert torch.equal(counts, exponential_counts(torch.full((10,), smallest), ratio))
        assert torch.equal(data.val.images, plain.val.images)
        assert torch.equal(data.test.images, plain.test.images)
        rows.append({image.numpy().tobytes() for image in data.train.images})
    assert rows[2] < rows[1] < rows[0]


def test_rebalancing_copies_examples_of_their_class_evenly():
    tail, filled = (
        _digits(long_tail=LongTail(7.0, rebalance=rebalance)) for rebalance in (False, True)
    )
    counts = tail.train.targets.bincount()
    assert set(filled.train.targets.bincount().tolist()) == {int(counts.max())}
    for k, count in enumerate(counts.tolist()):
        copies = filled.train.images[filled.train.targets == k].flatten(1)
        distinct, times = copies.unique(dim=0, return_counts=True)
        assert len(distinct) == count
        assert times.max() - times.min() <= 1
    assert rebalanced(torch.tensor([2, 2, 2])).tolist() == [0, 1, 2]


def test_noise_counts_on_what_the_long_tail_leaves():
    data = _digits(long_tail=LongTail(5.0), label_noise=LabelNoise("clean", fraction=0.2))
    wrong = int((data.train.targets != data.true_targets).sum())
    assert wrong == round(0.2 * len(data.train))


@pytest.mark.parametrize("ratio", [0.5, float("nan")])
def test_a_ratio_below_one_is_refused(ratio):
    for call in (LongTail, lambda r: exponential_counts(torch.ones(3).long(), r)):
        with pytest.raises(ValueError, match="ratio must be at least 1, got"):
            call(ratio)


def test_a_ratio_that_empties_a_class_is_refused():
    with pytest.raises(ValueError, match=r"must leave each class an example, got 100.0 with 7 "):
        exponential_counts(torch.tensor([7, 40]), 100.0)
