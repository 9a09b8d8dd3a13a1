"""torchvision's image sets and common folder layouts, decoded once into memory."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from torchvision import datasets

from toolkit.data.arrays import ImageArrays
from toolkit.data.files import data_root
from toolkit.data.image_folders import (
    LabelledFiles,
    decode_images,
    list_class_folders,
    list_tiny_imagenet,
)
from toolkit.data.module import ImageData, Source

__all__ = ["TorchvisionImages"]

Name = Literal[
    "MNIST",
    "FashionMNIST",
    "CIFAR10",
    "CIFAR100",
    "STL10",
    "TinyImageNet",
    "CINIC10",
    "ImageFolder",
]


class TorchvisionImages(ImageData):
    """Well-known image sets, in the files and folders that torchvision and their authors use.

    | name | under ``root`` | test data | size |
    | --- | --- | --- | --- |
    | ``MNIST``, ``FashionMNIST`` | ``<name>/raw`` | its own | 28 |
    | ``CIFAR10`` | ``cifar-10-batches-py`` | its own | 32 |
    | ``CIFAR100`` | ``cifar-100-python`` | its own | 32 |
    | ``STL10`` | ``stl10_binary`` | its own; trains on the 5,000 labelled images | 96 |
    | ``TinyImageNet`` | ``tiny-imagenet-200`` | its validation images | 64 |
    | ``CINIC10`` | ``CINIC-10``: ``train``, ``valid``, ``test`` | its own | 32 |
    | ``ImageFolder`` | ``train``, ``val``, ``test``: a folder per class | ``test`` | any |

    The first five are downloaded where they are absent and checked by torchvision's checksums. The
    others are decoded once, and kept in ``cache``.

    Args:
        name: One of the above.
        root: Where the data lies; by default the environment variable ``TOOLKIT_DATA``, else
            ``data``.
        download: Whether to download.
        image_size: For the last three: scale images to squares of this side; ``None`` asks for
            images of the same size.
        cache: Folder for decoded images; ``None`` decodes each time.
        val_size: Validation examples, a count or a fraction of the training data; ``None`` uses the
            set's own validation images, which ``CINIC10`` and ``ImageFolder`` have.
        **shared: Further ones of :class:`~toolkit.data.ImageData`.

    Raises:
        ValueError: If there is no such set; :meth:`check` raises it where the data is missing.
    """

    def __init__(
        self,
        name: Name,
        *,
        root: str | None = None,
        download: bool = True,
        image_size: int | None = None,
        cache: str | None = "~/.cache/bias-toolkit",
        val_size: int | float | None = 0.1,
        **shared: Any,
    ) -> None:
        super().__init__(
            val_size=val_size,
            **shared,
        )
        if name not in get_args(Name):
            raise ValueError(f"name must be one of {', '.join(get_args(Name))}, got {name!r}.")
        self.name: str = name
        self.root = root
        self.download = download
        self.image_size = image_size
        self.cache = cache

    def read(self) -> Source:
        """The training and test data, and the set's own validation data where it is asked for."""
        root = data_root(self.root)
        if self.name in _SETS:
            return Source(self._read_set(root, "train"), test=self._read_set(root, "test"))
        if self.name == "TinyImageNet":
            train, test = list_tiny_imagenet(root / "tiny-imagenet-200")
            return Source(self._decode("train", train), test=self._decode("test", test))
        folder = root / "CINIC-10" if self.name == "CINIC10" else root
        train = list_class_folders(folder / "train")
        source = Source(
            self._decode("train", train),
            test=self._decode("test", list_class_folders(folder / "test", train.class_names)),
        )
        if self.val_size is None:
            own = folder / ("valid" if self.name == "CINIC10" else "val")
            val = self._decode("val", list_class_folders(own, train.class_names))
            source = source._replace(val=val)
        return source

    def _decode(self, split: str, files: LabelledFiles) -> ImageArrays:
        images = decode_images(
            files.paths,
            image_size=self.image_size,
            cache=self.cache,
            name=f"{self.name}-{split}",
        )
        return ImageArrays.build(images, files.targets, class_names=files.class_names, name=split)

    def _read_set(self, root: Path, split: str) -> ImageArrays:
        make, files = _SETS[self.name]
        try:
            made = _made_or_downloaded(lambda fetch: make(root, split, fetch), root, self.download)
        except (RuntimeError, OSError, ValueError, EOFError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self.name} must lie in {root.absolute()}, got: {reason}. Put {files} there, or "
                "set download: true where there is a network, or set root."
            ) from error
        targets = made.labels if self.name == "STL10" else made.targets
        names = getattr(made, "classes", ())  # STL10 has them in a file of its own
        # Images of STL10 come with the channels first, which the size of 96 keeps unambiguous.
        return ImageArrays.build(made.data, targets, class_names=names, name=split)


def _made_or_downloaded(make: Callable[[bool], Any], root: Path, download: bool) -> Any:
    """The data set; downloaded by one process at a time, and not where it is there already."""
    try:
        return make(False)
    except RuntimeError:  # torchvision's word for absent or of another checksum
        if not download:
            raise
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".download.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make(True)


def _make(cls: Callable[..., Any]) -> Callable[[Path, str, bool], Any]:
    return lambda root, split, fetch: cls(root, train=split == "train", download=fetch)


def _make_stl10(root: Path, split: str, fetch: bool) -> Any:
    return datasets.STL10(root, split=split, download=fetch)


# How to make each set, and what a person puts under root instead of a download.
_SETS: dict[str, tuple[Callable[[Path, str, bool], Any], str]] = {
    "MNIST": (_make(datasets.MNIST), "MNIST/raw/train-images-idx3-ubyte and the other three"),
    "FashionMNIST": (
        _make(datasets.FashionMNIST),
        "FashionMNIST/raw/train-images-idx3-ubyte and the other three",
    ),
    "CIFAR10": (_make(datasets.CIFAR10), "the unpacked cifar-10-batches-py"),
    "CIFAR100": (_make(datasets.CIFAR100), "the unpacked cifar-100-python"),
    "STL10": (_make_stl10, "the unpacked stl10_binary"),
}
