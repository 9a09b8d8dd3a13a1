"""Loader, sampler and augmentation against slow references, and over ranks."""

import pytest
import torch

from toolkit import distributed
from toolkit.data import ArrayLoader, EpochSampler, FlipAndCrop, ImageArrays, Normalize


def _arrays(n=23, channels=3, size=6, groups=False):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(256, (n, channels, size, size), generator=generator).to(torch.uint8)
    return ImageArrays(
        images=images,
        targets=torch.arange(n) % 4,
        num_classes=4,
        groups=torch.arange(n) % 2 if groups else None,
        group_names=("a", "b") if groups else (),
    )


def _epoch(loader, epoch=0):
    loader.sampler.set_epoch(epoch)
    return list(loader)


def _as_rank(monkeypatch, rank, world):
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "world_size", lambda: world)


def _equal(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), key


def test_batch_holds_each_examples_own_pixels_label_and_group():
    arrays = _arrays(groups=True)
    for batch in _epoch(ArrayLoader(arrays, 5, shuffle=True)):
        for row, index in enumerate(batch["indices"].tolist()):
            expected = arrays.images[index].double() / 255
            torch.testing.assert_close(batch["inputs"][row].double(), expected, rtol=0, atol=1e-7)
            assert batch["targets"][row] == index % 4
            assert batch["groups"][row] == index % 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_example_comes_exactly_once_per_epoch(shuffle):
    loader = ArrayLoader(_arrays(), 5, shuffle=shuffle)
    indices = torch.cat([batch["indices"] for batch in _epoch(loader)])
    assert sorted(indices.tolist()) == list(range(23))
    assert [len(batch["targets"]) for batch in loader] == [5, 5, 5, 5, 3]
    assert len(loader) == 5


def test_drop_last_leaves_out_only_the_partial_batch():
    loader = ArrayLoader(_arrays(), 5, drop_last=True)
    assert [len(batch["targets"]) for batch in loader] == [5, 5, 5, 5]
    assert len(loader) == 4


def test_epochs_differ_and_the_same_epoch_repeats_bit_for_bit():
    loader = ArrayLoader(_arrays(), 5, shuffle=True, augment=FlipAndCrop(2), seed=3)
    first, second, again = _epoch(loader, 0), _epoch(loader, 1), _epoch(loader, 0)
    _equal(first, again)
    order = [torch.cat([b["indices"] for b in epoch]) for epoch in (first, second)]
    assert not torch.equal(*order)
    other = ArrayLoader(_arrays(), 5, shuffle=True, augment=FlipAndCrop(2), seed=4)
    assert not torch.equal(order[0], torch.cat([b["indices"] for b in _epoch(other)]))


def test_epoch_set_after_the_iterator_is_made_still_counts():
    loader = ArrayLoader(_arrays(), 5, shuffle=True)
    iterator = iter(loader)
    loader.sampler.set_epoch(7)
    _equal(list(iterator), _epoch(ArrayLoader(_arrays(), 5, shuffle=True), 7))


def test_augmentation_does_not_change_the_order():
    plain = _epoch(ArrayLoader(_arrays(), 5, shuffle=True))
    augmented = _epoch(ArrayLoader(_arrays(), 5, shuffle=True, augment=FlipAndCrop(1)))
    for a, b in zip(plain, augmented, strict=True):
        assert torch.equal(a["indices"], b["indices"])


def test_iteration_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    _epoch(ArrayLoader(_arrays(), 5, shuffle=True, augment=FlipAndCrop(1)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize("flip", [True, False])
def test_flip_and_crop_equals_a_slow_loop_over_examples(padding, flip):
    arrays = _arrays(n=40)
    augment = FlipAndCrop(padding, flip)
    indices = torch.randint(40, (64,), generator=torch.Generator().manual_seed(1))
    draws = augment.draw(64, torch.Generator().manual_seed(2))
    taken = augment.take(arrays, indices, draws)
    for row, index in enumerate(indices.tolist()):
        big = torch.zeros(3, 6 + 2 * padding, 6 + 2 * padding, dtype=torch.uint8)
        big[:, padding : padding + 6, padding : padding + 6] = arrays.images[index]
        down, right = int(draws["down"][row]), int(draws["right"][row])
        expected = big[:, down : down + 6, right : right + 6]
        if draws["flip"][row]:
            expected = expected[:, :, torch.arange(5, -1, -1)]
        assert torch.equal(taken[row], expected)
    assert draws["flip"].any() == flip


def test_crops_of_images_that_are_not_contiguous_are_right():
    arrays = _arrays(n=8)
    strided = ImageArrays(
        images=arrays.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        targets=arrays.targets,
        num_classes=4,
    )
    for padding in (0, 2):
        augment = FlipAndCrop(padding)
        draws = augment.draw(8, torch.Generator().manual_seed(2))
        taken = [augment.take(data, torch.arange(8), draws) for data in (arrays, strided)]
        assert torch.equal(*taken)


def test_draws_are_uniform_over_shifts_and_fair_over_flips():
    draws = FlipAndCrop(2).draw(20_000, torch.Generator().manual_seed(0))
    for key in ("down", "right"):
        counts = torch.bincount(draws[key], minlength=5)
        assert len(counts) == 5
        chi2 = ((counts - 4000) ** 2 / 4000).sum()
        assert chi2 < 18.5  # 99.9 % of a chi-squared with 4 degrees of freedom
    assert abs(draws["flip"].float().mean() - 0.5) < 4 * 0.5 / 20_000**0.5


def test_gathering_leaves_the_images_alone():
    arrays = _arrays()
    before = arrays.images.clone()
    for padding in (0, 2):
        _epoch(ArrayLoader(arrays, 5, augment=FlipAndCrop(padding)))
    assert torch.equal(arrays.images, before)


def test_upsampled_copies_are_augmented_independently():
    loader = ArrayLoader(_arrays(), 64, augment=FlipAndCrop(2), shuffle=True)
    (batch,) = loader.with_indices(torch.full((64,), 3))
    assert batch["indices"].tolist() == [3] * 64
    assert len(batch["inputs"].unique(dim=0)) > 20


def test_all_indices_once_is_bit_identical_to_the_plain_loader():
    loader = ArrayLoader(
        _arrays(groups=True), 5, shuffle=True, augment=FlipAndCrop(2), seed=9, drop_last=True
    )
    for epoch in (0, 3):
        _equal(_epoch(loader, epoch), _epoch(loader.with_indices(torch.arange(23)), epoch))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("n", [24, 23, 27])
def test_ranks_together_see_the_global_batches(monkeypatch, world, n):
    def loader():
        return ArrayLoader(_arrays(n), 6, shuffle=True, augment=FlipAndCrop(2), seed=1)

    whole = _epoch(loader(), 2)
    shares = []
    for rank in range(world):
        _as_rank(monkeypatch, rank, world)
        shares.append(_epoch(loader(), 2))
        assert len(loader()) == len(whole)
    for step, batch in enumerate(whole):
        parts = [share[step] for share in shares]
        sizes = [len(part["targets"]) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for key in ("inputs", "targets", "indices"):
            assert torch.equal(torch.cat([part[key] for part in parts]), batch[key])


@pytest.mark.parametrize(("n", "world"), [(23, 2), (23, 3), (22, 3)])
def test_weights_make_the_mean_over_ranks_the_global_mean(monkeypatch, n, world):
    values = torch.rand(n, dtype=torch.float64)
    whole = _epoch(ArrayLoader(_arrays(n), 6, shuffle=True))
    means = torch.zeros(len(whole), dtype=torch.float64)
    uneven = 0
    for rank in range(world):
        _as_rank(monkeypatch, rank, world)
        for step, batch in enumerate(_epoch(ArrayLoader(_arrays(n), 6, shuffle=True))):
            weight = batch.get("weight", torch.tensor(1.0))
            assert weight.shape == ()
            assert weight.dtype == torch.float32
            uneven += "weight" in batch
            means[step] += weight * values[batch["indices"]].mean() / world
    assert uneven == (world if (n % 6) % world else 0)
    expected = torch.stack([values[batch["indices"]].mean() for batch in whole])
    torch.testing.assert_close(means, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("n", [1, 2, 13, 25])
def test_evaluation_counts_every_example_once_and_yields_no_empty_batch(monkeypatch, world, n):
    seen = []
    for rank in range(world):
        _as_rank(monkeypatch, rank, world)
        loader = ArrayLoader(_arrays(n), 4)
        batches = list(loader)
        assert len(loader) == len(batches)
        assert all(len(batch["targets"]) for batch in batches)
        seen += [i for batch in batches for i in batch["indices"].tolist()]
    assert sorted(seen) == list(range(n))


def test_batch_size_that_does_not_divide_names_the_nearest_that_do(monkeypatch):
    _as_rank(monkeypatch, 0, 3)
    with pytest.raises(
        ValueError, match=r"multiple of the number of processes, 3, got 7\. Use 6 or 9"
    ):
        len(ArrayLoader(_arrays(), 7, shuffle=True))
    with pytest.raises(ValueError, match=r"got 2\. Use 3\."):
        next(iter(ArrayLoader(_arrays(), 2, shuffle=True)))


def test_last_batch_smaller_than_the_ranks_is_refused_in_training(monkeypatch):
    _as_rank(monkeypatch, 0, 3)
    with pytest.raises(
        ValueError, match=r"for each of 3 processes, got 2 \(20 examples in batches of 6"
    ):
        len(ArrayLoader(_arrays(20), 6, shuffle=True))
    assert len(ArrayLoader(_arrays(20), 6, shuffle=True, drop_last=True)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 24, "drop_last": True}, "at most the number of examples, 23, .* got 24"),
        ({"batch_size": 2, "seed": -1}, "seed must be at least 0, got -1"),
        ({"batch_size": 2, "indices": torch.tensor([0, 23])}, r"lie in 0\.\.22, got 0\.\.23"),
        ({"batch_size": 2, "indices": torch.tensor([0, -1])}, r"lie in 0\.\.22, got -1\.\.0"),
        ({"batch_size": 2, "indices": torch.tensor([], dtype=torch.int64)}, "non-empty int64"),
    ],
)
def test_loader_refuses_what_cannot_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        ArrayLoader(_arrays(), **arguments)


def test_negative_padding_is_refused():
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        FlipAndCrop(-1)


def test_normalize_of_gives_mean_zero_and_variance_one_for_bytes_and_floats():
    arrays = _arrays(200)
    floats = ImageArrays(images=arrays.images / 255, targets=arrays.targets, num_classes=4)
    for data in (arrays, floats):
        normalize = Normalize.of(data)
        inputs = normalize(data.images).double()
        torch.testing.assert_close(
            inputs.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-6, rtol=0
        )
        var = inputs.var((0, 2, 3), correction=0)
        torch.testing.assert_close(var, torch.ones(3).double(), atol=1e-5, rtol=0)
    direct = (arrays.images.double() / 255).mean((0, 2, 3))
    torch.testing.assert_close(torch.tensor(Normalize.of(arrays).mean).double(), direct)


def test_normalize_keeps_a_constant_channel_finite_and_bits_independent_of_the_batch():
    constant = ImageArrays(
        images=torch.full((3, 1, 2, 2), 7, dtype=torch.uint8),
        targets=torch.zeros(3, dtype=torch.int64),
        num_classes=1,
    )
    assert Normalize.of(constant)(constant.images).isfinite().all()
    arrays = _arrays(101, size=7)
    normalize = Normalize.of(arrays)
    one_by_one = torch.cat([normalize(image[None]) for image in arrays.images])
    assert torch.equal(normalize(arrays.images), one_by_one)


def test_normalize_refuses_a_zero_deviation_and_unequal_lengths():
    with pytest.raises(ValueError, match=r"std positive, got mean .* and std"):
        Normalize([0.0], [0.0])
    with pytest.raises(ValueError, match="one number per channel"):
        Normalize([0.0, 1.0], [1.0])


def test_sampler_works_without_a_process_group_and_reads_the_rank_late(monkeypatch):
    sampler = EpochSampler(12, 6)
    assert [(part.start, part.stop) for part in sampler] == [(0, 6), (6, 12)]
    _as_rank(monkeypatch, 1, 2)
    assert [(part.start, part.stop) for part in sampler] == [(3, 6), (9, 12)]


@pytest.mark.parametrize("length", [3, 10, 14, 25])
def test_epochs_of_another_length_are_cut_from_whole_passes(length: int) -> None:
    sampler = EpochSampler(10, batch_size=4, shuffle=True, seed=1, length=length)
    drawn = []
    for epoch in range(10):
        sampler.set_epoch(epoch)
        drawn += sampler.order().tolist()
    assert len(drawn) == 10 * length
    for start in range(0, len(drawn) - 9, 10):
        assert sorted(drawn[start : start + 10]) == list(range(10))


def test_epoch_length_of_every_example_once_changes_nothing() -> None:
    plain = EpochSampler(10, batch_size=4, shuffle=True, seed=1)
    same = EpochSampler(10, batch_size=4, shuffle=True, seed=1, length=10)
    assert plain.order().equal(same.order())
