"""Spurious features and groups: measured agreement, pixels, and refusals."""

import math

import pytest
import torch

from toolkit.data import (
    ImageArrays,
    Spurious,
    add_corner_patch,
    class_by_attribute,
    color_images,
    spurious_attributes,
    stratified_split,
)

N = 20_000


def _generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("agreement", [0.0, 0.1, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("num_attributes", [2, 10])
def test_measured_agreement_is_binomial_with_the_probability_asked_for(agreement, num_attributes):
    targets = torch.arange(N) % 10
    attributes = spurious_attributes(targets, num_attributes, agreement, _generator())
    agrees = attributes == targets % num_attributes
    deviation = math.sqrt(agreement * (1 - agreement) / N)
    assert abs(agrees.double().mean().item() - agreement) <= 4 * deviation
    for c in range(10):  # per class too: the class decides nothing but the value agreed with
        share = agrees[targets == c].double().mean().item()
        assert abs(share - agreement) <= 4.5 * deviation * math.sqrt(10)


def test_correlation_of_a_binary_attribute_is_two_p_minus_one():
    targets = torch.arange(N) % 2
    p = 0.8
    attributes = spurious_attributes(targets, 2, p, _generator(1))
    correlation = torch.corrcoef(torch.stack([targets, attributes]).double())[0, 1].item()
    assert abs(correlation - (2 * p - 1)) < 4 * 2 * math.sqrt(p * (1 - p) / N)


def test_values_that_disagree_are_uniform_over_the_others():
    targets = torch.zeros(N, dtype=torch.int64)
    attributes = spurious_attributes(targets, 5, 0.2, _generator(2))
    counts = torch.bincount(attributes, minlength=5).double()
    chi2 = ((counts - N / 5) ** 2 / (N / 5)).sum()
    assert chi2 < 18.5  # 99.9 % of a chi-squared with 4 degrees of freedom


def test_same_generator_gives_the_same_attributes():
    targets = torch.arange(100) % 3
    first, again = (spurious_attributes(targets, 3, 0.5, _generator(7)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, spurious_attributes(targets, 3, 0.5, _generator(8)))


def test_colour_keeps_the_brightest_channel_and_tells_attributes_apart():
    images = torch.randint(256, (10, 1, 4, 4), generator=_generator()).to(torch.uint8)
    colored = color_images(images, torch.arange(10))
    assert colored.dtype == torch.uint8
    assert torch.equal(colored.max(1).values, images[:, 0])
    same = color_images(images[:1].expand(10, 1, 4, 4), torch.arange(10))
    assert len(same.unique(dim=0)) == 10
    floats = color_images(images / 255, torch.arange(10))
    torch.testing.assert_close(floats, colored / 255, atol=0.5 / 255 + 1e-6, rtol=0)


def test_patch_changes_the_corner_of_marked_images_only():
    images = torch.randint(255, (6, 3, 5, 5), generator=_generator()).to(torch.uint8)
    before = images.clone()
    patched = add_corner_patch(images, torch.tensor([0, 1, 0, 1, 1, 0]), size=2)
    assert torch.equal(images, before)
    changed = patched != images
    for k, marked in enumerate([0, 1, 0, 1, 1, 0]):
        assert torch.equal(changed[k, :, :2, :2], torch.full((3, 2, 2), bool(marked)))
        assert not changed[k, :, 2:].any()
        assert not changed[k, :, :, 2:].any()
    assert (patched[1, :, :2, :2] == 255).all()


def test_applied_feature_brings_its_groups_and_leaves_the_labels():
    arrays = ImageArrays(
        images=torch.zeros(1000, 1, 8, 8, dtype=torch.uint8),
        targets=torch.arange(1000) % 4,
        num_classes=4,
        name="train",
    )
    marked = Spurious("patch", agreement=0.9, patch_size=3).apply(arrays, _generator())
    has_patch = (marked.images == 255).flatten(1).any(1)
    assert torch.equal(marked.groups, 2 * arrays.targets + has_patch)
    assert torch.equal(marked.targets, arrays.targets)
    assert marked.group_names[3] == "class1_attr1"
    agrees = ((marked.groups % 2) == arrays.targets % 2).double().mean().item()
    assert abs(agrees - 0.9) < 4 * math.sqrt(0.09 / 1000)


def test_groups_are_all_pairs_whether_they_occur_or_not():
    groups = class_by_attribute(
        torch.tensor([0, 2]), torch.tensor([1, 0]), 3, 2, ["a", "b", "c"], ["x", "y"]
    )
    assert groups.ids.tolist() == [1, 4]
    assert groups.names == ("a_x", "a_y", "b_x", "b_y", "c_x", "c_y")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spurious_attributes(torch.tensor([0]), 1, 0.5), "at least 2, got 1"),
        (
            lambda: spurious_attributes(torch.tensor([0]), 2, 1.5),
            r"agreement must lie in \[0, 1\], got 1.5",
        ),
        (
            lambda: color_images(torch.zeros(1, 3, 2, 2), torch.tensor([0])),
            "one channel to be coloured, got 3",
        ),
        (
            lambda: color_images(torch.zeros(1, 1, 2, 2), torch.tensor([10])),
            "at most 10 for colours, got attribute 10",
        ),
        (
            lambda: add_corner_patch(torch.zeros(1, 1, 2, 2), torch.tensor([0]), 3),
            r"patch_size must lie in 1\.\.2, got 3",
        ),
        (
            lambda: add_corner_patch(torch.zeros(1, 1, 2, 2), torch.tensor([2]), 1),
            "must be 2 for a patch, got attribute 2",
        ),
        (
            lambda: Spurious("patch", num_attributes=3),
            r"num_attributes must lie in 2\.\.2 for kind patch, got 3",
        ),
        (
            lambda: Spurious("color", num_attributes=11),
            r"num_attributes must lie in 2\.\.10 for kind color, got 11",
        ),
        (
            lambda: Spurious(test_agreement=-0.5),
            r"test_agreement must lie in \[0, 1\], got -0.5",
        ),
        (
            lambda: class_by_attribute(torch.tensor([0]), torch.tensor([2]), 2, 2, name="val"),
            r"val attributes must lie in 0\.\.1, got \[2\]",
        ),
        (
            lambda: stratified_split(torch.tensor([0, 1]), [2, 1], 0),
            r"add up to at most 2, got \[2, 1\]",
        ),
    ],
)
def test_refusals_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_split_shares_are_proportional_and_parts_disjoint():
    targets = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    parts = stratified_split(targets, [10, 20, 70], seed=3)
    assert [torch.bincount(targets[p]).tolist() for p in parts] == [
        [5, 3, 2],
        [10, 6, 4],
        [35, 21, 14],
    ]
    assert sorted(torch.cat(parts).tolist()) == list(range(100))


def test_a_part_depends_on_those_before_it_only():
    targets = torch.arange(100) % 7
    first, second = (stratified_split(targets, [13, size], seed=1) for size in (20, 50))
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[0], stratified_split(targets, [13], seed=2)[0])
