"""Small files in the formats of well-known image sets, for tests to read."""

import csv
import hashlib
import pickle

import numpy as np
from PIL import Image
from torchvision import datasets

RNG = np.random.default_rng(0)

WATERBIRDS = "waterbird_complete95_forest2water2"


def write_cifar(root, cls, monkeypatch, fine, per_file=6, used=None):
    """Batches of the right format; their checksums take the place of the real ones.

    Labels are the first ``used`` classes, by default all.
    """
    classes = 100 if fine else 10
    names = [f"class {k}" for k in range(classes)]
    written = {}
    for split, listed in (("train", cls.train_list), ("test", cls.test_list)):
        sums, images, labels = [], [], []
        for file, _ in listed:
            rows = RNG.integers(256, size=(per_file, 3072), dtype=np.uint8)
            targets = RNG.permutation(np.arange(per_file) % (used or classes)).tolist()
            entry = {"data": rows, "fine_labels" if fine else "labels": targets}
            sums.append([file, _dump(root / cls.base_folder / file, entry)])
            images.append(rows.reshape(-1, 3, 32, 32))
            labels += targets
        monkeypatch.setattr(cls, f"{split}_list", sums)
        written[split] = np.concatenate(images), np.array(labels)
    path = root / cls.base_folder / cls.meta["filename"]
    md5 = _dump(path, {cls.meta["key"]: names})
    monkeypatch.setattr(cls, "meta", cls.meta | {"md5": md5})
    return written


def _dump(path, entry):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(entry))
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_stl10(root, monkeypatch, counts=(10, 4, 2)):
    """Binary files of training, test and unlabelled images, with their checksums."""
    folder = root / "stl10_binary"
    folder.mkdir()
    written = {}
    for split, n in zip(("train", "test", "unlabeled"), counts, strict=True):
        images = RNG.integers(256, size=(n, 3, 96, 96), dtype=np.uint8)
        # The files hold each channel column by column.
        (folder / f"{split}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        labels = np.arange(n, dtype=np.uint8) % 10
        (folder / f"{split}_y.bin").write_bytes((labels + 1).tobytes())
        written[split] = images, labels
    for attribute in ("train_list", "test_list"):
        listed = [
            [file, hashlib.md5((folder / file).read_bytes()).hexdigest()]
            for file, _ in getattr(datasets.STL10, attribute)
        ]
        monkeypatch.setattr(datasets.STL10, attribute, listed)
    (folder / "class_names.txt").write_text("\n".join(f"thing{k}" for k in range(10)))
    return written


def write_images(folder, classes, per_class, size):
    """A folder of PNG files for each class."""
    pixels = {}
    for name in classes:
        (folder / name).mkdir(parents=True)
        for k in range(per_class):
            image = RNG.integers(256, size=(size, size, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / name / f"{k}.png")
            pixels[name, k] = image
    return pixels


def write_tiny_imagenet(root, per_class=4):
    """The layout of Tiny-ImageNet, with four classes."""
    folder = root / "tiny-imagenet-200"
    codes = [f"n0{k}" for k in range(4)]
    for code in codes:
        write_images(folder / "train" / code, ["images"], per_class, 64)
    write_images(folder / "val", ["images"], 8, 64)
    rows = [f"{k}.png\t{codes[k % 4]}\t0\t0\t9\t9\n" for k in range(8)]
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "words.txt").write_text("".join(f"{code}\tname of {code}\n" for code in codes))


def write_waterbirds(root, n=24, size=(20, 16)):
    """Pictures of one colour each, ``(10 * row, 100 * y, 100 * place)``, and their table."""
    folder = root / WATERBIRDS
    columns = ["img_id", "img_filename", "y", "split", "place", "place_filename"]
    rows = []
    for k in range(n):
        y, place, split = k % 2, k // 2 % 2, (0, 0, 1, 2)[k // 4 % 4]
        file = f"{k % 3:03d}.Bird/bird_{k}.jpg"
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        picture = np.full((size[1], size[0], 3), (10 * k % 256, 100 * y, 100 * place), np.uint8)
        Image.fromarray(picture).save(folder / file, quality=95)
        rows.append([k + 1, file, y, split, place, "/o/ocean/1.jpg"])
    with (folder / "metadata.csv").open("w", newline="") as table:
        csv.writer(table).writerows([columns, *rows])
    return rows


def write_arrays(root):
    """``cifar10.npz``, ``cifar10n.npz`` and ``mnist.npz`` with 100 training images each."""
    labels = {"train": np.arange(100) % 10, "test": np.arange(20) % 10}
    for name, shape in (("cifar10", (32, 32, 3)), ("mnist", (28, 28))):
        arrays = {}
        for split, targets in labels.items():
            size = (len(targets), *shape)
            arrays[f"{split}_images"] = RNG.integers(256, size=size, dtype=np.uint8)
            arrays[f"{split}_labels"] = targets.astype(np.uint8)
        np.savez(root / f"{name}.npz", **arrays)
    people = (labels["train"] + (np.arange(100) % 3 == 0)) % 10
    names = ("aggregate_labels", "worst_labels")
    np.savez(root / "cifar10n.npz", **dict.fromkeys(names, people.astype(np.uint8)))


def write_adult(root, n=60):
    """``adult.npz`` with the columns of the real file, and few records of random content."""
    generator = np.random.default_rng(0)
    sizes = {
        "workclass": 9, "education": 16, "marital_status": 7, "occupation": 15,
        "relationship": 6, "race": 5, "sex": 2, "native_country": 42,
    }  # fmt: skip
    arrays = {
        "numeric_names": np.array([f"number{i}" for i in range(6)]),
        "categorical_names": np.array(list(sizes)),
        **{f"categories_{k}": np.array([f"{k}{i}" for i in range(v)]) for k, v in sizes.items()},
    }
    for split in ("train", "test"):
        arrays[f"{split}_numeric"] = generator.normal(size=(n, 6)).astype(np.float32)
        codes = generator.integers(0, list(sizes.values()), (n, len(sizes)))
        arrays[f"{split}_categorical"] = codes.astype(np.uint8)
        arrays[f"{split}_labels"] = generator.integers(0, 2, n).astype(np.uint8)
    np.savez(root / "adult.npz", **arrays)
