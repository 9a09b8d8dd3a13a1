"""Small files in each set's own format, read back; and what is said where they are missing."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from tests.fake_sets import RNG, write_cifar, write_images, write_stl10
from toolkit.data import TorchvisionImages
from toolkit.data.image_folders import decode_images


def _idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _write_mnist(root, name):
    written = {}
    for prefix, split, n in (("train", "train", 20), ("t10k", "test", 8)):
        images = RNG.integers(256, size=(n, 28, 28), dtype=np.uint8)
        labels = np.arange(n) % 10
        _idx(root / name / "raw" / f"{prefix}-images-idx3-ubyte", images)
        _idx(root / name / "raw" / f"{prefix}-labels-idx1-ubyte", labels)
        written[split] = images[:, None], labels
    return written


def _read(name, root, **kwargs):
    data = TorchvisionImages(
        name, root=str(root), download=False, **({"cache": None, "val_size": 2} | kwargs)
    )
    data.setup()
    return data


def _holds(split, images, labels):
    """Whether every example of a split is one of those written, with its label."""
    rows = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    return all(
        rows[image.numpy().tobytes()] == int(target)
        for image, target in zip(split.images, split.targets, strict=True)
    )


def _check_parts(data, written):
    assert np.array_equal(data.test.images.numpy(), written["test"][0])
    assert data.test.targets.tolist() == written["test"][1].tolist()
    assert len(data.train) + len(data.val) == len(written["train"][1])
    assert _holds(data.train, *written["train"])
    assert _holds(data.val, *written["train"])


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read(tmp_path, name):
    written = _write_mnist(tmp_path, name)
    data = _read(name, tmp_path)
    _check_parts(data, written)
    assert data.input_shape == (1, 28, 28)
    assert data.num_classes == 10


@pytest.mark.parametrize(("name", "classes"), [("CIFAR10", 10), ("CIFAR100", 100)])
def test_python_batches_are_read(tmp_path, monkeypatch, name, classes):
    written = write_cifar(tmp_path, getattr(datasets, name), monkeypatch, name == "CIFAR100")
    data = _read(name, tmp_path)
    _check_parts(data, written)
    assert data.input_shape == (3, 32, 32)
    assert data.class_names == tuple(f"class {k}" for k in range(classes))


def test_stl10_is_read_with_labels_from_zero(tmp_path, monkeypatch):
    written = write_stl10(tmp_path, monkeypatch)
    data = _read("STL10", tmp_path)
    _check_parts(data, written)
    assert data.class_names[3] == "thing3"


def test_file_of_another_checksum_is_refused(tmp_path, monkeypatch):
    write_cifar(tmp_path, datasets.CIFAR10, monkeypatch, fine=False)
    with (tmp_path / "cifar-10-batches-py" / "test_batch").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ValueError, match=r"CIFAR10 must lie in .*corrupted.* Put the unpacked"):
        _read("CIFAR10", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MNIST", r"MNIST must lie in .*Put MNIST/raw/train-images-idx3-ubyte and the other"),
        ("CIFAR10", r"Put the unpacked cifar-10-batches-py there, or set download: true"),
        ("CIFAR100", "Put the unpacked cifar-100-python there"),
        ("STL10", "Put the unpacked stl10_binary there"),
        (
            "TinyImageNet",
            r"unpacked in .*tiny-imagenet-200, got no train. Unpack tiny-imagenet-200\.zip",
        ),
        ("CINIC10", r"image folder must exist, got .*CINIC-10/train\. Put one folder of images"),
        ("ImageFolder", r"image folder must exist, got .*/train\."),
    ],
)
def test_absent_data_is_said_in_one_line_with_what_to_put_where(tmp_path, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        _read(name, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_absent_set_is_downloaded_once_and_a_failed_download_is_one_line(tmp_path, monkeypatch):
    calls = []

    def fetch(self):
        calls.append(self.root)
        if len(calls) == 1:
            raise RuntimeError("Error downloading:\nno network\n")
        _write_mnist(tmp_path, "MNIST")

    monkeypatch.setattr(datasets.MNIST, "download", fetch)

    def data():
        return TorchvisionImages("MNIST", root=str(tmp_path), val_size=2)

    with pytest.raises(
        ValueError, match=r"got: Error downloading: no network\. Put MNIST"
    ) as caught:
        data().check()
    assert "\n" not in str(caught.value)
    data().check()
    data().check()
    assert len(calls) == 2


def test_tiny_imagenet_takes_its_validation_images_as_test_data(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    codes = ["n02", "n01"]
    for code in codes:
        write_images(folder / "train" / code, ["images"], 3, 64)
    pixels = write_images(folder / "val", ["images"], 2, 64)
    (folder / "val" / "val_annotations.txt").write_text(
        "1.png\tn02\t0\t0\t9\t9\n0.png\tn01\t0\t0\t9\t9\n"
    )
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbus\nn03\tother\n")
    data = _read("TinyImageNet", tmp_path)
    assert data.class_names == ("goldfish", "bus")
    assert data.test.targets.tolist() == [1, 0]
    expected = np.stack([pixels["images", 1], pixels["images", 0]]).transpose(0, 3, 1, 2)
    assert np.array_equal(data.test.images.numpy(), expected)
    assert [len(data.train), len(data.val)] == [4, 2]
    (folder / "val" / "val_annotations.txt").write_text("1.png\tn09\n")
    with pytest.raises(ValueError, match=r"must name classes of the training data, got 'n09' of 1"):
        _read("TinyImageNet", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "val"), [("CINIC10", "CINIC-10", "valid"), ("ImageFolder", ".", "val")]
)
def test_class_folders_are_read_with_their_own_validation_images(tmp_path, name, folder, val):
    classes = ["bird", "cat"]
    pixels = {s: write_images(tmp_path / folder / s, classes, 3, 8) for s in ("train", val, "test")}
    data = _read(name, tmp_path, val_size=None)
    for split, key in ((data.train, "train"), (data.val, val), (data.test, "test")):
        assert split.targets.tolist() == [0, 0, 0, 1, 1, 1]
        expected = np.stack([pixels[key][c, k] for c in classes for k in range(3)])
        assert np.array_equal(split.images.numpy(), expected.transpose(0, 3, 1, 2))
    assert data.class_names == ("bird", "cat")
    divided = _read(name, tmp_path, val_size=2)
    assert [len(s) for s in (divided.train, divided.val, divided.test)] == [4, 2, 6]


def test_faults_of_class_folders_are_named(tmp_path):
    write_images(tmp_path / "train", ["a", "b"], 2, 8)
    (tmp_path / "test").mkdir()
    with pytest.raises(
        ValueError, match=r"must hold images in one folder per class, got none in .*test"
    ):
        _read("ImageFolder", tmp_path)
    write_images(tmp_path / "test", ["a", "c"], 2, 8)
    with pytest.raises(ValueError, match=r"must be those of the training data, got c\. Move"):
        _read("ImageFolder", tmp_path)
    (tmp_path / "test" / "c").rename(tmp_path / "test" / "b")
    Image.new("L", (9, 8)).save(tmp_path / "test" / "b" / "0.png")
    with pytest.raises(ValueError, match=r"same size, got 9 x 8 pixels in .*b/0\.png and 8 x 8"):
        _read("ImageFolder", tmp_path)
    assert _read("ImageFolder", tmp_path, image_size=4).input_shape == (3, 4, 4)
    (tmp_path / "test" / "b" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"image file must be readable, got .*0\.png"):
        _read("ImageFolder", tmp_path)


def test_decoded_images_are_kept_until_a_file_changes(tmp_path):
    write_images(tmp_path / "x", ["a"], 2, 8)
    paths = sorted((tmp_path / "x" / "a").iterdir())

    def decoded():
        return decode_images(paths, image_size=None, cache=str(tmp_path / "c"), name="x")

    first = decoded()
    kept = next((tmp_path / "c").iterdir())
    np.save(kept, first + 1)  # shows where the next reading comes from
    assert np.array_equal(decoded(), first + 1)
    Image.new("RGB", (8, 8)).save(paths[0])
    assert not decoded()[0].any()
    paths.append(tmp_path / "absent.png")
    with pytest.raises(ValueError, match=r"image file must exist, got .*absent\.png"):
        decoded()


def test_unknown_set_is_refused():
    with pytest.raises((ValueError, TypeError), match=r"MNIST.*CIFAR1"):
        TorchvisionImages("CIFAR1")


def test_grey_images_become_rgb(tmp_path):
    Image.new("L", (3, 2), 7).save(tmp_path / "g.png")
    images = decode_images([tmp_path / "g.png"], image_size=None, cache=None, name="g")
    assert torch.equal(torch.from_numpy(images), torch.full((1, 2, 3, 3), 7, dtype=torch.uint8))
