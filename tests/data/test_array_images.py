"""Arrays from files: what is read, how it is split, and each fault's one line."""

import zipfile

import numpy as np
import pytest
import torch

from toolkit.data import ArrayImages, ImageArrays
from toolkit.data.files import cached_array


def _splits(n=30, m=12, shape=(5, 5, 3)):
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(256, size=(n, *shape), dtype=np.uint8),
        "train_labels": (np.arange(n) % 3).astype(np.uint8),
        "test_images": rng.integers(256, size=(m, *shape), dtype=np.uint8),
        "test_labels": (np.arange(m) % 3).astype(np.uint8),
        "class_names": np.array(["ant", "bee", "cat"]),
    }


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    np.savez_compressed(tmp_path / "set.npz", **_splits())
    return "set.npz"


def _setup(*args, **kwargs):
    data = ArrayImages(*args, cache=None, **kwargs)
    data.setup()
    return data


def test_npz_is_read_and_its_training_data_divided_without_overlap(file):
    data = _setup(file, val_size=0.2, train_size=18)
    assert [len(s) for s in (data.train, data.val, data.test)] == [18, 6, 12]
    assert data.class_names == ("ant", "bee", "cat")
    assert data.input_shape == (3, 5, 5)
    raw = _splits()
    expected = torch.from_numpy(raw["test_images"]).permute(0, 3, 1, 2)
    assert torch.equal(data.test.images, expected)
    assert torch.bincount(data.train.targets).tolist() == [6, 6, 6]
    where = {image.tobytes(): k for k, image in enumerate(raw["train_images"])}
    places = []
    for split in (data.train, data.val):
        rows = [where[i.permute(1, 2, 0).numpy().tobytes()] for i in split.images]
        assert split.targets.tolist() == [row % 3 for row in rows]
        places.append(set(rows))
    assert not places[0] & places[1]


def test_npy_files_mapping_and_npz_give_the_same_data(file, tmp_path):
    raw = _splits()
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}_x.npy", raw[f"{split}_images"])
        np.save(tmp_path / f"{split}_y.npy", raw[f"{split}_labels"])
    readings = [
        _setup(file),
        _setup(raw),
        _setup(images="{split}_x.npy", labels="{split}_y.npy"),
        _setup(images="set.npz:{split}_images", labels="set.npz:{split}_labels"),
        _setup(str(tmp_path / "set.npz"), root="/nowhere"),
    ]
    for data in readings[1:]:
        assert data.train.fingerprint == readings[0].train.fingerprint
        assert data.test.fingerprint == readings[0].test.fingerprint


def test_validation_arrays_of_the_file_are_used_where_no_size_is_given():
    raw = _splits()
    raw |= {"val_images": raw["test_images"][:5], "val_labels": raw["test_labels"][:5]}
    data = _setup(raw, val_size=None)
    assert [len(s) for s in (data.train, data.val, data.test)] == [30, 5, 12]


def test_other_training_labels_replace_those_of_the_file(file, tmp_path):
    noisy = np.zeros(30, np.int32)
    np.savez(tmp_path / "noisy.npz", worst=noisy)
    data = _setup(file, train_labels="noisy.npz:worst")
    assert not data.train.targets.any()
    assert data.test.targets.any()
    assert data.num_classes == 3


def test_attributes_make_class_by_attribute_groups(file, tmp_path):
    np.savez(tmp_path / "sex.npz", train=np.arange(30) % 2, test=np.zeros(12, np.uint8))
    data = _setup(file, attributes="sex.npz:{split}")
    assert data.group_names == tuple(f"{c}_attr{a}" for c in ("ant", "bee", "cat") for a in (0, 1))
    assert torch.equal(data.test.groups, 2 * data.test.targets)
    assert torch.equal(data.train.groups // 2, data.train.targets)
    assert torch.equal(data.val.groups // 2, data.val.targets)


def test_text_column_gives_named_attributes_with_the_same_ids_in_all_splits(file, tmp_path):
    (tmp_path / "train.csv").write_text("id,place\n" + "".join(f"{i},sea\n" for i in range(30)))
    rows = "".join(f"{i},{'land' if i % 2 else 'sea'}\n" for i in range(12))
    (tmp_path / "test.csv").write_text("id,place\n" + rows)
    data = _setup(file, attributes="{split}.csv:place")
    assert data.group_names[:2] == ("ant_land", "ant_sea")
    assert set((data.train.groups % 2).tolist()) == {1}
    assert (data.test.groups % 2).tolist() == [1 - i % 2 for i in range(12)]


def test_group_array_keeps_declared_groups_that_never_occur(file):
    raw = _splits() | {"train_g": np.arange(30) % 2, "test_g": np.zeros(12, np.int64)}
    data = _setup(raw, groups="{split}_g", group_names=["a", "b", "absent"])
    assert data.num_groups == 3
    assert next(iter(data.test_dataloader()))["groups"].tolist() == [0] * 12
    assert _setup(raw, groups="{split}_g").group_names == ("group0", "group1")


def test_grey_images_and_channels_first_are_understood():
    grey = _splits(shape=(6, 7))
    assert _setup(grey).input_shape == (1, 6, 7)
    first = _splits(shape=(3, 6, 7))
    data = _setup(first)
    assert data.input_shape == (3, 6, 7)
    assert torch.equal(data.test.images, torch.from_numpy(first["test_images"]))


def test_float_images_become_float32_and_are_not_divided():
    raw = _splits()
    for split in ("train", "test"):
        raw[f"{split}_images"] = raw[f"{split}_images"] / 255.0
    data = _setup(raw)
    assert data.test.images.dtype == torch.float32
    inputs = next(iter(data.test_dataloader()))["inputs"].double()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.normalize.mean, data.normalize.std))
    expected = (torch.from_numpy(raw["test_images"]).permute(0, 3, 1, 2) - mean) / std
    torch.testing.assert_close(inputs, expected, rtol=1e-5, atol=1e-5)


def test_slow_compression_is_unpacked_once_into_the_cache(tmp_path):
    raw = _splits()
    with zipfile.ZipFile(tmp_path / "slow.npz", "w", zipfile.ZIP_LZMA) as archive:
        for name, array in raw.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    cache = tmp_path / "cache"
    readings = [
        ArrayImages("slow.npz", root=str(tmp_path), cache=kept)
        for kept in (
            None,
            str(cache),
            str(cache),
            str(tmp_path / "slow.npz"),
        )  # the last: no folder
    ]
    for data in readings:
        data.setup()
        assert data.train.fingerprint == readings[0].train.fingerprint
    assert len(list(cache.glob("slow-train_images-*.npy"))) == 1
    assert not list(cache.glob(".*"))


def test_cache_that_holds_rubbish_is_written_again(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"half a file")
    array = np.arange(4)
    assert np.array_equal(cached_array("a.npy", lambda: array, str(tmp_path)), array)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)
    kept = cached_array("a.npy", lambda: pytest.fail("made again"), str(tmp_path))
    assert np.array_equal(kept, array)


def _nan(raw):
    raw["test_images"] = raw["test_images"].astype(np.float32)
    raw["train_images"] = raw["train_images"].astype(np.float32)
    raw["train_images"][7, 0, 0, 0] = np.nan
    raw["train_images"][9, 1, 2] = np.inf


def _set(key, value):
    return lambda raw: raw.update({key: value})


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (
            _nan,
            {},
            "train images must be finite, got 4 NaN or infinite pixels in 2 images, the first at",
        ),
        (
            _set("train_labels", np.arange(29) % 3),
            {},
            "train labels must be as many as the images, got 29 for 30",
        ),
        (
            _set("test_labels", np.full(12, 3)),
            {},
            r"test labels must lie in 0\.\.2, got 3 in 12 examples, the first at index 0",
        ),
        (
            _set("train_labels", np.arange(30) - 1),
            {},
            r"train labels must lie in 0\.\.2, got -1, 3, 4, 5, 6, \.\.\. in",
        ),
        (_set("train_labels", np.zeros(30)), {}, "train labels must be integers .*got float64"),
        (
            _set("train_labels", np.zeros((30, 1), int)),
            {},
            r"train labels must be integers of shape \(examples,\), .*\(30, 1\)",
        ),
        (
            _set("train_images", np.zeros((0, 5, 5, 3), np.uint8)),
            {},
            "train images must hold at least one example",
        ),
        (
            _set("train_images", np.zeros((30, 5, 5, 3), int)),
            {},
            "train images must be uint8 or floating point, got int64",
        ),
        (
            _set("train_images", np.zeros((30, 75), np.uint8)),
            {},
            r"train images must have shape .*got \(30, 75\)",
        ),
        (
            _set("train_images", np.zeros((30, 5, 5, 7), np.uint8)),
            {},
            r"train images must have shape .*got \(30, 5, 5, 7\)",
        ),
        (
            _set("test_images", np.zeros((12, 4, 4, 3), np.uint8)),
            {},
            r"test images must have the shape .*got \(3, 4, 4\)",
        ),
        (_set("class_names", np.array(["a", "b"])), {}, r"train labels must lie in 0\.\.1, got 2"),
        (
            None,
            {"images": "{split}_image"},
            "array must be one of train_images, .* got 'train_image'. Did you mean train_images?",
        ),
        (None, {"labels": "train_labels"}, r"must hold \{split\} where the test split is read"),
        (
            None,
            {"groups": "{split}_labels", "group_names": ["a"]},
            r"train group ids must lie in 0\.\.0, got 1, 2 in 20",
        ),
        (
            _set("a", np.arange(7)),
            {"attributes": "a", "test_size": 3},
            "train attributes must be as many as the labels, got 7 for 30",
        ),
        (
            _set("a", np.arange(30) - 2),
            {"attributes": "a", "test_size": 3},
            r"train attributes must lie in 0\.\.27, got \[-2, -1\]",
        ),
        (
            None,
            {"train_size": 28},
            r"train_size must lie in 1\.\.27, what 3 validation and 0 test .* of 30, got 28",
        ),
        (None, {"val_size": None}, "array must be one of .* got 'val_labels'"),
    ],
)
def test_each_fault_of_the_data_is_one_line_at_check(spoil, arguments, message):
    raw = _splits()
    if spoil:
        spoil(raw)
    with pytest.raises(ValueError, match=message) as caught:
        ArrayImages(raw, **arguments).check()
    assert "\n" not in str(caught.value)


def test_missing_and_broken_files_are_named_with_what_to_do(file, tmp_path):
    with pytest.raises(
        ValueError, match=r"data file must exist, got .*/absent\.npz\. Put it there, or set root"
    ):
        ArrayImages("absent.npz").check()
    with pytest.raises(ValueError, match=r"data file must exist, got .*/absent\.npy"):
        ArrayImages(file, train_labels="absent.npy").check()
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"bad\.npz must be an \.npz file"):
        ArrayImages("bad.npz").check()
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"bad\.npy must hold plain NumPy arrays"):
        ArrayImages(file, train_labels="bad.npy").check()
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    with pytest.raises(
        ValueError, match=r"pickled\.npy must hold plain NumPy arrays, .*allow_pickle"
    ):
        ArrayImages(file, train_labels="pickled.npy").check()
    np.savez(tmp_path / "noisy.npz", worst=np.zeros(30, int))
    with pytest.raises(
        ValueError, match=r"one of worst in .*noisy\.npz, got 'wrst'. Did you mean worst"
    ):
        ArrayImages(file, train_labels="noisy.npz:wrst").check()
    (tmp_path / "a.csv").write_text("place\nsea\n")
    with pytest.raises(ValueError, match=r"column must be one of place in .*a\.csv, got 'plase'"):
        ArrayImages(file, attributes="a.csv:plase").check()
    with pytest.raises(ValueError, match=r"without a file must be named file\.npz:array"):
        ArrayImages().check()
    with pytest.raises(ValueError, match="groups and attributes must not both be given"):
        ArrayImages(file, groups="a", attributes="b")


def test_arrays_given_to_build_are_copied_where_read_only_and_select_keeps_what_belongs_together():
    images = np.frombuffer(bytes(range(48)), np.uint8).reshape(4, 2, 2, 3)
    arrays = ImageArrays.build(images, [0, 1, 0, 1], groups=[1, 0, 0, 1])
    part = arrays.select(torch.tensor([3, 0]), "part")
    assert part.targets.tolist() == [1, 0]
    assert part.groups.tolist() == [1, 1]
    assert torch.equal(part.images[0], torch.from_numpy(images[3].copy()).permute(2, 0, 1))
    assert part.group_names == ("group0", "group1")
    assert arrays.to("cpu") is arrays
    again = ImageArrays.build(images, [0, 1, 0, 1], groups=[1, 0, 0, 1])
    assert again.fingerprint == arrays.fingerprint
    other = ImageArrays.build(images, [0, 1, 0, 0], groups=[1, 0, 0, 1])
    assert other.fingerprint != arrays.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(3, 4, 4, dtype=torch.uint8)}, r"must be uint8 or float32 of shape"),
        ({"images": torch.zeros(3, 1, 4, 4, dtype=torch.float64)}, r"got torch.float64 of shape"),
        ({"targets": torch.zeros(3)}, "data labels must be int64"),
        ({"class_names": ("a",)}, "class names must be 2, one per class, got 1"),
        (
            {"groups": torch.zeros(2, dtype=torch.int64)},
            "group ids must be as many as the images, got 2 for 3",
        ),
    ],
)
def test_image_arrays_check_themselves(change, message):
    good = {
        "images": torch.zeros(3, 1, 4, 4, dtype=torch.uint8),
        "targets": torch.tensor([0, 1, 1]),
        "num_classes": 2,
        "group_names": ("a", "b"),
    }
    ImageArrays(**good)
    with pytest.raises(ValueError, match=message):
        ImageArrays(**(good | change))
