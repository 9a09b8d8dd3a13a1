"""TrivialAugment against torchvision's operations, image by image, and its draws."""

from collections import Counter

import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.autoaugment import TrivialAugmentWide, _apply_op

from toolkit.data import ArrayLoader, Compose, FlipAndCrop, ImageArrays, TrivialAugment
from toolkit.data.trivial_augment import OPERATIONS


def _images(n=6, channels=3, height=32, width=24):
    """Noise, a smooth ramp, a flat one, and few levels: what the operations trip over."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, channels, height, width), generator=draw).to(torch.uint8)
    images[1] = torch.linspace(0, 255, width).to(torch.uint8)
    images[2] = 77
    images[3] = images[3] // 100 * 50
    images[4, :, :3] = 255
    return images


def _magnitude(operation, level, mirrored):
    strengths, has_sides = TrivialAugmentWide()._augmentation_space(31)[operation]
    magnitude = float(strengths[level]) if strengths.ndim else 0.0
    return -magnitude if has_sides and mirrored else magnitude


def _draws(operation, level, mirrored, n):
    magnitude = _magnitude(operation, level, mirrored)
    return {
        "operation": torch.full((n,), OPERATIONS.index(operation)),
        "magnitude": torch.full((n,), magnitude, dtype=torch.float64),
    }


def _reference(image, operation, level, mirrored):
    magnitude = _magnitude(operation, level, mirrored)
    return _apply_op(image, operation, magnitude, InterpolationMode.NEAREST, fill=None)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_gives_torchvisions_bytes(operation, channels):
    """To the byte; of a rotated image all but the few pixels that lie between two."""
    images = _images(channels=channels)
    for level in (0, 1, 7, 15, 22, 30):
        for mirrored in (False, True):
            draws = _draws(operation, level, mirrored, len(images))
            ours = TrivialAugment().change(images, draws)
            theirs = torch.stack([_reference(i, operation, level, mirrored) for i in images])
            # Float32 against float64: a source halfway between two pixels may go either way.
            other = (ours != theirs).any(1).double().mean()
            assert other <= (0.02 if operation == "Rotate" else 0), (level, mirrored)


def test_operations_are_torchvisions():
    space = TrivialAugmentWide()._augmentation_space(31)
    assert set(space) == set(OPERATIONS)


def test_a_batch_is_changed_image_by_image_whatever_else_is_in_it():
    images = _images(56)
    augment = TrivialAugment()
    draws = augment.draw(56, torch.Generator().manual_seed(2))
    draws["operation"] = torch.arange(56) % 14  # each is there
    whole = augment.change(images, draws)
    for k in range(56):
        rows = {key: values[k : k + 1] for key, values in draws.items()}
        assert torch.equal(augment.change(images[k : k + 1], rows)[0], whole[k])
    assert not torch.equal(whole, images)


def test_draws_are_uniform_over_operations_strengths_and_sides():
    count, bins = 60_000, 31
    draws = TrivialAugment().draw(count, torch.Generator().manual_seed(0))
    operations = torch.bincount(draws["operation"], minlength=14)
    assert len(operations) == 14
    assert (operations / count * 14 - 1).abs().max() < 5 * (14 / count) ** 0.5
    for k, name in enumerate(OPERATIONS):
        values = draws["magnitude"][draws["operation"] == k].tolist()
        expected = Counter(
            _magnitude(name, level, mirrored) for level in range(bins) for mirrored in (False, True)
        )
        found = Counter(values)
        assert found.keys() <= expected.keys()
        for value, weight in expected.items():
            mean = len(values) * weight / (2 * bins)
            assert abs(found[value] - mean) < 5.5 * mean**0.5, (name, value)


def test_composed_steps_are_the_steps_in_turn_and_the_first_draws_as_alone():
    arrays = ImageArrays(images=_images(6), targets=torch.arange(6), num_classes=6)
    crop, trivial = FlipAndCrop(3), TrivialAugment()
    both = Compose([crop, trivial])
    drawn = both.draw(6, torch.Generator().manual_seed(1))
    alone = crop.draw(6, torch.Generator().manual_seed(1))
    for key, rows in alone.items():
        assert torch.equal(drawn[f"0.{key}"], rows)
    indices = torch.tensor([4, 0, 0, 2, 5, 1])
    rest = {key[2:]: rows for key, rows in drawn.items() if key.startswith("1.")}
    expected = trivial.change(crop.take(arrays, indices, alone), rest)
    assert torch.equal(both.take(arrays, indices, drawn), expected)
    again = {f"1.{key}": rows for key, rows in alone.items()}
    again |= {f"0.{key}": rows for key, rows in rest.items()}
    backwards = Compose([trivial, crop]).change(arrays.images, again)
    assert torch.equal(backwards, crop.change(trivial.change(arrays.images, rest), alone))


def test_a_crop_of_a_batch_is_that_of_the_arrays():
    arrays = ImageArrays(images=_images(6), targets=torch.arange(6), num_classes=6)
    for crop in (FlipAndCrop(3), FlipAndCrop(0), FlipAndCrop(2, flip=False)):
        draws = crop.draw(6, torch.Generator().manual_seed(1))
        taken = crop.take(arrays, torch.arange(6), draws)
        assert torch.equal(crop.change(arrays.images, draws), taken)


def test_a_loader_repeats_an_epoch_and_changes_the_next():
    arrays = ImageArrays(images=_images(20), targets=torch.arange(20), num_classes=20)
    loader = ArrayLoader(arrays, 8, augment=Compose([FlipAndCrop(), TrivialAugment()]))
    epochs = []
    for epoch in (0, 0, 1):
        loader.sampler.set_epoch(epoch)
        epochs.append(torch.cat([batch["inputs"] for batch in loader]))
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])


def test_images_that_are_not_bytes_are_refused_when_the_loader_is_made():
    arrays = ImageArrays(images=torch.zeros(2, 3, 4, 4), targets=torch.arange(2), num_classes=2)
    message = r"must be uint8 with 1 or 3 channels for TrivialAugment, got torch.float32 with 3"
    with pytest.raises(ValueError, match=message):
        ArrayLoader(arrays, 2, augment=Compose([FlipAndCrop(), TrivialAugment()]))
    four = torch.zeros(2, 4, 4, 4, dtype=torch.uint8)
    four = ImageArrays(images=four, targets=torch.arange(2), num_classes=2, name="train")
    with pytest.raises(ValueError, match=r"train images must be uint8 .* with 4"):
        TrivialAugment().check(four)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="num_strengths must be at least 2, got 1"):
        TrivialAugment(1)
    with pytest.raises(ValueError, match="steps must hold at least one augmentation"):
        Compose([])
