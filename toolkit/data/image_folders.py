"""Image files in folders, one per class, decoded once into an array."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS

from toolkit.data.files import Array, cached_array

__all__ = ["LabelledFiles", "decode_images", "list_class_folders", "list_tiny_imagenet"]


class LabelledFiles(NamedTuple):
    """Image files, the class of each, and the names of the classes."""

    paths: list[Path]
    targets: list[int]
    class_names: tuple[str, ...]


def list_class_folders(folder: Path, class_names: Sequence[str] | None = None) -> LabelledFiles:
    """The images below each class's folder, in the order of their paths.

    Args:
        folder: Holds one folder per class.
        class_names: The classes, in the order of their ids; by default the folders' sorted names.

    Raises:
        ValueError: If the folder is missing, holds no image, or holds an unknown class.
    """
    if not folder.is_dir():
        raise ValueError(
            f"image folder must exist, got {folder.absolute()}. Put one folder of images per class "
            "there, or set root."
        )
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = tuple(class_names or found)
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise ValueError(
            f"classes in {folder.absolute()} must be those of the training data, got "
            f"{', '.join(unknown[:5])}. Move these folders away."
        )
    paths, targets = [], []
    for target, name in enumerate(names):
        files = [p for p in (folder / name).rglob("*") if p.suffix.lower() in IMG_EXTENSIONS]
        paths += sorted(files)
        targets += [target] * len(files)
    if not paths:
        raise ValueError(
            f"image folder must hold images in one folder per class, got none in "
            f"{folder.absolute()}. Check the names and endings of the files."
        )
    return LabelledFiles(paths, targets, names)


def list_tiny_imagenet(folder: Path) -> tuple[LabelledFiles, LabelledFiles]:
    """Training images of Tiny-ImageNet, and its validation images, which serve as test data.

    The labels of its own test images were never published.

    Raises:
        ValueError: If a file of the layout is missing, or an annotation names an unknown class.
    """
    annotations = folder / "val" / "val_annotations.txt"
    for needed in (folder / "train", annotations, folder / "words.txt"):
        if not needed.exists():
            raise ValueError(
                f"TinyImageNet must be unpacked in {folder.absolute()}, got no {needed.name}. "
                "Unpack tiny-imagenet-200.zip under root."
            )
    train = list_class_folders(folder / "train")
    words = dict(
        line.split("\t", 1) for line in (folder / "words.txt").read_text("utf-8").splitlines()
    )
    names = tuple(words.get(code, code).split(",")[0] for code in train.class_names)
    ids = {code: k for k, code in enumerate(train.class_names)}
    paths, targets = [], []
    for line in annotations.read_text("utf-8").splitlines():
        file, code = line.split("\t")[:2]
        if code not in ids:
            raise ValueError(
                f"{annotations} must name classes of the training data, got {code!r} of {file}. "
                "Unpack tiny-imagenet-200.zip again."
            )
        paths.append(folder / "val" / "images" / file)
        targets.append(ids[code])
    return train._replace(class_names=names), LabelledFiles(paths, targets, names)


def decode_images(
    paths: Sequence[Path], *, image_size: int | None, cache: str | None, name: str
) -> Array:
    """The images as uint8 RGB ``(images, height, width, 3)``.

    Args:
        paths: The files.
        image_size: Scale each image to a square of this side, bilinearly; ``None`` asks for images
            of the same size.
        cache: Folder for the decoded array; its name there depends on the names, sizes and times
            of the files.
        name: The beginning of that name.

    Raises:
        ValueError: If a file is no image or the sizes differ.
    """
    digest = hashlib.sha256(f"{image_size}".encode())
    for path in paths:
        status = path.stat() if path.is_file() else None
        if status is None:
            raise ValueError(
                f"image file must exist, got {path.absolute()}. Unpack the data again."
            )
        digest.update(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    kept = f"{name}-{digest.hexdigest()[:16]}.npy"
    return cached_array(kept, lambda: _decode(paths, image_size), cache)


def _decode(paths: Sequence[Path], image_size: int | None) -> Array:
    first = _pixels(paths[0], image_size)
    images = np.empty((len(paths), *first.shape), np.uint8)
    for k, path in enumerate(paths):
        pixels = _pixels(path, image_size)
        if pixels.shape != first.shape:
            raise ValueError(
                f"images must have the same size, got {pixels.shape[1]} x {pixels.shape[0]} pixels "
                f"in {path} and {first.shape[1]} x {first.shape[0]} in {paths[0]}. Set image_size."
            )
        images[k] = pixels
    return images


def _pixels(path: Path, image_size: int | None) -> Array:
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except OSError as error:
        raise ValueError(
            f"image file must be readable, got {path}: {error}. Repair or remove it."
        ) from error
    if image_size is not None and rgb.size != (image_size, image_size):
        rgb = rgb.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(rgb)
