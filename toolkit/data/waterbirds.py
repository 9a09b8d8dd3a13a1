"""Waterbirds: land and water birds before land and water, with groups."""

from pathlib import Path

import numpy as np

from toolkit.data.arrays import ImageArrays
from toolkit.data.augment import Augmentation
from toolkit.data.files import Array, ArraySource, data_root
from toolkit.data.groups import class_by_attribute
from toolkit.data.image_folders import decode_images
from toolkit.data.loader import Normalize
from toolkit.data.long_tail import LongTail
from toolkit.data.module import ImageData, Source

__all__ = ["Waterbirds"]

_FOLDER = "waterbird_complete95_forest2water2"
_SPLITS = ("train", "val", "test")
_COLUMNS = ("img_filename", "y", "place", "split")


class Waterbirds(ImageData):
    """Waterbirds in the authors' layout: ``waterbird_complete95_forest2water2/metadata.csv``.

    Classes are ``landbird`` and ``waterbird``, places ``land`` and ``water``, groups class x place,
    and the splits are the authors': in training 95 % of either class lie before their own place; in
    validation and test data each class lies half before either. ``test/mean_group_acc`` of
    ``callbacks.BiasTracker`` is the accuracy on test data balanced over the groups,
    ``test/worst_group_acc`` that of the worst.

    The images are scaled to squares and kept in memory: 11,788 of 224 pixels need 1.8 GB.

    Args:
        root: Where the folder lies; by default the environment variable ``TOOLKIT_DATA``, else
            ``data``.
        image_size: Side of the images in pixels.
        cache: Folder for decoded images; ``None`` decodes each time.
        train_size: Training examples; ``None`` is all.
        batch_size: Training examples per update, over all ranks.
        eval_batch_size: Examples per batch elsewhere.
        seed: Of the choice of ``train_size`` examples, the order and the augmentation.
        drop_last: Leave out a partial last training batch; else it is weighted by its count.
        augment: Random changes of the training images.
        normalize: Of all images; by default by the training images.
        mixup: Parameter of MixUp's Beta distribution for the training batches; 0 mixes nothing.
        long_tail: Fewer training examples of one class.

    Raises:
        ValueError: :meth:`check` raises it, in one line, where a file or column is wrong.

    Reference:
        Sagawa et al. 2020, arXiv:1911.08731, section 3.
    """

    def __init__(  # noqa: PLR0913 - one argument per key of the recipe
        self,
        *,
        root: str | None = None,
        image_size: int = 224,
        cache: str | None = "~/.cache/bias-toolkit",
        train_size: int | None = None,
        batch_size: int = 128,
        eval_batch_size: int = 256,
        seed: int = 0,
        drop_last: bool = False,
        augment: Augmentation | None = None,
        normalize: Normalize | None = None,
        mixup: float = 0.0,
        long_tail: LongTail | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            train_size=train_size,
            seed=seed,
            drop_last=drop_last,
            augment=augment,
            normalize=normalize,
            mixup=mixup,
            long_tail=long_tail,
        )
        self.root = root
        self.image_size = image_size
        self.cache = cache

    def read(self) -> Source:
        """The three splits that the table names."""
        folder = data_root(self.root) / _FOLDER
        if not (folder / "metadata.csv").is_file():
            raise ValueError(
                f"Waterbirds must be unpacked in {folder.absolute()}, got no metadata.csv. Unpack "
                "waterbird_complete95_forest2water2.tar.gz under root."
            )
        source = ArraySource(None, folder, None)
        table = {name: source.read(f"metadata.csv:{name}") for name in _COLUMNS}
        for name, count in (("y", 2), ("place", 2), ("split", 3)):
            _check_column(folder, name, table[name], count)
        return Source(*(self._read_split(folder, table, k) for k in range(3)))

    def _read_split(self, folder: Path, table: dict[str, Array], number: int) -> ImageArrays:
        name = _SPLITS[number]
        rows = np.flatnonzero(table["split"] == number)
        if not len(rows):
            raise ValueError(
                f"{folder / 'metadata.csv'} must have rows of split {number} ({name}), got none. "
                "Unpack the data again."
            )
        images = decode_images(
            [folder / str(file) for file in table["img_filename"][rows]],
            image_size=self.image_size,
            cache=self.cache,
            name=f"Waterbirds-{name}",
        )
        arrays = ImageArrays.build(
            images, table["y"][rows], class_names=("landbird", "waterbird"), name=name
        )
        groups = class_by_attribute(
            arrays.targets,
            arrays.targets.new_tensor(table["place"][rows].tolist()),
            2,
            2,
            arrays.class_names,
            ("land", "water"),
            name=name,
        )
        return ImageArrays(
            images=arrays.images,
            targets=arrays.targets,
            num_classes=2,
            groups=groups.ids,
            group_names=groups.names,
            class_names=arrays.class_names,
            name=name,
        )


def _check_column(folder: Path, name: str, values: Array, count: int) -> None:
    if values.dtype.kind not in "iu" or not np.isin(values, range(count)).all():
        found = sorted({str(value) for value in values})[:5]
        raise ValueError(
            f"column {name} of {folder / 'metadata.csv'} must hold whole numbers in "
            f"0..{count - 1}, got {found}. Unpack the data again."
        )
