"""Pictures of what a run forgot most often, from the archive that ExampleDynamics writes."""

from pathlib import Path

import numpy as np
import pytest

from toolkit.data import Digits
from toolkit.run.pictures import save_pictures


@pytest.fixture(scope="module")
def digits() -> Digits:
    data = Digits(train_size=60, val_size=20, test_size=20, batch_size=16)
    data.check()
    return data


def write_scores(folder: Path, scores: np.ndarray) -> None:
    np.savez(folder / "examples.npz", forgetting_score=scores.astype(float))


def test_the_most_forgotten_come_first_and_the_never_forgotten_not_at_all(
    tmp_path: Path, digits: Digits
) -> None:
    scores = np.zeros(60)
    scores[[7, 3, 50, 9]] = [1, 4, 4, np.nan]
    write_scores(tmp_path, scores)
    save_pictures(tmp_path, digits)
    with np.load(tmp_path / "forgotten.npz") as file:
        assert file["indices"].tolist() == [3, 50, 7]
        assert file["forgetting_score"].tolist() == [4, 4, 1]
        expected = digits.train.images[[3, 50, 7]].permute(0, 2, 3, 1)
        assert np.array_equal(file["images"], expected)
        assert file["targets"].tolist() == digits.train.targets[[3, 50, 7]].tolist()
    assert not (tmp_path / "pictures.npz").exists()


def test_at_most_twenty_are_kept(tmp_path: Path, digits: Digits) -> None:
    write_scores(tmp_path, np.arange(60))
    save_pictures(tmp_path, digits)
    with np.load(tmp_path / "forgotten.npz") as file:
        assert file["indices"].tolist() == list(range(59, 39, -1))


def test_scores_of_other_indices_than_positions_give_no_pictures(
    tmp_path: Path, digits: Digits
) -> None:
    write_scores(tmp_path, np.ones(61))
    save_pictures(tmp_path, digits)
    assert [path.name for path in tmp_path.iterdir()] == ["examples.npz"]
