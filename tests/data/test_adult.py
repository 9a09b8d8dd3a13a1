"""The Adult table: features, groups, and what is refused."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toolkit.data import Adult


def write(path: Path, **changes: Any) -> None:
    """A small file of the right format: two numbers, three categorical columns."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "numeric_names": np.array(["age", "hours"]),
        "categorical_names": np.array(["work", "sex", "race"]),
        "categories_work": np.array(["?", "Private", "State", "none"]),
        "categories_sex": np.array(["Female", "Male"]),
        "categories_race": np.array(["A", "B", "C"]),
    }
    for split, count in (("train", 40), ("test", 12)):
        arrays[f"{split}_numeric"] = generator.uniform(20, 60, (count, 2)).astype(np.float32)
        codes = generator.integers(0, [3, 2, 3], (count, 3)).astype(np.uint8)  # work 3 never occurs
        arrays[f"{split}_categorical"] = codes
        arrays[f"{split}_labels"] = generator.integers(0, 2, count).astype(np.uint8)
    np.savez(path, **(arrays | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "adult.npz")
    return tmp_path


def test_features_are_numbers_then_one_hot_categories(folder: Path) -> None:
    data = Adult(root=str(folder), val_size=8)
    data.setup()
    assert data.input_shape == (2 + 4 + 2 + 3, 1, 1)
    assert (len(data.train), len(data.val), len(data.test)) == (32, 8, 12)
    file = np.load(folder / "adult.npz")
    rows = data.test.images[:, :, 0, 0].numpy()
    np.testing.assert_array_equal(rows[:, :2], file["test_numeric"])
    np.testing.assert_array_equal(rows[:, 2:6].argmax(1), file["test_categorical"][:, 0])
    np.testing.assert_array_equal(rows[:, 2:].sum(1), 3)


def test_groups_are_class_by_attribute(folder: Path) -> None:
    data = Adult(root=str(folder), attribute="race")
    data.setup()
    assert data.group_names[:2] == ("up_to_50K_A", "up_to_50K_B")
    file = np.load(folder / "adult.npz")
    expected = 3 * file["test_labels"].astype(int) + file["test_categorical"][:, 2]
    np.testing.assert_array_equal(data.test.groups.numpy(), expected)


def test_batches_are_normalised_and_constant_features_stay_finite(folder: Path) -> None:
    data = Adult(root=str(folder), val_size=8, batch_size=32)
    data.setup()
    (batch,) = list(data.train_dataloader())
    assert batch["inputs"].isfinite().all()
    moments = batch["inputs"][:, :2, 0, 0]
    torch.testing.assert_close(moments.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(moments.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_excluded_columns_are_no_inputs_but_still_make_groups(folder: Path) -> None:
    data = Adult(root=str(folder), exclude=["sex", "hours"])
    data.setup()
    assert data.input_shape == (1 + 4 + 3, 1, 1)
    assert data.num_groups == 4


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ({"attribute": "sx"}, {}, "columns work, sex, race, got sx. Did you mean sex?"),
        ({"exclude": ["salary"]}, {}, "columns age, hours, work, sex, race, got salary"),
        ({"file": "none.npz"}, {}, "data file must exist"),
        ({}, {"train_categorical": np.full((40, 3), 9, np.uint8)}, "codes must be in 0..3, got 9"),
        ({}, {"train_labels": np.full(40, 2, np.uint8)}, "labels must lie in 0..1, got [2]"),
        ({}, {"test_numeric": np.full((12, 2), np.nan, np.float32)}, "must be finite"),
    ],
)
def test_faults_of_the_data_are_named(
    tmp_path: Path, arguments: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    write(tmp_path / "adult.npz", **changes)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        Adult(root=str(tmp_path), **arguments).check()
    assert message in str(caught.value)


def test_the_published_file_has_its_groups() -> None:
    folder = os.environ.get("TOOLKIT_DATA")
    if folder is None or not (Path(folder) / "adult.npz").exists():
        pytest.skip("needs adult.npz in TOOLKIT_DATA")
    data = Adult(root=folder, val_size=0.1)
    data.setup()
    counts = data.train.groups.bincount() + data.val.groups.bincount()  # type: ignore[union-attr]
    assert counts.tolist() == [9592, 15128, 1179, 6662]
    assert len(data.test) == 16_281
