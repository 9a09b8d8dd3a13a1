"""A small set in the layout of Waterbirds, read back; and what is said of faults."""

import re

import pytest
import torch

from tests.fake_sets import WATERBIRDS, write_waterbirds
from toolkit.data import Waterbirds


def _data(root, **arguments):
    data = Waterbirds(root=str(root), image_size=8, cache=None, **arguments)
    data.check()
    return data


def test_rows_become_images_with_their_class_group_and_split(tmp_path):
    rows = write_waterbirds(tmp_path)
    data = _data(tmp_path)
    assert data.group_names == (
        "landbird_land", "landbird_water", "waterbird_land", "waterbird_water",
    )  # fmt: skip
    for number, split in enumerate((data.train, data.val, data.test)):
        chosen = [row for row in rows if row[3] == number]
        assert split.targets.tolist() == [row[2] for row in chosen]
        assert split.groups.tolist() == [2 * row[2] + row[4] for row in chosen]
        expected = [(10 * (row[0] - 1), 100 * row[2], 100 * row[4]) for row in chosen]
        assert split.images.shape[1:] == (3, 8, 8)
        means = split.images.double().mean((2, 3))
        assert (means - torch.tensor(expected).double()).abs().max() < 5  # JPEG is not exact


def test_part_of_the_training_data_may_be_used(tmp_path):
    write_waterbirds(tmp_path)
    assert len(_data(tmp_path, train_size=6).train) == 6


def _spoil(root, change):
    path = root / WATERBIRDS / "metadata.csv"
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("place,", "background,"), "column must be one of .* 'place'"),
        (lambda text: text.replace(".jpg,1,0,", ".jpg,7,0,", 1), r"y of .* in 0\.\.1, got .*'7'"),
        (lambda text: text.replace(",0,/o", ",sea,/o"), r"column place of .* must hold whole num"),
        (lambda text: text.replace("bird_3.jpg", "bird_x.jpg"), "image file must exist, got .*_x"),
        (
            lambda text: re.sub(r"\.jpg,(\d),1,", r".jpg,\1,2,", text),
            r"must have rows of split 1 \(val\), got none",
        ),
    ],
)
def test_faults_of_the_table_are_one_line(tmp_path, change, message):
    write_waterbirds(tmp_path)
    _spoil(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        _data(tmp_path)
    assert "\n" not in str(caught.value)


def test_absent_data_says_what_to_unpack_where(tmp_path):
    message = r"must be unpacked in .*waterbird_complete95_forest2water2, got no metadata.csv"
    with pytest.raises(ValueError, match=message):
        _data(tmp_path)
