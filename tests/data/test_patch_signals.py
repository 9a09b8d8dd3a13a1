"""Patch data: what each patch holds, what depends on the seed, and what is refused."""

import pytest
import torch

from toolkit.data import PatchSignals


def test_patches_hold_what_they_are_said_to_hold() -> None:
    data = PatchSignals(num_examples=2000, num_patches=4, dim=20, noise_std=0.25, seed=1).read()
    fast, slow = data["features"]
    torch.testing.assert_close(
        data["features"] @ data["features"].T, torch.eye(2, dtype=torch.float64)
    )
    inputs, targets, masked = data["inputs"], data["targets"], data["groups"] == 1
    torch.testing.assert_close(inputs[:, 1], 0.7 * targets[:, None] * slow)
    torch.testing.assert_close(inputs[~masked, 0], targets[~masked, None] * fast)
    assert not inputs[masked, 0].any()
    assert inputs[:, 2:].std().item() == pytest.approx(0.25, rel=0.02)
    assert masked.double().mean().item() == pytest.approx(0.1, abs=0.03)
    assert targets.mean().abs() < 0.08
    assert set(targets.tolist()) == {-1.0, 1.0}


def test_permuted_positions_hold_the_same_patches() -> None:
    plain = PatchSignals(num_examples=30, num_test=5, dim=6, seed=2).read()
    mixed = PatchSignals(num_examples=30, num_test=5, dim=6, seed=2, permute=True).read()
    assert not plain["inputs"].equal(mixed["inputs"])
    a, b = (data["inputs"].sort(1).values for data in (plain, mixed))
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(plain["inputs"].sum(1), mixed["inputs"].sum(1))


def test_the_seed_fixes_everything_and_shares_no_numbers_with_the_initial_filters() -> None:
    first, again = (PatchSignals(num_examples=5, num_test=5, seed=4).read() for _ in range(2))
    assert all(first[key].equal(again[key]) for key in first)
    other = PatchSignals(num_examples=5, num_test=5, seed=5).read()
    assert not first["features"].equal(other["features"])
    torch.manual_seed(4)  # as a run seeds its model
    filters = torch.randn(20, 50, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity
    assert max(cosine(filters, feature[None]).abs().max() for feature in first["features"]) < 0.7


def test_a_batch_has_a_dimension_of_members_and_no_end() -> None:
    data = PatchSignals(num_examples=5, num_test=3)
    batches = iter(data.train_dataloader())
    assert next(batches)["inputs"].shape == (1, 5, 3, 50)
    assert next(batches)["inputs"] is data.batch["inputs"]
    assert len(list(data.test_dataloader())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples must be at least 1, got 0"),
        ({"num_patches": 1}, "num_patches must be at least 2, got 1"),
        ({"dim": 1}, "dim must be at least 2, got 1"),
        ({"fast_strength": 0.0}, "fast_strength must be above 0, got 0"),
        ({"slow_strength": float("nan")}, "slow_strength must be above 0, got nan"),
        ({"fast_presence": 1.5}, "fast_presence must be above 0 and at most 1, got 1.5"),
        ({"noise_std": -1.0}, "noise_std must be at least 0, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchSignals(**arguments)  # type: ignore[arg-type]
